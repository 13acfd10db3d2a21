"""Output that leaves at once, a print in one piece.

`python3 -u` writes each part of a print by itself: two system calls for a line, and lines of two threads mixed up. With
buffered lines, what was printed without a newline is lost when the program is killed. So stdout is unbuffered, and
print puts its parts together first.
"""

from __future__ import annotations

import builtins
import io
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def install() -> None:
    """Replaces print, for the stdout that the program starts with; any other file is left to Python's own."""
    plain, stdout = builtins.print, sys.stdout
    if stdout is None:
        return

    def print(*values: object, file: Any = None, flush: bool = False, **how: Any) -> None:  # noqa: A001
        target = sys.stdout if file is None else file
        if target is not stdout:
            plain(*values, file=target, flush=flush, **how)
            return
        text = io.StringIO(newline="")
        plain(*values, file=text, **how)
        stdout.write(text.getvalue())
        if flush:
            stdout.flush()

    print.__doc__ = plain.__doc__
    print.__qualname__ = plain.__qualname__
    builtins.print = print
