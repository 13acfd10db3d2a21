"""Two days of a web server's log, compressed as rotated logs are, with lines that are no log lines."""

import datetime
import gzip
import json
import random
import sys
from collections import Counter

source = random.Random(4)
start = datetime.datetime(2025, 3, 1)
PATHS = ["/", "/search?q=brig", "/api/orders", "/api/users", "/login", "/static/app.js"]
statuses, addresses, server_errors = Counter(), Counter(), Counter()
times, broken = [], 0
with gzip.open(f"{sys.argv[1]}/access.log.gz", "wt") as log:
    for number in range(20_000):
        moment = start + datetime.timedelta(seconds=number * 8)
        if source.random() < 0.004:
            broken += 1
            log.write(source.choice(["\x16\x03\x01 - - binary\n", "-- MARK --\n", "\n"]))
            continue
        address = f"10.0.{source.randrange(3)}.{min(int(source.expovariate(0.1)), 50)}"
        night = 2 <= moment.hour < 4
        status = source.choices([200, 304, 404, 500, 503], [80, 10, 5, 8 if night else 1, 6 if night else 0.5])[0]
        taken = round(source.lognormvariate(-2.5, 0.8), 3)
        log.write(
            f'{address} - - [{moment:%d/%b/%Y:%H:%M:%S} +0000] "GET {source.choice(PATHS)} HTTP/1.1" {status} '
            f'{source.randrange(200, 50_000)} "-" "Mozilla/5.0 (X11; Linux x86_64)" {taken:.3f}\n'
        )
        statuses[str(status)] += 1
        addresses[address] += 1
        times.append(taken)
        if status >= 500:
            server_errors[moment.strftime("%Y-%m-%d %H:00")] += 1
times.sort()
worst = sorted(server_errors, key=lambda hour: (-server_errors[hour], hour))[:2]
truth = {
    "lines": len(times),
    "broken": broken,
    "statuses": dict(sorted(statuses.items())),
    "busiest": sorted(addresses, key=lambda address: (-addresses[address], address))[:3],
    "worst_hours": [[hour, server_errors[hour]] for hour in worst],
    "p95_ms": round(times[int(0.95 * len(times))] * 1000),
    "has_report": True,
}
print(json.dumps(truth))
