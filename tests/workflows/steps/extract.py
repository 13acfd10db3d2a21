import pandas as pd

df = pd.read_csv("readings.txt", sep=" ", names=["minute", "sensor", "value"], na_values="ERR")
df.dropna().to_parquet("readings.parquet")
print(len(df), "lines,", int(df["value"].isna().sum()), "errors")
