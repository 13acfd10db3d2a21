"""What programs find beyond plain Python: `display`, a `plt.show` that shows, a `print` that leaves in one piece."""

from __future__ import annotations

import builtins
import sys

from brig_kernel import printing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from brig_kernel.channel import Channel


class PyplotFinder:
    """Waits on sys.meta_path for the import of pyplot, then makes its `show` send the figures."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != "matplotlib.pyplot":
            return None
        sys.meta_path.remove(self)
        finder = sys.modules["_frozen_importlib_external"].PathFinder
        spec = finder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_adapt(module: Any) -> None:
                load(module)
                from brig_kernel import figures

                figures.adapt(module, self._channel)

            spec.loader.exec_module = load_and_adapt
        return spec


def install(channel: Channel) -> None:
    """Makes them available, once."""
    if "display" in vars(builtins):
        return

    def display(*values: object) -> None:
        """Shows values as rich results, as in a notebook."""
        from brig_kernel import display as module

        for value in values:
            module.send(channel, value, main=False)

    printing.install()
    builtins.display = display  # type: ignore[attr-defined]
    sys.meta_path.insert(0, PyplotFinder(channel))
