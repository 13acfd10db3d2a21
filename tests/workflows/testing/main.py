import json
import sys
import unittest

result = unittest.TextTestRunner(stream=sys.stdout, verbosity=2).run(unittest.defaultTestLoader.discover("."))
report = {
    "run": result.testsRun,
    "failed": [test.id() for test, _ in result.failures],
    "errors": [test.id() for test, _ in result.errors],
    "skipped": [reason for _, reason in result.skipped],
}
with open("report.json", "w") as f:
    json.dump(report, f)
sys.exit(not result.wasSuccessful())
