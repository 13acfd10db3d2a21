"""Exceptions that end a program: their traceback starts at the program's own code."""

from __future__ import annotations

import linecache
import os
import sys
import traceback

from brig_kernel import write_stderr
from brig_kernel.program import split_frames
from brig_kernel.sources import remember

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType

    from brig_kernel.channel import Channel
    from brig_kernel.program import Program

MAX_MESSAGE = 4 << 10
MAX_TRACEBACK = 64 << 10

# The whole layer.
HERE = os.path.dirname(os.path.dirname(__file__))


def report(program: Program, channel: Channel, error: BaseException) -> str:
    """Sends the exception and prints it as Python does; gives what is printed."""
    remember(program.name, program.source)
    line = _line(program, error)
    text = ""
    if type(error).__name__ == "UsageError" and type(error).__module__.startswith("IPython."):
        # A magic used wrongly: its frames say nothing.
        write_stderr(f"UsageError: {_message(error)}\n")
    elif not isinstance(error, SystemExit):
        _strip(program, error, set())
        text = _text(program, error)
        _print(error, text)
    if channel.is_ours():
        event = {
            "ev": "error",
            "name": type(error).__name__,
            "message": _cut(_message(error), MAX_MESSAGE),
            "line": line,
            "traceback": _cut(text, MAX_TRACEBACK),
        }
        channel.send(event)
    return text


def shown(error: BaseException) -> str:
    """An exception that ends nothing, as Python prints it."""
    try:
        return "".join(traceback.format_exception(error))
    except Exception:
        return f"{type(error).__name__}: {_message(error)}\n"


def _line(program: Program, error: BaseException) -> int | None:
    """The line of the program that was being run, or that can't be compiled."""
    if isinstance(error, SyntaxError) and error.filename == program.name:
        return error.lineno
    frames = [trace for trace in split_frames(error.__traceback__) if _is_users(program, trace)]
    return frames[-1].tb_lineno if frames else None


def _strip(program: Program, error: BaseException | None, seen: set[int]) -> None:
    """Takes our frames, and those of the event loop above the program, off the exception and off what led to it."""
    if error is None or id(error) in seen:
        return
    seen.add(id(error))
    frames = list(split_frames(error.__traceback__))
    first = next((trace for trace in frames if _is_users(program, trace)), None)
    if first is None:
        first = next((trace for trace in frames if not trace.tb_frame.f_code.co_filename.startswith(HERE)), None)
    error.__traceback__ = first
    # A print of the program that failed in a value's own code passes through ours.
    for trace in split_frames(first):
        while trace.tb_next is not None and trace.tb_next.tb_frame.f_code.co_filename.startswith(HERE):
            trace.tb_next = trace.tb_next.tb_next
    _strip(program, error.__cause__, seen)
    _strip(program, error.__context__, seen)
    for member in getattr(error, "exceptions", None) or ():
        if isinstance(member, BaseException):
            _strip(program, member, seen)


def _text(program: Program, error: BaseException) -> str:
    """The traceback as Python prints it."""
    if isinstance(error, SyntaxError) and error.filename == program.name and error.text is None and error.lineno:
        # Python looks for the line in a file.
        error.text = linecache.getline(program.name, error.lineno)
    try:
        if error.__traceback__ is None and error.__cause__ is None and error.__context__ is None:
            return "".join(traceback.format_exception_only(error))
        return "".join(traceback.format_exception(error))
    except Exception:
        return f"{type(error).__name__}: {_message(error)}\n"


def _print(error: BaseException, text: str) -> None:
    if sys.excepthook is sys.__excepthook__:
        write_stderr(text)
        return
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except BaseException as other:
        write_stderr(
            f"Error in sys.excepthook: {type(other).__name__}: {_message(other)}\n\nOriginal exception was:\n{text}"
        )


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "<exception str() failed>"


def _is_users(program: Program, trace: TracebackType) -> bool:
    return trace.tb_frame.f_code.co_filename == program.name


def _cut(text: str, most: int) -> str:
    """Leaves out the middle: a traceback's end says what happened, its start where."""
    if len(text.encode("utf-8", "replace")) <= most:
        return text
    # A character is at most four bytes long.
    half = most // 8 - 16
    return f"{text[:half]}\n... (cut) ...\n{text[-half:]}"
