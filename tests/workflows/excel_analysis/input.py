"""A workbook with a sheet per quarter, written without a library for it, as other programs write them."""

import json
import random
import sys
import zipfile
from collections import Counter
from xml.sax.saxutils import escape

NAMESPACE = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
DOCUMENT = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
PACKAGE = "http://schemas.openxmlformats.org/package/2006"
HEAD = '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>'


def cell(reference: str, value: object) -> str:
    if isinstance(value, str):
        return f'<c r="{reference}" t="inlineStr"><is><t>{escape(value)}</t></is></c>'
    return f'<c r="{reference}"><v>{value}</v></c>'


def sheet(rows: list[list[object]]) -> str:
    lines = [
        f'<row r="{n}">' + "".join(cell(f"{'ABCDEF'[at]}{n}", value) for at, value in enumerate(row)) + "</row>"
        for n, row in enumerate(rows, 1)
    ]
    return f'{HEAD}<worksheet xmlns="{NAMESPACE}"><sheetData>{"".join(lines)}</sheetData></worksheet>'


def write(path: str, sheets: dict[str, list[list[object]]]) -> None:
    numbers = range(1, len(sheets) + 1)
    types = "".join(
        f'<Override PartName="/xl/worksheets/sheet{n}.xml" ContentType='
        '"application/vnd.openxmlformats-officedocument.spreadsheetml.worksheet+xml"/>'
        for n in numbers
    )
    names = "".join(f'<sheet name="{name}" sheetId="{n}" r:id="r{n}"/>' for n, name in zip(numbers, sheets))
    links = "".join(
        f'<Relationship Id="r{n}" Type="{DOCUMENT}/worksheet" Target="worksheets/sheet{n}.xml"/>' for n in numbers
    )
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as book:
        book.writestr(
            "[Content_Types].xml",
            f'{HEAD}<Types xmlns="{PACKAGE}/content-types"><Default Extension="rels" ContentType='
            '"application/vnd.openxmlformats-package.relationships+xml"/><Override PartName="/xl/workbook.xml" '
            'ContentType="application/vnd.openxmlformats-officedocument.spreadsheetml.sheet.main+xml"/>'
            f"{types}</Types>",
        )
        book.writestr(
            "_rels/.rels",
            f'{HEAD}<Relationships xmlns="{PACKAGE}/relationships"><Relationship Id="r1" '
            f'Type="{DOCUMENT}/officeDocument" Target="xl/workbook.xml"/></Relationships>',
        )
        book.writestr(
            "xl/workbook.xml",
            f'{HEAD}<workbook xmlns="{NAMESPACE}" xmlns:r="{DOCUMENT}"><sheets>{names}</sheets></workbook>',
        )
        book.writestr(
            "xl/_rels/workbook.xml.rels",
            f'{HEAD}<Relationships xmlns="{PACKAGE}/relationships">{links}</Relationships>',
        )
        for n, rows in zip(numbers, sheets.values()):
            book.writestr(f"xl/worksheets/sheet{n}.xml", sheet(rows))


source = random.Random(2)
DEPARTMENTS = ["Design", "Engineering", "Marketing", "Operations & IT", "Sales"]
budget, actual, over = Counter(), Counter(), []
sheets: dict[str, list[list[object]]] = {}
for quarter in ("Q1", "Q2", "Q3", "Q4"):
    sheets[quarter] = [["Department", "Budget", "Actual"]]
    for department in DEPARTMENTS:
        planned = source.randrange(50, 200) * 1000
        spent = planned + source.randrange(-200, 201) * 100
        sheets[quarter].append([department, planned, spent])
        budget[department] += planned
        actual[department] += spent
        if spent > planned * 1.05:
            over.append([quarter, department])
write(f"{sys.argv[1]}/budget.xlsx", sheets)
truth = {
    "sheets": ["Summary", "Over budget"],
    "budget": dict(budget),
    "actual": dict(actual),
    "over": sorted(over),
    "formula": f"=SUM(C2:C{len(DEPARTMENTS) + 1})",
    "bold": True,
}
print(json.dumps(truth))
