"""Makes the sales of the demo: generate.py FILE. Always the same 12,448 rows, as dirty as exports from shops are.

Dirt: orders exported twice, missing cells, regions in any case and with spaces, prices with thousands separators, dates
in two formats, and quantities with digits too many.
"""

import csv
import datetime
import random
import sys

ROWS = 12_448
DUPLICATES = 183
SEED = 12_448
FIRST_DAY = datetime.date(2024, 1, 1)
DAYS = 731

HEADER = ["order_id", "order_date", "region", "channel", "product", "units", "unit_price", "discount_pct"]
# Share of the orders, and how much the share grows over the two years.
REGIONS = {"North": (0.30, 0.05), "South": (0.22, 0.35), "East": (0.28, -0.15), "West": (0.20, 0.60)}
CHANNELS = {"web": 0.58, "store": 0.27, "partner": 0.15}
# Price, share, and most units of an order.
PRODUCTS = {
    "Workstation X2": (2_349.00, 0.08, 4),
    "Laptop 14": (1_249.00, 0.17, 5),
    "Monitor 27": (389.00, 0.20, 8),
    "Dock": (189.50, 0.20, 10),
    "Keyboard": (79.90, 0.35, 20),
}
# Index of the month's sales: a slow summer, a good end of the year.
SEASON = [0.86, 0.84, 0.98, 1.00, 1.02, 0.97, 0.82, 0.80, 1.04, 1.10, 1.38, 1.30]


def order(random: random.Random, number: int) -> list[str]:
    """One order as a clean system would export it."""
    while True:
        day = random.randrange(DAYS)
        date = FIRST_DAY + datetime.timedelta(days=day)
        if random.random() < SEASON[date.month - 1] * (1 + 0.2 * day / DAYS) / 1.7:
            break
    regions = [share * (1 + growth * day / DAYS) for share, growth in REGIONS.values()]
    region = random.choices(list(REGIONS), regions)[0]
    channel = random.choices(list(CHANNELS), list(CHANNELS.values()))[0]
    product = random.choices(list(PRODUCTS), [share for _, share, _ in PRODUCTS.values()])[0]
    price, _, most = PRODUCTS[product]
    price *= random.choice([0.95, 1.0, 1.0, 1.0, 1.05])
    units = 1 + min(int(random.expovariate(3 / most)), most - 1)
    discount = random.choices([0, 5, 10, 15], [0.62, 0.2, 0.13, 0.05])[0]
    return [f"SO-{number:06}", date.isoformat(), region, channel, product, str(units), f"{price:.2f}", str(discount)]


def soil(random: random.Random, row: list[str]) -> None:
    """Makes of it what is found in practice."""
    if random.random() < 0.30:
        row[1] = datetime.date.fromisoformat(row[1]).strftime("%m/%d/%Y")
    if random.random() < 0.22:
        row[2] = random.choice([str.upper, str.lower, lambda region: f" {region} "])(row[2])
    if float(row[6]) >= 1000 and random.random() < 0.5:
        row[6] = f"{float(row[6]):,.2f}"
    if random.random() < 0.0012:
        row[5] += random.choice(["00", "000"])
    for column, share in [(2, 0.006), (5, 0.009), (6, 0.007), (7, 0.02)]:
        if random.random() < share:
            row[column] = random.choice(["", "", "n/a"])


def rows() -> list[list[str]]:
    """All rows, in the order of their dates as an export has them, with some exported twice."""
    source = random.Random(SEED)
    orders = sorted((order(source, 0) for _ in range(ROWS - DUPLICATES)), key=lambda row: row[1])
    for number, row in enumerate(orders, 1):
        row[0] = f"SO-{number:06}"
        soil(source, row)
    for at in sorted(source.sample(range(len(orders)), DUPLICATES), reverse=True):
        orders.insert(at, list(orders[at]))
    return orders


def main() -> None:
    with open(sys.argv[1], "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(HEADER)
        writer.writerows(rows())


if __name__ == "__main__":
    main()
