"""Draws each series of samples.json: all values as points, the median as a line."""

import json
import re

import matplotlib.pyplot as plt

with open("samples.json") as file:
    measurements = json.load(file)

for measurement in measurements:
    rows = [("brig", measurement["brig"])] + sorted(measurement["peers"].items())
    figure, axes = plt.subplots(figsize=(8, 0.8 + 0.5 * len(rows)), layout="constrained")
    for place, (who, values) in enumerate(rows):
        colour = "tab:blue" if who == "brig" else "tab:gray"
        middle = sorted(values)[(len(values) - 1) // 2]
        axes.scatter(values, [place] * len(values), s=12, alpha=0.4, color=colour, linewidths=0)
        axes.plot([middle, middle], [place - 0.3, place + 0.3], color=colour, linewidth=2)
    axes.set_yticks(range(len(rows)), [who for who, _ in rows])
    axes.invert_yaxis()
    highest = max(max(values) for _, values in rows)
    lowest = min(min(values) for _, values in rows)
    if lowest > 0 and highest / lowest > 30:
        axes.set_xscale("log")
    else:
        axes.set_xlim(left=0)
    axes.set_xlabel(measurement["unit"])
    axes.set_title(measurement["name"], fontsize=10)
    name = re.sub(r"[^a-z0-9]+", "-", measurement["name"].lower()).strip("-")
    figure.savefig(f"{name}.svg")
    plt.close(figure)
