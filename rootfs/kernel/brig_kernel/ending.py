"""The end of an interpreter that was warmed up: what Python does at its end, but for what was imported ahead.

Python takes all its modules apart, and whatever it touches of what a zygote shares with its children has to be copied
first: that costs longer than a short program as a whole. So here the threads are joined, the functions of atexit run, the
program's own modules and objects are taken apart in Python's order, all is flushed, and the process ends.

What only Python itself can do is left to it: threads that go on, and streams that can't be flushed.
"""

from __future__ import annotations

import _io
import _thread
import _weakref
import atexit
import gc
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


class Ending:
    """Knows what was there before the program."""

    def __init__(self, leave: Callable[..., None], modules: dict[str, object]) -> None:
        self._leave = leave
        # Those that were imported ahead: held on to, as to let go of each would write to it.
        self._modules = modules
        self._known = frozenset(sys.modules)
        self._last = next(reversed(sys.modules))

    def end(self, code: int | None) -> None:
        """Ends the process; returns if only Python itself can."""
        if code is not None and not -(1 << 31) <= code < 1 << 31:
            return
        try:
            threading = sys.modules.get("threading")
            if threading is not None:
                threading._shutdown()
            if _thread._count():
                return
            # For what is left to Python alone.
            atexit.unregister(self._leave)
            atexit._run_exitfuncs()
            if not flush():
                return
            self._take_apart()
            if not flush():
                return
            flush_c()
        except BaseException:
            return
        os._exit((code or 0) & 0xFF)

    def _take_apart(self) -> None:
        """As `finalize_modules` of CPython does it."""
        for name in ("last_type", "last_value", "last_traceback", "last_exc"):
            if hasattr(sys, name):
                setattr(sys, name, None)
        flush_files()
        own = []
        for name in ["__main__", *self._own()]:
            module = sys.modules.pop(name, None)
            try:
                own.append(_weakref.ref(module))
            except TypeError:
                pass  # Something else that was put among the modules.
            module = None
        gc.collect()
        for reference in reversed(own):
            module = reference()
            if module is not None and isinstance(module, type(sys)):
                clear(vars(module))
            module = None
        gc.collect()

    def _own(self) -> list[str]:
        """The modules that the program has imported, the first one first. All the others are not even looked at."""
        names = []
        for name in reversed(sys.modules):
            if name == self._last:
                break
            if name not in self._known:
                names.append(name)
        names.reverse()
        return names


def clear(names: dict[str, Any]) -> None:
    """As `_PyModule_ClearDict` does it: first what begins with one underscore."""
    for private in (True, False):
        for name in list(names):
            if name != "__builtins__" and (not private or (name[:1] == "_" and name[:2] != "__")):
                names[name] = None


def flush() -> bool:
    """Writes out what Python holds back; whether that went well."""
    for stream in (sys.stdout, sys.stderr):
        if stream is None or getattr(stream, "closed", False):
            continue
        try:
            stream.flush()
        except Exception:
            return False
    return True


def flush_files() -> None:
    """Writes out what the program's open files hold back: the collector may close what is below a file before the file."""
    for kind in (_io.TextIOWrapper, (_io.BufferedWriter, _io.BufferedRandom)):
        for one in gc.get_objects():
            if issubclass(type(one), kind):
                try:
                    one.flush()
                except Exception:
                    pass  # It is closed, or its end will say what is wrong.


def flush_c() -> None:
    """Writes out what the C library holds back."""
    import ctypes

    ctypes.pythonapi.fflush(None)
