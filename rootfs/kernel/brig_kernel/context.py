"""A context: an interpreter that runs one piece of code after the other and keeps their state.

The first request, `start`, says what it is; then come `run`, `interrupt`, `reset` and `exit`. See README.md.
"""

from __future__ import annotations

import os
import sys

from brig_kernel import INTERRUPTED, exit_code, prepare, printing, write_stderr
from brig_kernel.channel import ChannelError
from brig_kernel.program import COROUTINE, open_path, run_awaiting
from brig_kernel.requests import Requests

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType
    from typing import Any, Protocol

    from brig_kernel.channel import Channel

    class Interpreter(Protocol):
        """What a language has to have."""

        wait: Callable[[int], None] | None

        def run(self, run: Run) -> dict[str, object]:
            """Runs code; gives what `done` says of it."""

        def reset(self) -> None:
            """Starts anew."""


class Run:
    """A request to run code."""

    def __init__(self, request: dict[str, object]) -> None:
        identity, code = request.get("id"), request.get("code")
        if not isinstance(identity, str) or not isinstance(code, str):
            raise ChannelError("run without id or code")
        self.id = identity
        self.code = code
        self.silent = request.get("silent") is True
        self.store = request.get("store") is not False and not self.silent
        self.environment = environment_of(request)


def serve(channel: Channel, start: dict[str, object]) -> int:
    """Serves a context to its end; gives the interpreter's exit code."""
    requests = Requests(channel.requests)
    try:
        interpreter = begin(channel, requests, start)
    except RefusalError as error:
        channel.send({"ev": "refused", "message": str(error)})
        return 2
    channel.send({"ev": "ready", "language": start.get("language") or "python", "version": sys.version.split()[0]})
    while True:
        request = requests.next(interpreter.wait)
        op = "exit" if request is None else request.get("op")
        if op == "exit":
            return 0
        if op == "reset":
            interpreter.reset()
            channel.send({"ev": "reset"})
        elif op == "run":
            run = Run(request or {})
            channel.execution = run.id
            told = interpreter.run(run)
            if not channel.is_ours():
                # A child that the code forked has come to the end of it.
                return int(str(told["exit_code"]))
            flush()
            channel.send({"ev": "done", **told})
            channel.execution = None
        else:
            raise ChannelError(f"a context does not know the request {op!r}")


class RefusalError(Exception):
    """The context can't be started as asked for."""


def begin(channel: Channel, requests: Requests, start: dict[str, object]) -> Interpreter:
    """Makes the interpreter that a start asks for."""
    directory, threads = start.get("directory"), start.get("threads")
    os.environ.update(environment_of(start))
    prepare(threads)
    try:
        if isinstance(directory, str):
            os.chdir(directory)
    except (OSError, ValueError) as error:
        raise RefusalError(f"directory {directory}: {getattr(error, 'strerror', None) or error}") from None
    language = start.get("language") or "python"
    if language == "python":
        return Python(channel, requests)
    if language == "bash":
        from brig_kernel.bash import BASH, Bash

        if not os.path.exists(BASH):
            raise RefusalError(f"language bash: the template has no {BASH}")
        return Bash(requests)
    raise RefusalError(f"language {language}: there are python and bash")


def environment_of(request: dict[str, object]) -> dict[str, str]:
    """Variables that a request sets."""
    variables = request.get("environment") or {}
    if not isinstance(variables, dict):
        raise ChannelError("environment of the request is not an object")
    for name, value in variables.items():
        if not isinstance(value, str) or not name or "=" in name or "\0" in name + value:
            raise ChannelError("environment of the request has a name or a value that no variable can have")
    return variables


# The shell, once it is made: an interpreter that is to be forked into sessions makes it ahead.
_shell: Any = None


def make_shell(channel: Channel) -> Any:
    """IPython's shell, which takes longer than all else that a context needs, and what programs find in it."""
    global _shell
    if _shell is None:
        from brig_kernel.hooks import PyplotFinder
        from brig_kernel.layer import Finder, LayerError

        try:
            with Finder():
                from brig_kernel import shell
        except LayerError as error:
            raise RefusalError(str(error)) from None
        _shell = shell.make(channel)
        printing.install()
        sys.meta_path.insert(0, PyplotFinder(channel))  # type: ignore[arg-type]
    return _shell


