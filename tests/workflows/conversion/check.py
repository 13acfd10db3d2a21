import json

import openpyxl
import pyarrow.parquet

[header, *cells] = openpyxl.load_workbook("table.xlsx").active.iter_rows(values_only=True)
tables = {
    "xlsx": [dict(zip(header, row)) for row in cells],
    "json": json.load(open("table.json")),
    "parquet": pyarrow.parquet.read_table("table.parquet").to_pylist(),
}


def answers(rows):
    return {
        "rows": len(rows),
        "first_id": rows[0]["id"],
        "names": [row["name"] for row in rows[:6]],
        "missing": sum(row["amount"] is None for row in rows),
        "total": sum(row["amount"] or 0 for row in rows),
        "active": sum(row["active"] for row in rows),
        "last_date": max(str(row["date"])[:10] for row in rows),
    }


print(json.dumps({kind: answers(rows) for kind, rows in tables.items()}))
