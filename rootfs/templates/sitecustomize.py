"""Runs at each start of the Python of an image: warms matplotlib, keeps byte code out of working directories.

matplotlib refuses a configuration directory that it can't write to, and rebuilds its font cache (seconds of work) where
it finds none. The directory named by MPLCONFIGDIR lies on a fresh tmpfs, the cache made with the image on a read-only
one; so the cache is copied, a few kilobytes, when matplotlib is imported for the first time.

Interpreters started with -I (the kernel layer's, and those that multiprocessing starts for it) do not look at
PYTHONDONTWRITEBYTECODE, and would put a __pycache__ beside modules that came as input files.
"""

import os
import sys

WARM = "/usr/share/brig/matplotlib"


class _MatplotlibCache:
    """Sits on sys.meta_path until matplotlib is imported; finds nothing itself."""

    @classmethod
    def find_spec(cls, name: str, _path: object = None, _target: object = None) -> None:
        if name == "matplotlib":
            sys.meta_path.remove(cls)
            try:
                _copy_cache()
            except OSError:
                pass  # matplotlib will make its own cache, or say what is wrong.


def _copy_cache() -> None:
    place = os.environ.get("MPLCONFIGDIR")
    if not place:
        return
    os.makedirs(place, exist_ok=True)
    for name in os.listdir(WARM):
        target = os.path.join(place, name)
        if os.path.exists(target):
            continue
        with open(os.path.join(WARM, name), "rb") as warm:
            content = warm.read()
        # Another process may import matplotlib at the same moment and must not see half a file.
        part = f"{target}.{os.getpid()}"
        with open(part, "xb") as copy:
            copy.write(content)
        os.replace(part, target)


sys.meta_path.insert(0, _MatplotlibCache)
if os.environ.get("PYTHONDONTWRITEBYTECODE"):
    sys.dont_write_bytecode = True
