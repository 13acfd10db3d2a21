"""A table with what gets lost in conversions: leading zeros, dates, empty cells, commas, quotes, other scripts."""

import csv
import json
import random
import sys

source = random.Random(6)
NAMES = ["Müller, Jörg", 'O"Brien', "山田 太郎", "Łukasz", "Zoë\nSmith", "- dash"]
rows, total = [], 0
for number in range(500):
    amount = source.choice([None, source.randrange(1, 100_000)])
    total += amount or 0
    date = f"2025-{1 + number % 12:02}-{1 + number % 28:02}"
    rows.append([f"{number:05}", NAMES[number % 6], date, amount, number % 2 == 0])
with open(f"{sys.argv[1]}/table.csv", "w", newline="", encoding="utf-8-sig") as file:
    writer = csv.writer(file)
    writer.writerow(["id", "name", "date", "amount", "active"])
    writer.writerows(rows)
one = {
    "rows": 500,
    "first_id": "00000",
    "names": NAMES,
    "missing": sum(row[3] is None for row in rows),
    "total": total,
    "active": 250,
    "last_date": max(row[2] for row in rows),
}
print(json.dumps({kind: one for kind in ("json", "parquet", "xlsx")}))
