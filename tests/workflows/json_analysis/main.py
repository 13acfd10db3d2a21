import json

import pandas as pd

with open("customers.json") as f:
    customers = json.load(f)["customers"]

orders = pd.json_normalize(customers, record_path="orders", meta=["name", ["address", "country"]])
lines = orders.explode("items").reset_index(drop=True)
lines = lines.drop(columns="items").join(pd.json_normalize(lines["items"].tolist()))
lines = lines.rename(columns={"price.amount": "amount", "address.country": "country"})
lines["value"] = lines["quantity"] * lines["amount"]
people = pd.json_normalize(customers)

top = lines.groupby("name")["value"].sum().reset_index().sort_values(["value", "name"], ascending=[False, True]).head(5)
analysis = {
    "customers": len(people),
    "without_orders": int((people["orders"].str.len() == 0).sum()),
    "without_email": int(people["email"].isna().sum()),
    "items_sold": int(lines["quantity"].sum()),
    "by_country": {country: int(value) for country, value in lines.groupby("country")["value"].sum().items()},
    "top": [[name, int(value)] for name, value in top.values],
}
with open("analysis.json", "w") as f:
    json.dump(analysis, f, indent=2, ensure_ascii=False)
lines.to_csv("order_lines.csv", index=False)
analysis["top"][0]
