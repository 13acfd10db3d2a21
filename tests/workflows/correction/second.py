import pandas as pd

df = pd.read_csv("revenue.csv")
print("Columns:", list(df.columns))
df["year"] = df["month"].str[:4]
years = df.groupby("year")["revenue"].sum()
years.to_json("years.json")