class Python:
    """Python, with IPython's shell."""

    def __init__(self, channel: Channel, requests: Requests) -> None:
        from brig_kernel.cells import Cells
        from brig_kernel.interrupts import Interrupts
        from brig_kernel.loop import Loop

        self._channel = channel
        self._shell = make_shell(channel)
        self._cells = Cells(self._shell.transform_cell)
        self._loop = self._shell.loop_runner = Loop()
        self.wait = self._loop.wait
        sys.argv = [""]
        # As for an interactive Python: the working directory, whatever it is when the import runs.
        open_path("")
        self._environment, self._directory = dict(os.environ), os.getcwd()
        self._interrupts = Interrupts(channel, requests)

    def run(self, run: Run) -> dict[str, object]:
        """Runs a cell."""
        from brig_kernel.cells import Cell

        shell = self._shell
        number = shell.execution_count
        if run.store and run.code.strip():
            shell.execution_count += 1
        figures = sys.modules.get("brig_kernel.figures")
        if figures is not None:
            figures.begin()
        cell = Cell(run.code, number)
        outside = set_variables(run.environment)
        error = self._interrupts.guard(run.id, lambda: self._run(cell, run))
        code = self._told(cell, error)
        if code != INTERRUPTED and self._channel.is_ours():
            late = self._interrupts.guard(run.id, self._show_figures)
            if error is None and late is not None:
                code = self._told(cell, late)
        set_variables(outside)
        return {
            "exit_code": code,
            "execution_count": number,
            "kept": True,
            "names": shell.count_names(),
        }

    def reset(self) -> None:
        """A fresh namespace; imported modules stay."""
        self._loop.close()
        self._shell.reset()
        self._cells.forget()
        if "matplotlib.pyplot" in sys.modules:
            sys.modules["matplotlib.pyplot"].close("all")
        os.environ.clear()
        os.environ.update(self._environment)
        try:
            os.chdir(self._directory)
        except OSError as error:
            write_stderr(f"kernel: working directory: {error}\n")

    def _run(self, cell: Any, run: Run) -> None:
        shell = self._shell
        try:
            pieces, shown = self._cells.compile(cell)
        finally:
            if run.store and run.code.strip():
                shell.history_manager.store_inputs(shell.execution_count - 1, cell.source, run.code)
        shell.events.trigger("pre_execute")
        try:
            value = self._evaluate(pieces)
            if shown and value is not None and not run.silent:
                self._show(value, run.store)
        finally:
            shell.events.trigger("post_execute")

    def _evaluate(self, pieces: list[CodeType]) -> object:
        space = self._shell.user_global_ns
        if any(code.co_flags & COROUTINE for code in pieces):
            return self._loop(run_awaiting(pieces, space))
        value = None
        for code in pieces:
            value = eval(code, space)
        return value

    def _show(self, value: object, store: bool) -> None:
        forms = self._shell.forms(value)
        if store:
            self._shell.displayhook.update_user_ns(value)
        if forms:
            self._shell.display_pub.publish(forms, main=True)

    def _show_figures(self) -> None:
        if "matplotlib.pyplot" in sys.modules:
            from brig_kernel import figures

            figures.send_open(self._channel)
            figures.close_all()

    def _told(self, cell: Any, error: BaseException | None) -> int:
        """Reports what ended a cell; gives its exit code."""
        if error is None:
            return 0
        from brig_kernel import failure

        if isinstance(error, SystemExit):
            if error.code not in (None, 0):
                failure.report(cell, self._channel, error)
            return (exit_code(error) or 0) & 0xFF
        self._shell.remember_traceback(failure.report(cell, self._channel, error))
        return INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1


def set_variables(variables: dict[str, Any]) -> dict[str, str | None]:
    """Sets variables, or takes them away where there is None; gives what was there."""
    before = {name: os.environ.get(name) for name in variables}
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    return before


def flush() -> None:
    """Writes out what Python holds back. A stream that the code has closed or replaced by nonsense is its own loss."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            pass
