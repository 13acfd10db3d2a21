import json

import pandas as pd

answers = json.load(open("analysis.json"))
lines = pd.read_csv("order_lines.csv")
assert lines["value"].sum() == sum(answers["by_country"].values())
answers["lines"] = len(lines)
print(json.dumps(answers))
