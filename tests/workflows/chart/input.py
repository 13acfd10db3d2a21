"""Daily temperatures of two towns."""

import json
import math
import random
import sys

source = random.Random(5)
highest = {"Oslo": -99.0, "Rome": -99.0}
with open(f"{sys.argv[1]}/temperatures.csv", "w") as file:
    file.write("day,Oslo,Rome\n")
    for day in range(365):
        season = -math.cos(2 * math.pi * (day - 15) / 365)
        values = {
            "Oslo": round(6 + 12 * season + source.gauss(0, 2), 1),
            "Rome": round(16 + 9 * season + source.gauss(0, 1.5), 1),
        }
        file.write(f"{day + 1},{values['Oslo']},{values['Rome']}\n")
        highest = {town: max(highest[town], value) for town, value in values.items()}
truth = {
    "png_size": [1500, 900],
    "png_format": "PNG",
    "has_colors": [True, True],
    "svg_words": ["Oslo", "Rome", "Temperature per day (°C)"],
    "svg_root": "svg",
    "jpg_size": [1500, 900],
    "highest": highest,
}
print(json.dumps(truth))
