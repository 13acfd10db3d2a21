"""Makes matplotlib's font cache for the image, in an order that does not depend on the host's directories."""

import glob
import json
import os

PLACE = "/usr/share/brig/matplotlib"

os.makedirs(PLACE)
os.environ["MPLCONFIGDIR"] = PLACE

import matplotlib.font_manager  # noqa: E402  (the variable has to be set first; importing makes the cache)

caches = glob.glob(f"{PLACE}/fontlist-*.json")
if len(caches) != 1:
    raise SystemExit(f"matplotlib {matplotlib.__version__} left {len(caches)} font caches, expected 1: {caches}")
with open(caches[0], encoding="utf-8") as file:
    fonts = json.load(file)
for key in ("afmlist", "ttflist"):
    fonts[key].sort(key=lambda font: json.dumps(font, sort_keys=True))
with open(caches[0], "w", encoding="utf-8") as file:
    json.dump(fonts, file, indent=1, sort_keys=True)
for name in os.listdir(PLACE):
    if not name.endswith(".json"):
        os.unlink(os.path.join(PLACE, name))
