"""Runs what comes by a pipe, and tells what a caller wants to know besides.

The first request decides: `run` is one program, run as `python3 FILE` would; `start` makes a context, which runs many
pieces of code one after the other and keeps their state (module `context`).

Before it may come `warm`: what can be done before anybody knows what is to be run (module `warm`).

The order of things of one program: take the pipes away from descriptors 3 and 4; read the request; set the number of
threads; make a fresh `__main__`; run; send the error, the open figures and `done`; end as Python ends (threads joined,
atexit, exit code).
Protocol: frames of a little-endian u32 length and a JSON object; see README.md beside this package.

Nothing here imports more than the start needs: `json`, `ast`, `traceback` and `asyncio` cost more than all the rest of
the start. What is needed only sometimes lies in modules that are imported when it is (`failure`, `display`, `figures`).
"""

from __future__ import annotations

import os
import sys

from brig_kernel.channel import Channel, ChannelError
from brig_kernel.program import Program

__all__ = ["run"]

THREAD_VARIABLES = (
    "BLIS_NUM_THREADS",
    "LOKY_MAX_CPU_COUNT",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)

# What a shell reports for a program ended by SIGINT.
INTERRUPTED = 130


def run(requests: int, events: int) -> None:
    """Serves the requests and ends the interpreter."""
    try:
        channel = Channel(requests, events)
        request = channel.receive()
        if request.get("op") == "warm":
            from brig_kernel import warm

            warm.up(channel, request)
            request = channel.receive()
        if request.get("op") == "start":
            from brig_kernel import context

            sys.exit(context.serve(channel, request))
        program = Program.of(request)
        threads = request.get("threads")
    except (ChannelError, OSError) as error:
        sys.stderr.write(f"kernel: {error}\n")
        sys.exit(2)
    prepare(threads)
    code = execute(program, channel)
    channel.send_done()
    del program
    warm = sys.modules.get("brig_kernel.warm")
    if warm is not None and warm.ending is not None:
        warm.ending.end(code)
    sys.exit(code)


def prepare(threads: object) -> None:
    """Settles what libraries read when they are imported."""
    if isinstance(threads, int) and threads > 0:
        for name in THREAD_VARIABLES:
            # A value of the caller's wins.
            os.environ.setdefault(name, str(threads))


def execute(program: Program, channel: Channel) -> int | None:
    """Runs the program; gives the argument for sys.exit."""
    from brig_kernel.hooks import install

    install(channel)
    code: int | None = 0
    try:
        shown, value = program.run()
    except SystemExit as error:
        if error.code not in (None, 0):
            report(program, channel, error)
        code = exit_code(error)
    except BaseException as error:
        code = INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
        report(program, channel, error)
    else:
        if shown:
            show(channel, value)
    if code != INTERRUPTED:
        send_figures(channel)
    return code


def exit_code(error: SystemExit) -> int | None:
    """What sys.exit was given, as a number; text is printed, as Python does."""
    if error.code is None or isinstance(error.code, int):
        return error.code
    write_stderr(f"{error.code}\n")
    return 1


def report(program: Program, channel: Channel, error: BaseException) -> None:
    """Sends and prints an exception that ended the program."""
    with program.own_modules():
        from brig_kernel import failure
    failure.report(program, channel, error)


def show(channel: Channel, value: object) -> None:
    """Sends the value of the last expression."""
    if value is not None:
        from brig_kernel import display

        display.send(channel, value, main=True)


def send_figures(channel: Channel) -> None:
    """Sends figures left open, if there can be any."""
    if "matplotlib.pyplot" in sys.modules:
        from brig_kernel import figures

        figures.send_open(channel)


def write_stderr(text: str) -> None:
    """Writes to whatever stderr is now; a closed one is nobody's loss."""
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except (AttributeError, OSError, ValueError):
        pass
