"""Customers who stay or leave: leaving depends on two columns, the others are noise, some cells are empty."""

import csv
import json
import random
import sys

source = random.Random(9)
left = 0
with open(f"{sys.argv[1]}/customers.csv", "w", newline="") as file:
    writer = csv.writer(file)
    writer.writerow(["months", "calls", "age", "plan", "spend", "left"])
    for _ in range(1500):
        months, calls = source.randrange(1, 72), source.randrange(0, 10)
        leaves = int(calls * 8 - months + source.gauss(0, 4) > 0)
        left += leaves
        spend = source.choice(["", round(source.uniform(5, 90), 2)])
        writer.writerow([months, calls, source.randrange(18, 80), source.choice(["S", "M", "L"]), spend, leaves])
truth = {
    "rows": 1500,
    "left": left,
    "test_rows": 375,
    "accurate": [True, True],
    "important": ["calls", "months"],
    "predictions": 375,
    "consistent": True,
}
print(json.dumps(truth))
