"""What simple plots show, as data: type, title, labels and units of the axes, series.

Read from the artists of an Axes, as nothing else knows what was plotted. What is not one of the types below is
`unknown`, with its title and labels. A figure with several Axes is a `superchart`, whose elements are charts.
"""

from __future__ import annotations

import math
import re
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

# More is not told at all: half a series would be wrong.
MAX_POINTS = 5_000
MAX_AXES = 16
MAX_TEXT = 500

# Parts of the names of matplotlib's and pandas' converters of dates.
DATES = ("Date", "Timestamp", "Period")

BANDS = ("PolyCollection", "FillBetweenPolyCollection")

UNIT = re.compile(r"\(([^()]+)\)\s*$|\[([^\[\]]+)\]\s*$")


class TooMuch(Exception):
    """More points than are told."""


def chart(figure: Any) -> dict[str, Any] | None:
    """The chart of a figure; None if there is nothing plotted, or too much."""
    axes = [one for one in figure.axes if one.has_data() and one.get_label() != "<colorbar>"]
    if not axes or len(axes) > MAX_AXES:
        return None
    budget = [MAX_POINTS]
    try:
        if len(axes) == 1:
            return _of(axes[0], budget)
        title = figure.get_suptitle() if hasattr(figure, "get_suptitle") else ""
        return {"type": "superchart", "title": _text(title), "elements": [_of(one, budget) for one in axes]}
    except TooMuch:
        return None


def _of(axes: Any, budget: list[int]) -> dict[str, Any]:
    kind = _kind(axes)
    told = {"type": kind, "title": _text(axes.get_title()), "elements": _ELEMENTS[kind](axes)}
    budget[0] -= sum(len(one.get("points") or one.get("outliers") or (0,)) for one in told["elements"])
    if budget[0] < 0:
        raise TooMuch
    if kind == "pie":
        return told
    for name, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
        label = axis.get_label_text()
        found = UNIT.search(label)
        told[f"{name}_label"] = _text(label)
        told[f"{name}_unit"] = _text(found.group(1) or found.group(2)) if found else None
        if kind in ("line", "scatter"):
            told |= _ticks(axes, name, axis)
    return told


def _ticks(axes: Any, name: str, axis: Any) -> dict[str, Any]:
    low, high = sorted(axis.get_view_interval())
    shown = [tick for tick in zip(axis.get_ticklocs(), axis.get_ticklabels(), strict=False) if low <= tick[0] <= high]
    labels = [_text(label.get_text()) or "" for _, label in shown]
    scale = axis.get_scale()
    units = _units(axis)
    if any(kind in units for kind in DATES):
        scale = "datetime"
    elif "StrCategory" in units:
        scale = "categorical"
    values = [_point(axis, location) for location, _ in shown]
    return {f"{name}_ticks": values, f"{name}_tick_labels": labels, f"{name}_scale": scale}


def _kind(axes: Any) -> str:
    names = [_class(artist) for artist in axes.get_children() if artist is not axes.patch and _is_plotted(axes, artist)]
    bars = [container for container in axes.containers if type(container).__name__ == "BarContainer"]
    if bars and all(name in ("Rectangle", "Line2D", "LineCollection") for name in names):
        return "bar"
    if names and all(name == "Wedge" for name in names):
        return "pie"
    if names and all(name in ("PathPatch", "Line2D") for name in names) and _boxes(axes):
        return "box_and_whisker"
    # Bands around lines say how certain these are.
    if "Line2D" in names and all(name in ("Line2D", *BANDS) for name in names):
        return "line"
    if names and all(name == "PathCollection" or name == "Line2D" for name in names):
        return "scatter"
    return "unknown"


def _class(artist: Any) -> str:
    """The name of the artist's class of matplotlib; others derive their own."""
    for kind in type(artist).__mro__:
        if kind.__module__.startswith("matplotlib."):
            return kind.__name__
    return ""


def _is_plotted(axes: Any, artist: Any) -> bool:
    """Not what frames, explains or divides a plot."""
    if _class(artist) in ("Text", "Annotation", "Legend", "XAxis", "YAxis", "Spine"):
        return False
    return not (_class(artist) == "Line2D" and _is_rule(axes, artist))


def _is_rule(axes: Any, line: Any) -> bool:
    """Lines of axhline and axvline lie in the coordinates of the axes."""
    return line.get_transform() in (axes.get_yaxis_transform(which="grid"), axes.get_xaxis_transform(which="grid"))


def _lines(axes: Any) -> list[dict[str, Any]]:
    lines = [line for line in axes.lines if not _is_rule(axes, line)]
    return [
        {"label": _label(line, f"Line {number}"), "points": _points(axes, line.get_xdata(), line.get_ydata())}
        for number, line in enumerate(lines)
    ]


def _scatters(axes: Any) -> list[dict[str, Any]]:
    told = []
    for number, collection in enumerate(axes.collections):
        offsets = collection.get_offsets()
        points = _points(axes, [one[0] for one in offsets], [one[1] for one in offsets])
        told.append({"label": _label(collection, f"Series {number}"), "points": points})
    return told


