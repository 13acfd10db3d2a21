import json

from PIL import Image

result = json.load(open("result.json"))
low, high = result["interval"]
answers = {
    "exact": round(result["exact"], 6),
    "within": low < result["exact"] < high and high - low < 0.3,
    "repeatable": result["simulated"] == result["again"] != result["other_seed"],
    "root": round(result["root"], 6),
    "histogram": Image.open("histogram.png").format,
}
print(json.dumps(answers))
