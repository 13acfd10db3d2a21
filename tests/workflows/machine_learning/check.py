import csv
import json

metrics = json.load(open("metrics.json"))
rows = list(csv.DictReader(open("predictions.csv")))
right = sum(row["left"] == row["predicted"] for row in rows)
answers = {
    "rows": metrics["rows"],
    "left": metrics["left"],
    "test_rows": metrics["test_rows"],
    "accurate": [metrics["linear"] > 0.9, min(metrics["cross_validation"]) > 0.88],
    "important": sorted(name.rpartition("__")[2] for name in list(metrics["importance"])[:2]),
    "predictions": len(rows),
    "consistent": abs(right / len(rows) - metrics["linear"]) < 1e-9,
}
print(json.dumps(answers))
