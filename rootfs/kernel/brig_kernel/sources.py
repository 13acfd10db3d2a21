"""Source text for those who show it: tracebacks look for it in linecache."""

from __future__ import annotations

import linecache


def remember(name: str, text: str) -> None:
    """Makes the lines of a program known under its name. Each ends with a newline, as linecache has them."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    linecache.cache[name] = (len(text), None, [f"{line}\n" for line in lines], name)
