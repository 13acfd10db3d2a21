"""Contacts out of an old program: Latin-1, semicolons, decimal commas, duplicates, and cells that people filled in."""

import json
import random
import sys

source = random.Random(7)
FIRST, LAST = ["Anna", "Björn", "Chloé", "Dieter", "Eva"], ["Groß", "Núñez", "Peeters", "Smith", "Weiß"]
lines, kept, invalid, ages, total = [], [], 0, 0, 0
for number in range(400):
    first, last = source.choice(FIRST), source.choice(LAST)
    mail = f"{first[0]}{number}@example.org".lower()
    cents = source.randrange(0, 500_000)
    age = source.choice([str(source.randint(18, 90)), str(source.randint(18, 90)), "unknown", "", "999"])
    good = source.random() > 0.05
    shown = source.choice([mail, mail.upper(), f" {mail} "]) if good else source.choice(["none", "a@", ""])
    euros = f"{cents // 100:,}".replace(",", ".") + f",{cents % 100:02} €"
    date = f"{1 + number % 28:02}.{1 + number % 12:02}.2024"
    line = f"{source.choice([first, first.upper(), first.lower()])};{last};{shown};{euros};{age};{date}"
    lines += [line] * (2 if source.random() < 0.1 else 1)
    if good:
        kept.append(mail)
        total += cents
        ages += age.isdigit() and int(age) <= 120
    else:
        invalid += 1
with open(f"{sys.argv[1]}/Kunden (alt).csv", "w", encoding="latin-1") as file:
    # Latin-1 has no euro sign.
    file.write("\n".join(["Vorname;Nachname;E-Mail;Umsatz;Alter;Seit", *lines]).replace("€", "EUR"))
truth = {
    "read": len(lines),
    "duplicates": len(lines) - 400,
    "invalid": invalid,
    "kept": len(kept),
    "unique_mails": len(set(kept)),
    "total_cents": total,
    "known_ages": ages,
    "names": sorted(FIRST),
    "columns": ["first_name", "last_name", "email", "revenue", "age", "since"],
    "since": ["2024-01-01", "2024-12-28"],
}
print(json.dumps(truth))
