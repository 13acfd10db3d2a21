import csv
import json

rows = list(csv.DictReader(open("clean.csv", encoding="utf-8")))
answers = json.load(open("issues.json"))
answers |= {
    "unique_mails": len({row["email"] for row in rows}),
    "total_cents": sum(round(float(row["revenue"]) * 100) for row in rows),
    "known_ages": sum(row["age"] != "" for row in rows),
    "names": sorted({row["first_name"] for row in rows}),
    "columns": list(rows[0]),
    "since": [min(row["since"] for row in rows), max(row["since"] for row in rows)],
}
print(json.dumps(answers))
