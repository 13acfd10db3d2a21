import json
import re

lines = open("report.md", encoding="utf-8").read().splitlines()
rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
pdf = open("report.pdf", "rb").read()
assert pdf.startswith(b"%PDF-1.") and pdf.rstrip().endswith(b"%%EOF")
answers = {
    "title": lines[0],
    "rows": {name: [mean, int(good)] for name, mean, good in rows[2:]},
    "comments": lines[-1].partition("“")[2].partition("”")[0],
    "pages": len(re.findall(rb"/Type /Page\b", pdf)),
    "pdf_title": b"Survey of customers" in pdf,
}
print(json.dumps(answers))
