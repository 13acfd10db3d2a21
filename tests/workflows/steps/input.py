"""Readings of three sensors, some out of range; every reading is a tenth, so that means are exact enough to compare."""

import json
import random
import sys

source = random.Random(8)
good: dict[str, list[int]] = {"a": [], "b": [], "c": []}
with open(f"{sys.argv[1]}/readings.txt", "w") as file:
    for minute in range(3000):
        sensor = source.choice("abc")
        tenths = source.randrange(150, 300)
        if source.random() < 0.03:
            file.write(f"{minute} {sensor} ERR\n")
        else:
            file.write(f"{minute} {sensor} {tenths / 10}\n")
            good[sensor].append(tenths)
answers = {sensor: [len(values), round(sum(values) / len(values) / 10, 4)] for sensor, values in good.items()}
print(json.dumps({"sensors": answers, "size": [640, 480]}))
