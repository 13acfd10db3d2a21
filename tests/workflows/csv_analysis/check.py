import csv
import json

summary = json.load(open("summary.json"))
by_region, by_month = {}, {}
for row in csv.DictReader(open("monthly.csv")):
    month = row.pop("month")
    for region, value in row.items():
        cents = round(float(value) * 100)
        by_region[region] = by_region.get(region, 0) + cents
        by_month[month] = by_month.get(month, 0) + cents
answers = {
    "rows": summary["rows"],
    "total_cents": round(summary["total"] * 100),
    "by_region_cents": by_region,
    "by_month_cents": by_month,
    "best_month": summary["best_month"],
    "best_product": summary["best_product"],
}
print(json.dumps(answers))
