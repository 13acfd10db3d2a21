import json

import openpyxl

book = openpyxl.load_workbook("budget_report.xlsx")
summary = list(book["Summary"].iter_rows(min_row=2, values_only=True))
answers = {
    "sheets": book.sheetnames,
    "budget": {row[0]: row[1] for row in summary[:-1]},
    "actual": {row[0]: row[2] for row in summary[:-1]},
    "over": [list(row[:2]) for row in book["Over budget"].iter_rows(min_row=2, values_only=True)],
    "formula": summary[-1][2],
    "bold": book["Summary"]["A1"].font.bold,
}
print(json.dumps(answers))
