import pandas as pd

types = {"id": "string", "name": "string", "amount": "Int64"}
df = pd.read_csv("table.csv", dtype=types, parse_dates=["date"], encoding="utf-8-sig")

df.to_excel("table.xlsx", index=False)
back = pd.read_excel("table.xlsx", dtype=types)
back.to_json("table.json", orient="records", date_format="iso", force_ascii=False, indent=1)
again = pd.read_json("table.json", dtype=types)
again["date"] = pd.to_datetime(again["date"])
again.to_parquet("table.parquet", compression="zstd")

print("same:", df["id"].tolist() == pd.read_parquet("table.parquet")["id"].tolist())
