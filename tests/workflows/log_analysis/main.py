import gzip
import json
import re
from collections import Counter
from datetime import datetime

LINE = re.compile(r'(\S+) \S+ \S+ \[([^\]]+)\] "(\S+) (\S+) [^"]*" (\d{3}) (\d+) "[^"]*" "[^"]*" ([\d.]+)$')

statuses, addresses, errors, paths = Counter(), Counter(), Counter(), Counter()
times, broken = [], []
with gzip.open("access.log.gz", "rt", errors="replace") as log:
    for number, line in enumerate(log, 1):
        match = LINE.match(line.rstrip("\n"))
        if not match:
            broken.append(number)
            continue
        address, moment, _, path, status, _, taken = match.groups()
        statuses[status] += 1
        addresses[address] += 1
        paths[path.split("?")[0]] += 1
        times.append(float(taken))
        if status >= "500":
            errors[datetime.strptime(moment, "%d/%b/%Y:%H:%M:%S %z").strftime("%Y-%m-%d %H:00")] += 1

times.sort()
ranked = lambda counter, n: sorted(counter.items(), key=lambda item: (-item[1], item[0]))[:n]
findings = {
    "lines": len(times),
    "broken": len(broken),
    "statuses": dict(sorted(statuses.items())),
    "busiest": [address for address, _ in ranked(addresses, 3)],
    "worst_hours": ranked(errors, 2),
    "p95_ms": round(times[int(0.95 * len(times))] * 1000),
}
with open("findings.json", "w") as f:
    json.dump(findings, f, indent=2)
with open("report.md", "w") as f:
    f.write("# Access log\n\n")
    f.write(f"{len(times):,} requests, {len(broken)} unreadable lines, p95 {findings['p95_ms']} ms.\n\n")
    f.write("| status | requests |\n|---|---:|\n")
    f.writelines(f"| {status} | {count:,} |\n" for status, count in findings["statuses"].items())
    f.write(f"\nMost server errors: {', '.join(f'{hour} ({count})' for hour, count in findings['worst_hours'])}\n")
print(f"{len(times)} requests, {sum(errors.values())} server errors")
