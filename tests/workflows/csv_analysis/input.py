"""Orders of a year; amounts are whole cents, so that sums are exact."""

import csv
import datetime
import json
import random
import sys
from collections import Counter

source = random.Random(1)
REGIONS = ["North", "South", "East", "West"]
PRODUCTS = {"Desk": 34900, "Chair": 12950, "Lamp": 4999, "Shelf": 8900}

by_region, by_month, by_product = Counter(), Counter(), Counter()
with open(f"{sys.argv[1]}/orders 2025.csv", "w", newline="") as file:
    writer = csv.writer(file)
    writer.writerow(["date", "region", "product", "quantity", "price"])
    for _ in range(5000):
        date = datetime.date(2025, 1, 1) + datetime.timedelta(source.randrange(365))
        region, product, quantity = source.choice(REGIONS), source.choice(list(PRODUCTS)), source.randint(1, 9)
        writer.writerow([date, region, product, quantity, f"{PRODUCTS[product] / 100:.2f}"])
        cents = PRODUCTS[product] * quantity
        by_region[region] += cents
        by_month[f"2025-{date.month:02}"] += cents
        by_product[product] += cents

truth = {
    "rows": 5000,
    "total_cents": by_region.total(),
    "by_region_cents": dict(sorted(by_region.items())),
    "by_month_cents": dict(sorted(by_month.items())),
    "best_month": by_month.most_common(1)[0][0],
    "best_product": by_product.most_common(1)[0][0],
}
print(json.dumps(truth))
