import matplotlib.pyplot as plt
import pandas as pd

table = pd.read_csv("means.csv", index_col="sensor")
table["mean"].plot.bar(figsize=(6.4, 4.8), rot=0, title="Mean per sensor")
plt.savefig("means.png", dpi=100)
plt.close()
