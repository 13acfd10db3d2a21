import json

import pandas as pd

df = pd.read_csv("orders_2025.csv", parse_dates=["date"])
df["revenue"] = df["quantity"] * df["price"]
df["month"] = df["date"].dt.strftime("%Y-%m")

monthly = df.pivot_table(index="month", columns="region", values="revenue", aggfunc="sum").round(2)
monthly.to_csv("monthly.csv")

summary = {
    "rows": len(df),
    "total": round(df["revenue"].sum(), 2),
    "best_month": df.groupby("month")["revenue"].sum().idxmax(),
    "best_product": df.groupby("product")["revenue"].sum().idxmax(),
}
with open("summary.json", "w") as f:
    json.dump(summary, f, indent=2)

print(df.describe().loc[["mean", "min", "max"], ["quantity", "price"]])
monthly.sum().sort_index()
