import pandas as pd

df = pd.read_parquet("readings.parquet")
table = df.groupby("sensor")["value"].agg(["count", "mean"]).round(4)
table.to_csv("means.csv")
table
