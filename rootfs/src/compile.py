"""Compiles every module below the given folders; the result depends on the sources alone.

Each file is compiled in a process of its own: what the marshal format shares between constants depends on what the
process did before. `unchecked-hash` files hold no time stamp and are not compared with the source at each start, as
the image is read-only; `checked-hash` is for sources that may change.
"""

import os
import py_compile
import sys

MODES = {
    "unchecked": py_compile.PycInvalidationMode.UNCHECKED_HASH,
    "checked": py_compile.PycInvalidationMode.CHECKED_HASH,
}


def modules(folders: list[str]):
    for folder in folders:
        for place, folders_in, files in os.walk(folder):
            folders_in[:] = sorted(f for f in folders_in if f not in ("__pycache__", "tests"))
            yield from (os.path.join(place, f) for f in sorted(files) if f.endswith(".py"))


def compile_one(path: str, mode: str) -> None:
    # Some packages ship files in the syntax of other Pythons; they are never imported.
    try:
        py_compile.compile(path, doraise=True, invalidation_mode=MODES[mode])
    except (py_compile.PyCompileError, UnicodeDecodeError, ValueError) as error:
        print(f"not compiled: {path}: {type(error).__name__}", file=sys.stderr, flush=True)


def main(mode: str, folders: list[str]) -> None:
    running = 0
    for path in modules(folders):
        if running >= (os.cpu_count() or 1):
            os.wait()
            running -= 1
        if os.fork() == 0:
            try:
                compile_one(path, mode)
            finally:
                os._exit(0)
        running += 1
    while running:
        os.wait()
        running -= 1


main(sys.argv[1], sys.argv[2:])
