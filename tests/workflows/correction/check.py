import json

print(json.dumps({"years": json.load(open("years.json"))}))
