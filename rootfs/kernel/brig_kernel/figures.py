"""Figures of matplotlib. Imported only once the program has imported pyplot."""

from __future__ import annotations

import binascii
import io
import sys
import weakref

from brig_kernel import display, write_stderr

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from brig_kernel.channel import Channel

# More than these are not sent: a program that forgets to close its figures has hundreds.
MAX_FIGURES = 20
# Of the chart, as JSON.
MAX_CHART = 256 << 10

_sent: weakref.WeakSet[Any] = weakref.WeakSet()
_count = 0


def adapt(pyplot: Any, channel: Channel) -> None:
    """Gives pyplot a `show` that sends the open figures and closes them, as a window closed by its user would be."""
    plain = pyplot.show

    def show(*arguments: Any, **options: Any) -> None:
        """Shows all open figures."""
        if not channel.is_ours() or pyplot.get_backend().lower() != "agg":
            plain(*arguments, **options)
            return
        send_open(channel)
        pyplot.close("all")

    pyplot.show = show


def send_open(channel: Channel) -> None:
    """Sends all open figures that were not sent before."""
    if not channel.is_ours():
        return
    pyplot = sys.modules["matplotlib.pyplot"]
    for number in pyplot.get_fignums():
        try:
            figure = pyplot.figure(number)
        except Exception as error:
            write_stderr(f"figure {number} left out: {type(error).__name__}: {error}\n")
            continue
        if figure.axes or figure.texts or figure.images:
            _send(channel, figure, number)


def is_figure(value: object) -> bool:
    """Whether a value is a figure."""
    module = sys.modules.get("matplotlib.figure")
    return module is not None and isinstance(value, module.Figure)


def mark_sent(figure: Any) -> None:
    """Keeps a figure from being sent again at the end."""
    _sent.add(figure)


def begin() -> None:
    """Counts anew: a piece of code of a context begins."""
    global _count
    _count = 0
    _sent.clear()


def close_all() -> None:
    """Closes all figures, so that the next code starts with none."""
    sys.modules["matplotlib.pyplot"].close("all")


def chart(figure: Any) -> dict[str, Any] | None:
    """What the figure shows, if it can be told."""
    from brig_kernel import channel, charts

    try:
        told = charts.chart(figure)
    except Exception:
        # A plot that is not simple, of whatever kind, is a plot that can't be told.
        return None
    return told if told is not None and len(channel.encode(told)) <= MAX_CHART else None


def png(figure: Any) -> str | None:
    """The figure as base64; with less dots where it would be too long."""
    for dots in (figure.dpi, figure.dpi / 2, figure.dpi / 4):
        buffer = io.BytesIO()
        try:
            figure.savefig(buffer, format="png", dpi=dots, bbox_inches="tight")
        except Exception as error:
            write_stderr(f"figure left out: {type(error).__name__}: {error}\n")
            return None
        text = binascii.b2a_base64(buffer.getvalue(), newline=False).decode()
        if len(text) <= display.MAX_DATUM:
            return text
    write_stderr(f"figure left out: larger than {display.MAX_DATUM} bytes\n")
    return None


def _send(channel: Channel, figure: Any, number: int) -> None:
    global _count
    if figure in _sent:
        return
    mark_sent(figure)
    _count += 1
    if _count > MAX_FIGURES:
        if _count == MAX_FIGURES + 1:
            write_stderr(f"more than {MAX_FIGURES} figures: the others are not shown\n")
        return
    data = display.forms(figure)
    if len(data) > 1:
        display.send_data(channel, data, main=False)
