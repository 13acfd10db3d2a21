"""The program run again in processes that multiprocessing starts anew (spawn, forkserver).

Such a process runs the main file under the name `__mp_main__`, so that what is defined there can be found by name. The
program came by a pipe and lies in no file; so a small file is made that holds it and calls `run`. In the new process
`__file__`, tracebacks and `await` are as in the first one.
"""

from __future__ import annotations

import _ast
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

STUB = """\
# Runs a program again in a process started by multiprocessing.
import sys
sys.path.insert(0, {place!r})
from brig_kernel import replay
del sys.path[0]
replay.run(globals(), __file__, {source!r}, {name!r}, {file!r})
"""


def write(source: str, name: str, file: str | None) -> str:
    """Makes the file; gives its path."""
    place = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    path = os.path.join(os.environ.get("TMPDIR", "/tmp"), f".brig-{os.getpid()}.py")
    part = f"{path}.part"
    with open(part, "w", encoding="utf-8", errors="surrogatepass") as stub:
        stub.write(STUB.format(place=place, source=source, name=name, file=file))
    os.replace(part, path)
    return path


def run(space: dict[str, Any], stub: str, source: str, name: str, file: str | None) -> None:
    """Runs the program in the namespace that the file was run in."""
    from brig_kernel.sources import remember

    remember(name, source)
    _name_file(stub)
    for key in list(space):
        if not key.startswith("__"):
            del space[key]
    if file is None:
        del space["__file__"]
    else:
        space["__file__"] = file
    code = compile(source, name, "exec", _ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    result = eval(code, space)
    if result is not None:
        import asyncio

        asyncio.run(result)


def _name_file(stub: str) -> None:
    """Lets this process give the file, not what `__file__` says, to those it starts itself."""
    spawn: Any = sys.modules.get("multiprocessing.spawn")
    if spawn is None:
        return
    prepare = spawn.get_preparation_data

    def get_preparation_data(name: str) -> dict[str, Any]:
        return {**prepare(name), "init_main_from_path": stub}

    spawn.get_preparation_data = get_preparation_data
