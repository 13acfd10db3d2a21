"""Answers of a survey."""

import json
import random
import sys
from collections import Counter

source = random.Random(11)
QUESTIONS = {"Product": (3.9, 0.9), "Support": (3.1, 1.1), "Price": (2.6, 1.0)}
answers = []
for _ in range(250):
    marks = {name: min(5, max(1, round(source.gauss(mean, spread)))) for name, (mean, spread) in QUESTIONS.items()}
    answers.append(marks | {"comment": source.choice(["", "", "fine", "too expensive", "great support"])})
json.dump(answers, open(f"{sys.argv[1]}/survey.json", "w"))
truth = {
    "title": "# Survey of customers",
    "rows": {
        name: [f"{sum(answer[name] for answer in answers) / 250:.2f}", sum(answer[name] >= 4 for answer in answers)]
        for name in QUESTIONS
    },
    "comments": Counter(answer["comment"] for answer in answers if answer["comment"]).most_common(1)[0][0],
    "pages": 4,
    "pdf_title": True,
}
print(json.dumps(truth))
