"""The program to be run: its `__main__`, its source for tracebacks, and its code."""

from __future__ import annotations

import _ast
import os
import sys

from brig_kernel.channel import ChannelError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType, TracebackType

# `ast` has these too, but its import is heavy.
PARSE = _ast.PyCF_ONLY_AST | _ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
AWAIT = _ast.PyCF_ALLOW_TOP_LEVEL_AWAIT

# Bits of co_flags: the code is a coroutine; `from __future__` imports, which hold for the last expression too.
COROUTINE = 0x80
FUTURES = 0x1FE0000

NO_NAME = "<code>"


class Source:
    """The loader of `__main__`: tracebacks, warnings and inspect ask it for the source, which is in no file."""

    def __init__(self, text: str) -> None:
        self._text = text

    def get_source(self, _name: str) -> str:
        return self._text


class Main(type(sys)):  # type: ignore[misc]
    """The module `__main__`.

    Its globals are those of a plain program, `__file__` is where the program would lie. But that file need not exist,
    and multiprocessing (and what is made after it, as joblib) runs the main file again in processes that it does not
    fork: they ask the module, not its globals, and get a file that does so (see `replay`).
    """

    program: Program

    @property
    def __file__(self) -> str:
        asking = sys._getframe(1).f_globals.get("__name__", "")
        if str(asking).endswith(".spawn"):
            return self.program.replay_file()
        try:
            return str(self.__dict__["__file__"])
        except KeyError:
            raise AttributeError("module '__main__' has no attribute '__file__'") from None

    @__file__.setter
    def __file__(self, value: str) -> None:
        self.__dict__["__file__"] = value


class Program:
    """Source text with the name and the arguments it runs under."""

    def __init__(self, source: str, arguments: list[str], filename: str | None) -> None:
        self.source = source.removeprefix("\ufeff")
        self.arguments = arguments
        self.file = os.path.join(os.getcwd(), filename) if filename else None
        # The name that tracebacks show.
        self.name = self.file or NO_NAME
        self._replay: tuple[int, str] | None = None

    @classmethod
    def of(cls, request: dict[str, object]) -> Program:
        """Reads a request."""
        code, filename = request.get("code"), request.get("filename")
        arguments = request.get("argv") or []
        if request.get("op") != "run" or not isinstance(code, str):
            raise ChannelError("request is not a run of code")
        if not isinstance(arguments, list) or not all(isinstance(argument, str) for argument in arguments):
            raise ChannelError("argv of the request is not a list of strings")
        if filename is not None and not isinstance(filename, str):
            raise ChannelError("filename of the request is not a string")
        return cls(code, arguments, filename)

    def run(self) -> tuple[bool, object]:
        """Runs the program; gives whether it ends in an expression to be shown, and its value."""
        space = self._enter_main()
        pieces, shown = self.compile()
        if any(code.co_flags & COROUTINE for code in pieces):
            import asyncio

            return shown, asyncio.run(run_awaiting(pieces, space))
        value = None
        for code in pieces:
            value = eval(code, space)
        return shown, value

    def compile(self, futures: int = 0) -> tuple[list[CodeType], bool]:
        """The code of all statements, and of the last expression apart if its value is to be shown.

        `futures` are the `from __future__` imports of earlier code that hold for this too.
        """
        tree = compile(self.source, self.name, "exec", PARSE | futures, dont_inherit=True)
        last = tree.body[-1] if tree.body else None
        if not isinstance(last, _ast.Expr) or self._is_muted(last):
            return [compile(tree, self.name, "exec", AWAIT | futures, dont_inherit=True)], False
        del tree.body[-1]
        first = compile(tree, self.name, "exec", AWAIT | futures, dont_inherit=True)
        flags = AWAIT | first.co_flags & FUTURES
        second = compile(_ast.Expression(last.value), self.name, "eval", flags, dont_inherit=True)
        return [first, second], True

    def own_modules(self) -> _StandardPath:
        """For our own imports: files of the working directory don't shadow the standard library."""
        return _StandardPath()

    def replay_file(self) -> str:
        """A file that runs the program again in another process; made when first asked for."""
        process = os.getpid()
        if self._replay is None or self._replay[0] != process:
            from brig_kernel import replay

            self._replay = (process, replay.write(self.source, self.name, self.file))
        return self._replay[1]

    def _is_muted(self, last: _ast.Expr) -> bool:
        """As in notebooks, a semicolon at the end mutes."""
        lines = self.source.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        line = lines[last.end_lineno - 1] if last.end_lineno else ""
        return line.encode("utf-8", "replace")[last.end_col_offset :].lstrip().startswith(b";")

    def _enter_main(self) -> dict[str, object]:
        sys.argv = self.arguments or [self.file or "-c"]
        open_path(os.getcwd())
        # Kept by the class: among the module's attributes it would be a global variable of the program.
        Main.program = self
        main = Main("__main__")
        space = main.__dict__
        space.update(__loader__=Source(self.source), __builtins__=sys.modules["builtins"])
        if self.file is not None:
            space["__file__"] = self.file
        sys.modules["__main__"] = main
        return space


def open_path(first: str) -> None:
    """Lets modules be found in a folder, and where variables say; isolated interpreters ignore these."""
    sys.path.insert(0, first)
    sys.path[1:1] = [path for path in os.environ.get("PYTHONPATH", "").split(":") if path]
    sys.dont_write_bytecode |= bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))


class _StandardPath:
    """Takes the program's entries off sys.path for a while."""

    def __enter__(self) -> None:
        self._path = sys.path
        here = os.path.dirname(os.__file__)
        sys.path = [path for path in sys.path if path.startswith(here)]

    def __exit__(self, kind: object, value: object, trace: TracebackType | None) -> None:
        sys.path = self._path


async def run_awaiting(pieces: list[CodeType], space: dict[str, object]) -> object:
    value: object = None
    for code in pieces:
        value = eval(code, space)
        if code.co_flags & COROUTINE:
            value = await value  # type: ignore[misc]
    return value


def split_frames(trace: TracebackType | None) -> Iterator[TracebackType]:
    """The links of a traceback."""
    while trace is not None:
        yield trace
        trace = trace.tb_next
