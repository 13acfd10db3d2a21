import matplotlib.pyplot as plt
import pandas as pd

plt.rcParams["svg.fonttype"] = "none"
df = pd.read_csv("temperatures.csv", index_col="day")

fig, ax = plt.subplots(figsize=(10, 6), dpi=150)
for town, color in (("Oslo", "#1f77b4"), ("Rome", "#d62728")):
    ax.plot(df.index, df[town], color=color, alpha=0.25, linewidth=1)
    ax.plot(df.index, df[town].rolling(14, center=True, min_periods=1).mean(), color=color, linewidth=2.5, label=town)
ax.set_title("Temperature per day (°C)")
ax.set_xlim(1, 365)
ax.grid(alpha=0.3)
ax.legend()
fig.savefig("temperatures.png")
fig.savefig("temperatures.svg")
fig.savefig("temperatures.jpg")
plt.close(fig)
df.max().to_json("highest.json")
