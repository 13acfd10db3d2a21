"""Commands that code of a context runs by `!` and by cell magics. Their output is the execution's own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# What an interrupted command gets to end by itself, in seconds.
GRACE = 1.0


def run_shell(command: str) -> int:
    """Runs a line of shell; gives its exit status, or 128 and the number of the signal that ended it."""
    return run([shell(), "-c", command])


def shell() -> str:
    """The shell of the template."""
    return "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"


def run(argv: list[str], **options: Any) -> int:
    """Runs a program to its end; an interrupt is passed on to it and all that it started."""
    sys.stdout.flush()
    sys.stderr.flush()
    process = subprocess.Popen(argv, stdin=options.pop("stdin", subprocess.DEVNULL), process_group=0, **options)
    code = finish(process)
    return 128 - code if code < 0 else code


def finish(process: subprocess.Popen[Any]) -> int:
    """Waits for a program that leads a group of processes."""
    try:
        return process.wait()
    except BaseException:
        stop(process)
        raise


def stop(process: subprocess.Popen[Any]) -> None:
    """Interrupts a program's group, and kills it if that does not help."""
    try:
        os.killpg(process.pid, signal.SIGINT)
        try:
            process.wait(GRACE)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    except ProcessLookupError:
        process.wait()
