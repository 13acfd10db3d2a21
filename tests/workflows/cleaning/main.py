import glob
import json

import pandas as pd

[name] = glob.glob("*.csv")
df = pd.read_csv(name, sep=";", encoding="latin-1", dtype=str, keep_default_na=False)
df.columns = ["first_name", "last_name", "email", "revenue", "age", "since"]
issues = {"read": len(df)}

df = df.drop_duplicates()
issues["duplicates"] = issues["read"] - len(df)

df = df.apply(lambda column: column.str.strip())
df["first_name"] = df["first_name"].str.capitalize()
df["email"] = df["email"].str.lower()
df["revenue"] = pd.to_numeric(df["revenue"].str.replace(r"[.EUR ]", "", regex=True).str.replace(",", "."))
df["age"] = pd.to_numeric(df["age"], errors="coerce").where(lambda age: age <= 120).astype("Int64")
df["since"] = pd.to_datetime(df["since"], format="%d.%m.%Y")

valid = df["email"].str.fullmatch(r"[^@\s]+@[^@\s]+\.[^@\s]+")
issues["invalid"] = int((~valid).sum())
df = df[valid]
issues["kept"] = len(df)
df.to_csv("clean.csv", index=False)
with open("issues.json", "w") as f:
    json.dump(issues, f)
print(df.dtypes.to_string())
