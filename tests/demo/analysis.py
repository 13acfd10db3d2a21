"""What a model writes when it is asked to clean these sales and to show revenue per quarter and region."""

import json

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.ticker import FuncFormatter

# Load everything as text first: nothing is lost by guessing types.
raw = pd.read_csv("sales.csv", dtype=str, keep_default_na=False).replace({"": None, "n/a": None})

# Clean.
df = raw.drop_duplicates().copy()
duplicates = len(raw) - len(df)
iso = pd.to_datetime(df["order_date"], format="%Y-%m-%d", errors="coerce")
american = pd.to_datetime(df["order_date"], format="%m/%d/%Y", errors="coerce")
df["order_date"] = iso.fillna(american)
df["region"] = df["region"].str.strip().str.title()
df["units"] = pd.to_numeric(df["units"])
df["unit_price"] = pd.to_numeric(df["unit_price"].str.replace(",", ""))
df["discount_pct"] = pd.to_numeric(df["discount_pct"]).fillna(0)

incomplete = df[["order_date", "region", "units", "unit_price"]].isna().any(axis=1)
outlier = df["units"] > 50
clean = df[~incomplete & ~outlier].copy()
clean["units"] = clean["units"].astype(int)
clean["revenue"] = (clean["units"] * clean["unit_price"] * (1 - clean["discount_pct"] / 100)).round(2)
clean["quarter"] = clean["order_date"].dt.to_period("Q").astype(str)

# Analyse.
revenue = clean.pivot_table(index="quarter", columns="region", values="revenue", aggfunc="sum").round(2)
revenue = revenue[revenue.sum().sort_values(ascending=False).index]
quarters = revenue.sum(axis=1)
regions = revenue.sum()
first_year, second_year = (revenue[revenue.index.str.startswith(year)].sum() for year in ("2024", "2025"))

summary = {
    "rows": {
        "loaded": len(raw),
        "duplicates": int(duplicates),
        "incomplete": int(incomplete.sum()),
        "outliers": int((outlier & ~incomplete).sum()),
        "clean": len(clean),
    },
    "revenue_total": round(float(regions.sum()), 2),
    "revenue_by_quarter": {quarter: round(float(value), 2) for quarter, value in quarters.items()},
    "revenue_by_region": {region: round(float(value), 2) for region, value in regions.items()},
    "growth_by_region_pct": {
        region: round(float(value), 1) for region, value in ((second_year / first_year - 1) * 100).items()
    },
    "best_quarter": quarters.idxmax(),
}
with open("summary.json", "w") as file:
    json.dump(summary, file, indent=2)

with pd.ExcelWriter("cleaned.xlsx") as book:
    clean.assign(order_date=clean["order_date"].dt.date).to_excel(book, sheet_name="orders", index=False)
    revenue.to_excel(book, sheet_name="revenue")

# Draw.
colors = ["#1f4e79", "#2e86ab", "#7fb7be", "#f2a65a"]
fig, ax = plt.subplots(figsize=(10, 6), dpi=120)
bottom = pd.Series(0.0, index=revenue.index)
for region, color in zip(revenue.columns, colors):
    ax.bar(revenue.index, revenue[region], bottom=bottom, color=color, width=0.68, label=region)
    bottom += revenue[region]
for place, value in enumerate(quarters):
    ax.text(place, value * 1.012, f"{value / 1e6:.2f}M", ha="center", va="bottom", fontsize=9.5, color="#333333")
ax.set_xticks(range(len(quarters)), [f"Q{quarter[-1]}\n{quarter[:4]}" for quarter in quarters.index])
ax.set_ylim(0, quarters.max() * 1.12)
ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / 1e6:g}M" if value else "0"))
ax.set_title("Revenue per quarter and region", loc="left", fontsize=15, fontweight="bold", pad=34)
ax.legend(loc="lower left", bbox_to_anchor=(-0.01, 1.0), ncols=len(regions), frameon=False, handlelength=1)
ax.spines[["top", "right", "left"]].set_visible(False)
ax.tick_params(length=0)
ax.grid(axis="y", color="#dddddd", linewidth=0.8)
ax.set_axisbelow(True)
fig.tight_layout()
fig.savefig("revenue_chart.png")
plt.close(fig)

print(
    f"Loaded {len(raw)} rows, {len(clean)} clean; revenue {regions.sum() / 1e6:.2f}M,"
    f" best quarter {quarters.idxmax()}, strongest region {regions.idxmax()}"
)
