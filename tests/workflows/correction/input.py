"""Revenue in a column whose name a model guesses wrong."""

import json
import random
import sys

source = random.Random(10)
values = [source.randrange(1000, 9000) for _ in range(120)]
with open(f"{sys.argv[1]}/revenue.csv", "w") as file:
    file.write("month,net revenue\n")
    file.writelines(f"{2015 + n // 12}-{1 + n % 12:02},{value}\n" for n, value in enumerate(values))
years = {str(2015 + year): sum(values[12 * year : 12 * year + 12]) for year in range(10)}
print(json.dumps({"years": years}))
