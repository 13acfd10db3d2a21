"""Code of a context: compiled under a name of its own, with IPython's syntax where it is no Python."""

from __future__ import annotations

import linecache
from collections import deque

from brig_kernel.program import FUTURES, Program
from brig_kernel.sources import remember

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType

# Source that is kept for tracebacks and inspect. That of older code is forgotten.
MAX_CELLS = 1_000
MAX_CHARACTERS = 4 << 20


class Cell(Program):
    """One piece of code."""

    def __init__(self, source: str, number: int) -> None:
        super().__init__(source, [], None)
        self.name = f"<cell {number}>"


class Cells:
    """Compiles cells and keeps their source."""

    def __init__(self, transform: Callable[[str], str]) -> None:
        self._transform = transform
        self._futures = 0
        self._kept: deque[tuple[str, int]] = deque()
        self._characters = 0

    def compile(self, cell: Cell) -> tuple[list[CodeType], bool]:
        """The code of a cell; what is Python as it stands is taken as it stands."""
        try:
            return self._compile(cell)
        except SyntaxError as error:
            plain = error
        source = self._transformed(cell.source)
        if source is None or source.strip() == cell.source.strip():
            raise plain
        cell.source = source
        return self._compile(cell)

    def _compile(self, cell: Cell) -> tuple[list[CodeType], bool]:
        compiled = cell.compile(self._futures)
        self._keep(cell)
        self._futures |= compiled[0][0].co_flags & FUTURES
        return compiled

    def forget(self) -> None:
        """Forgets what earlier cells leave to later ones."""
        self._futures = 0

    def _transformed(self, source: str) -> str | None:
        # IPython drops empty lines at the start, and with them the numbers of the others.
        body = source.lstrip("\n")
        try:
            return "\n" * (len(source) - len(body)) + self._transform(body)
        except SyntaxError:
            return None

    def _keep(self, cell: Cell) -> None:
        remember(cell.name, cell.source)
        self._kept.append((cell.name, len(cell.source)))
        self._characters += len(cell.source)
        while len(self._kept) > MAX_CELLS or (self._characters > MAX_CHARACTERS and len(self._kept) > 1):
            name, size = self._kept.popleft()
            self._characters -= size
            linecache.cache.pop(name, None)
