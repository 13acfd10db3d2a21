import polars as pl

df = pl.read_csv("revenue.csv")
print(df.group_by(pl.col("month").str.slice(0, 4)).agg(pl.col("revenue").sum()))
