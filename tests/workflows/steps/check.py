import csv
import json

from PIL import Image

rows = csv.DictReader(open("means.csv"))
sensors = {row["sensor"]: [int(row["count"]), float(row["mean"])] for row in rows}
print(json.dumps({"sensors": sensors, "size": list(Image.open("means.png").size)}))
