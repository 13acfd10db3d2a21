"""The packages of the layer: IPython and what its shell needs.

They are in no folder of sys.path. A finder of their own finds them: before all others while the shell is made, which
must get the versions that were tried with it; after all others from then on, so that a template's own packages are
found first by the code that a context runs.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any

PACKAGES = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "packages")


class LayerError(Exception):
    """The layer was put together without its packages."""


class Finder:
    """Finds packages of the layer by their name."""

    def __init__(self) -> None:
        try:
            names = os.listdir(PACKAGES)
        except OSError as error:
            raise LayerError(f"packages of the kernel layer: {error}") from None
        self._names = {name.removesuffix(".py") for name in names}
        self._find = sys.modules["_frozen_importlib_external"].PathFinder.find_spec

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if path is not None or name not in self._names:
            return None
        return self._find(name, [PACKAGES], target)

    def __enter__(self) -> None:
        sys.meta_path.insert(0, self)  # type: ignore[arg-type]

    def __exit__(self, kind: object, value: object, trace: TracebackType | None) -> None:
        sys.meta_path.remove(self)  # type: ignore[arg-type]
        sys.meta_path.append(self)  # type: ignore[arg-type]
