import json
from collections import Counter

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.backends.backend_pdf import PdfPages

df = pd.DataFrame(json.load(open("survey.json")))
questions = ["Product", "Support", "Price"]
table = pd.DataFrame({
    "mean": [f"{mean:.2f}" for mean in df[questions].mean()],
    "4 or 5": (df[questions] >= 4).sum(),
}, index=questions)
comments = Counter(comment for comment in df["comment"] if comment)

with open("report.md", "w") as f:
    f.write("# Survey of customers\n\n")
    f.write(f"{len(df)} answers.\n\n")
    f.write(table.to_markdown(disable_numparse=True) + "\n\n")
    f.write(f"Most said: “{comments.most_common(1)[0][0]}”.\n")

with PdfPages("report.pdf", metadata={"Title": "Survey of customers"}) as pdf:
    page = plt.figure(figsize=(8.27, 11.69))
    page.text(0.1, 0.9, "Survey of customers", fontsize=24, weight="bold")
    page.text(0.1, 0.84, table.to_string(), family="monospace", va="top")
    pdf.savefig(page)
    plt.close(page)
    for question in questions:
        fig, ax = plt.subplots(figsize=(8.27, 5))
        df[question].value_counts().sort_index().plot.bar(ax=ax, rot=0, title=question)
        pdf.savefig(fig)
        plt.close(fig)

with open("notes.txt", "w") as f:
    f.write("Sources: survey.json\n")
