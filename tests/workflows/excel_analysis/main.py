import pandas as pd
from openpyxl.styles import Font, PatternFill
from openpyxl.utils import get_column_letter

sheets = pd.read_excel("budget.xlsx", sheet_name=None)
print("Sheets:", ", ".join(sheets))

df = pd.concat([sheet.assign(Quarter=name) for name, sheet in sheets.items()], ignore_index=True)
summary = df.groupby("Department", as_index=False)[["Budget", "Actual"]].sum()
summary["Difference"] = summary["Actual"] - summary["Budget"]
over = df[df["Actual"] > df["Budget"] * 1.05].sort_values(["Quarter", "Department"])
print(f"{len(df)} rows, {len(over)} of them over budget by more than 5 %")

with pd.ExcelWriter("budget_report.xlsx", engine="openpyxl") as writer:
    summary.to_excel(writer, sheet_name="Summary", index=False)
    over[["Quarter", "Department", "Budget", "Actual"]].to_excel(writer, sheet_name="Over budget", index=False)
    sheet = writer.sheets["Summary"]
    last = len(summary) + 1
    sheet.cell(last + 1, 1, "Total")
    for column in (2, 3, 4):
        letter = get_column_letter(column)
        sheet.cell(last + 1, column, f"=SUM({letter}2:{letter}{last})").font = Font(bold=True)
    for name in writer.sheets:
        for cell in writer.sheets[name][1]:
            cell.font = Font(bold=True, color="FFFFFF")
            cell.fill = PatternFill("solid", fgColor="1F4E79")
        writer.sheets[name].column_dimensions["A"].width = 18
        writer.sheets[name].freeze_panes = "A2"
