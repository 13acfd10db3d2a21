"""Values as rich results: what their `_repr_*_` methods give, within bounds."""

from __future__ import annotations

import binascii
import sys

from brig_kernel import write_stderr

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from brig_kernel.channel import Channel

MAX_DATUM = 512 << 10

METHODS = {
    "_repr_html_": "text/html",
    "_repr_markdown_": "text/markdown",
    "_repr_svg_": "image/svg+xml",
    "_repr_png_": "image/png",
    "_repr_jpeg_": "image/jpeg",
    "_repr_latex_": "text/latex",
    "_repr_json_": "application/json",
}


# Not a form of the value: what a chart shows, which travels beside the forms.
CHART = "application/vnd.brig.chart+json"


def send(channel: Channel, value: object, *, main: bool) -> None:
    """Sends a value in all forms it has."""
    if channel.is_ours():
        send_data(channel, forms(value), main=main)


def _own_forms(value: object) -> dict[str, object]:
    data: dict[str, object] = {"text/plain": _plain(value), **_rich(value)}
    figures = sys.modules.get("brig_kernel.figures")
    if figures is not None and figures.is_figure(value):
        image = figures.png(value)
        if image is not None:
            data["image/png"] = image
            data[CHART] = figures.chart(value)
            figures.mark_sent(value)
    return data


# What gives the forms of a value; a context asks IPython.
forms: Callable[[object], dict[str, object]] = _own_forms


def send_data(
    channel: Channel,
    forms: Mapping[str, object],
    *,
    main: bool,
    display_id: str | None = None,
    update: bool = False,
) -> None:
    """Sends forms of a value, without those that are too long, each and together; what is left out is said."""
    chart = forms.get(CHART)
    data: dict[str, str] = {}
    for kind, datum in forms.items():
        if kind != CHART:
            _add(data, str(kind), datum)
    for kind, text in list(data.items()):
        if len(text) <= MAX_DATUM and len(text.encode("utf-8", "replace")) <= MAX_DATUM:
            continue
        if kind == "text/plain":
            write_stderr(f"display: text/plain of {len(text)} characters cut\n")
            data[kind] = text[: MAX_DATUM // 8] + "\n... (cut)"
        else:
            write_stderr(
                f"display: {kind} of {len(text)} characters left out, at most {MAX_DATUM} bytes can be shown\n"
            )
            del data[kind]
    event = {"ev": "result", "main": main, "display_id": display_id, "data": data}
    if update:
        event["update"] = True
    if chart:
        event["chart"] = chart
    while not channel.send(event) and len(data) > 1:
        longest = max((kind for kind in data if kind != "text/plain"), key=lambda kind: len(data[kind]))
        write_stderr(f"display: {longest} left out, the forms of the value are too long together\n")
        del data[longest]


def _plain(value: object) -> str:
    try:
        return repr(value)
    except Exception as error:
        write_stderr(f"display: repr of a {type(value).__name__} failed: {_said(error)}\n")
        return f"<{type(value).__name__} object, its repr failed with {type(error).__name__}>"


def _rich(value: object) -> dict[str, str]:
    data: dict[str, str] = {}
    # A class has the methods of its instances; an object that has any attribute has no meaning for these.
    if isinstance(value, type) or _method(value, "_brig_answers_to_everything_") is not None:
        return data
    bundle = _call(value, "_repr_mimebundle_")
    if isinstance(bundle, tuple):
        bundle = bundle[0] if bundle else None
    if isinstance(bundle, dict):
        for kind, datum in bundle.items():
            _add(data, str(kind), datum)
    for name, kind in METHODS.items():
        if kind not in data:
            datum = _call(value, name)
            # Some give the metadata too.
            _add(data, kind, datum[0] if isinstance(datum, tuple) and datum and kind != "application/json" else datum)
    return data


def _add(data: dict[str, str], kind: str, datum: object) -> None:
    if isinstance(datum, (bytes, bytearray)):
        data[kind] = binascii.b2a_base64(datum, newline=False).decode()
    elif isinstance(datum, str):
        data[kind] = datum
    elif datum is not None:
        import json

        try:
            data[kind] = json.dumps(datum)
        except (TypeError, ValueError, RecursionError) as error:
            write_stderr(f"display: {kind} left out: {_said(error)}\n")


def _call(value: object, name: str) -> object:
    method = _method(value, name)
    if method is None:
        return None
    try:
        return method()
    except NotImplementedError:
        return None
    except Exception as error:
        write_stderr(f"display: {name} of a {type(value).__name__} failed: {_said(error)}\n")
        return None


def _method(value: object, name: str):  # type: ignore[no-untyped-def]
    try:
        method = getattr(value, name, None)
    except Exception:
        return None
    return method if callable(method) else None


def _said(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"[:500]
    except Exception:
        return type(error).__name__
