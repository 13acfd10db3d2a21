import json

import matplotlib.pyplot as plt
import numpy as np
from scipy import integrate, optimize, stats

p = json.load(open("option.json"))


def simulate(seed):
    z = np.random.default_rng(seed).standard_normal(p["paths"])
    drift = (p["rate"] - p["volatility"] ** 2 / 2) * p["years"]
    final = p["spot"] * np.exp(drift + p["volatility"] * np.sqrt(p["years"]) * z)
    return final, np.exp(-p["rate"] * p["years"]) * np.maximum(final - p["strike"], 0)


final, payoff = simulate(p["seed"])
low, high = stats.t.interval(0.999, len(payoff) - 1, loc=payoff.mean(), scale=stats.sem(payoff))


def density(x):
    mean = np.log(p["spot"]) + (p["rate"] - p["volatility"] ** 2 / 2) * p["years"]
    return stats.lognorm.pdf(x, s=p["volatility"] * np.sqrt(p["years"]), scale=np.exp(mean))


exact, _ = integrate.quad(lambda x: (x - p["strike"]) * density(x), p["strike"], 1000, limit=200)
exact *= np.exp(-p["rate"] * p["years"])

plt.hist(final, bins=120, color="#2e86ab")
plt.axvline(p["strike"], color="black", linestyle="--")
plt.title(f"Price after {p['years']:g} year, {p['paths']:,} paths")
plt.savefig("histogram.png")
plt.close()

result = {
    "simulated": payoff.mean(),
    "interval": [low, high],
    "exact": exact,
    "again": simulate(p["seed"])[1].mean(),
    "other_seed": simulate(p["seed"] + 1)[1].mean(),
    "root": optimize.brentq(lambda x: np.cos(x) - 0.5, 0, 2),
}
with open("result.json", "w") as f:
    json.dump(result, f)
print(f"{payoff.mean():.2f} (99.9 %: {low:.2f} to {high:.2f}), exact {exact:.2f}")
