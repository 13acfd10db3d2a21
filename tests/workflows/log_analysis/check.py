import json

answers = json.load(open("findings.json"))
report = open("report.md").read()
answers["has_report"] = report.startswith("# Access log\n") and f"| 200 | {answers['statuses']['200']:,} |" in report
print(json.dumps(answers))