def _bars(axes: Any) -> list[dict[str, Any]]:
    told = []
    for number, container in enumerate(one for one in axes.containers if type(one).__name__ == "BarContainer"):
        upright = getattr(container, "orientation", "vertical") != "horizontal"
        axis = axes.xaxis if upright else axes.yaxis
        names = {
            round(float(location), 6): label.get_text()
            for location, label in zip(axis.get_ticklocs(), axis.get_ticklabels(), strict=False)
        }
        for bar in container:
            middle = bar.get_x() + bar.get_width() / 2 if upright else bar.get_y() + bar.get_height() / 2
            name = names.get(round(float(middle), 6)) or _nearest(axis, names, middle)
            value = bar.get_height() if upright else bar.get_width()
            told.append({"label": name, "group": _label(container, f"Group {number}"), "value": _number(value)})
    return told


def _nearest(axis: Any, names: dict[float, str], middle: float) -> str:
    """Bars of a group stand beside the tick of their category; others are named by where they stand."""
    units = _units(axis)
    formatter = type(axis.get_major_formatter()).__name__
    if names and ("StrCategory" in units or formatter in ("FixedFormatter", "FuncFormatter")):
        nearest = min(names, key=lambda location: abs(location - middle))
        if abs(nearest - middle) <= 0.5:
            return names[nearest]
    return f"{middle:.6g}"


def _pie(axes: Any) -> list[dict[str, Any]]:
    wedges = [patch for patch in axes.patches if _class(patch) == "Wedge"]
    return [
        {
            "label": _label(wedge, f"Part {number}"),
            "angle": _number(abs(wedge.theta2 - wedge.theta1)),
            "radius": _number(wedge.r),
        }
        for number, wedge in enumerate(wedges)
    ]


def _boxes(axes: Any) -> list[dict[str, Any]]:
    """Boxes of `boxplot`: seven lines each, or six and a patch, in the order in which it makes them."""
    told = []
    labels = [label.get_text() for label in axes.get_xticklabels()]
    for number, (whiskers, median, fliers) in enumerate(_by_box(axes)):
        lower, upper = whiskers
        upright = len(set(map(float, lower.get_xdata()))) == 1
        read = (lambda line: line.get_ydata()) if upright else (lambda line: line.get_xdata())
        if not upright:
            labels = [label.get_text() for label in axes.get_yticklabels()]
        told.append(
            {
                "label": labels[number] if number < len(labels) else str(number + 1),
                "min": _number(read(lower)[1]),
                "first_quartile": _number(read(lower)[0]),
                "median": _number(read(median)[0]),
                "third_quartile": _number(read(upper)[0]),
                "max": _number(read(upper)[1]),
                "outliers": [_number(value) for value in (read(fliers) if fliers is not None else ())],
            }
        )
    return told


def _by_box(axes: Any) -> list[tuple[tuple[Any, Any], Any, Any]]:
    lines = list(axes.lines)
    count = sum(1 for patch in axes.patches if _class(patch) == "PathPatch")
    if not count:
        count = sum(1 for line in lines if len(line.get_xdata()) == 5)
        lines = [line for line in lines if len(line.get_xdata()) != 5]
    if not count or len(lines) not in (5 * count, 6 * count):
        return []
    each = len(lines) // count
    told = []
    for number in range(count):
        # Two whiskers, two caps, the median, the outliers.
        mine = lines[number * each : number * each + each]
        if [len(line.get_xdata()) for line in mine[:5]] != [2] * 5:
            return []
        told.append(((mine[0], mine[1]), mine[4], mine[5] if each == 6 else None))
    return told


_ELEMENTS = {
    "line": _lines,
    "scatter": _scatters,
    "bar": _bars,
    "pie": _pie,
    "box_and_whisker": _boxes,
    "unknown": lambda _axes: [],
}


def _points(axes: Any, across: Iterable[Any], up: Iterable[Any]) -> list[list[Any]]:
    across, up = list(across), list(up)
    if len(across) > MAX_POINTS:
        raise TooMuch
    return [[_point(axes.xaxis, x), _point(axes.yaxis, y)] for x, y in zip(across, up, strict=False)]


def _point(axis: Any, value: Any) -> Any:
    """A number, or the text of a date or a category."""
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if isinstance(value, str):
        return _text(value)
    numpy = sys.modules["numpy"]
    if isinstance(value, numpy.datetime64):
        return str(value.astype("datetime64[s]"))
    units = _units(axis)
    if "Period" in units:
        # pandas counts periods where it knows their length.
        return sys.modules["pandas"].Period(ordinal=int(value), freq=axis.freq).start_time.isoformat()
    if any(kind in units for kind in DATES):
        from matplotlib import dates

        return dates.num2date(float(value)).replace(tzinfo=None).isoformat()
    return _number(value)


def _units(axis: Any) -> str:
    """The name of what turns the caller's values into numbers."""
    converter = axis.get_converter() if hasattr(axis, "get_converter") else axis.converter
    return type(converter).__name__


def _number(value: Any) -> float | None:
    number = float(value)
    return number if math.isfinite(number) else None


def _label(artist: Any, otherwise: str) -> str:
    label = str(artist.get_label())
    return otherwise if label.startswith("_") else label[:MAX_TEXT]


def _text(text: object) -> str | None:
    return str(text)[:MAX_TEXT] or None
