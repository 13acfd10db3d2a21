"""Parameters of an option; the true answer is the closed form of Black and Scholes."""

import json
import math
import sys

option = {"spot": 100.0, "strike": 105.0, "rate": 0.03, "volatility": 0.25, "years": 1.0, "paths": 200_000, "seed": 42}
json.dump(option, open(f"{sys.argv[1]}/option.json", "w"))


def normal(x: float) -> float:
    return (1 + math.erf(x / math.sqrt(2))) / 2


root = option["volatility"] * math.sqrt(option["years"])
drift = (option["rate"] + option["volatility"] ** 2 / 2) * option["years"]
d = (math.log(option["spot"] / option["strike"]) + drift) / root
price = option["spot"] * normal(d) - option["strike"] * math.exp(-option["rate"] * option["years"]) * normal(d - root)
truth = {
    "exact": round(price, 6),
    "within": True,
    "repeatable": True,
    "root": round(math.pi / 3, 6),
    "histogram": "PNG",
}
print(json.dumps(truth))
