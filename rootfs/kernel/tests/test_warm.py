"""What is done before there is a request."""

import re
import subprocess
import sys
import tempfile
import unittest
from typing import Any

from tests.kernel import KERNEL, Kernel, Outcome, frame, run


def warmed(source: str, **warm: Any) -> Outcome:
    """Runs code in a kernel that was warmed before."""
    with tempfile.TemporaryDirectory() as folder:
        request = {"op": "run", "code": source, "argv": ["main.py"], "filename": None, "threads": 1}
        requests = frame({"op": "warm", "threads": 1, **warm}) + frame(request)
        return Kernel(folder, requests, {}, framed=True).finish()


class Warm(unittest.TestCase):
    def test_modules_are_there_and_the_line_of_code_leaves_no_name(self):
        outcome = warmed(
            "import sys; print('wave' in sys.modules, 'colorsys' in sys.modules, 'x' in globals())",
            imports=["wave"],
            code="import colorsys; x = 1",
        )
        self.assertEqual((outcome.stdout, outcome.stderr, outcome.code), ("True True False\n", "", 0))
        self.assertEqual([event["ev"] for event in outcome.events], ["warm", "done"])

    def test_what_fails_says_nothing_until_somebody_imports_it(self):
        outcome = warmed("import no_such_module", imports=["no_such_module"], code="raise SystemExit(3)")
        self.assertEqual((outcome.code, outcome.error["name"]), (1, "ModuleNotFoundError"))

    def test_what_is_written_or_shown_goes_nowhere(self):
        code = "import os, sys; print('out'); sys.stderr.write('err'); os.write(1, b'raw'); display(1)"
        outcome = warmed("print('mine')\n2", imports=[], code=code)
        self.assertEqual((outcome.stdout, outcome.stderr), ("mine\n", ""))
        self.assertEqual([result["data"]["text/plain"] for result in outcome.results], ["2"])

    def test_descriptors_are_as_without(self):
        code = "import os; print(sorted(os.listdir('/proc/self/fd'), key=int))"
        self.assertEqual(warmed(code, imports=[]).stdout, run(code).stdout)

    def test_what_the_program_leaves_ends_as_ever(self):
        code = (
            "import atexit, wave\n"
            "class Last:\n"
            "    def __del__(self): print('gone', wave.__name__)\n"
            "last, ring = Last(), [Last()]\n"
            "ring.append(ring)\n"
            "file = open('/proc/self/fd/1', 'w')\n"
            "file.write('flushed\\n')\n"
            "atexit.register(print, 'at the end')\n"
        )
        for outcome in (warmed(code, imports=["wave"]), run(code)):
            first, *others = outcome.stdout.splitlines()
            self.assertEqual((first, sorted(others)), ("at the end", ["flushed", "gone wave", "gone wave"]))
            self.assertEqual((outcome.stderr, outcome.code), ("", 0))

    def test_ends_are_those_of_an_interpreter_that_was_not_warmed(self):
        for code in (
            "import sys; sys.exit(7)",
            "import sys; sys.exit(-1)",
            "import sys; sys.exit(1 << 40)",
            "import sys; sys.exit('why')",
            "import threading, time; threading.Thread(target=time.sleep, args=(60,), daemon=True).start(); print('x')",
            "import threading, time; threading.Thread(target=lambda: (time.sleep(0.2), print('late'))).start()",
            "import sys; sys.stdout.close()",
            "import os; print('x', end=''); os.close(1)",
            "import os, sys; sys.stdout = open('/dev/full', 'w'); print('x')",
            "import ctypes; ctypes.CDLL(None).printf(b'from the C library\\n'); None",
            "import atexit\n@atexit.register\ndef fails(): 1 / 0",
            "import atexit\n@atexit.register\ndef leaves(): raise SystemExit(3)",
            "import os, sys\nif os.fork(): sys.exit(os.wait()[1])\nprint('child')",
            "import sys, types; sys.modules['mine'] = mine = types.ModuleType('mine')\n"
            "class Last:\n    def __del__(self): print('gone')\n"
            "mine.last = Last(); mine.self = mine; sys.modules['number'] = 7",
            "f = open('/proc/self/fd/1', 'wb', buffering=100); g = open('/proc/self/fd/2', 'w+')\n"
            "def holds(): pass\nn = f.write(b'bytes\\n'), g.write('text\\n')",
        ):
            with self.subTest(code):
                warm, cold = warmed(code, imports=["wave", "colorsys"]), run(code, filename=None)
                shown = [re.sub("0x[0-9a-f]+", "ADDRESS", outcome.stderr) for outcome in (warm, cold)]
                self.assertEqual((warm.stdout, shown[0], warm.code), (cold.stdout, shown[1], cold.code))

    def test_modules_of_the_warm_up_are_there_until_the_end(self):
        code = "import atexit, sys, wave; atexit.register(lambda: print('wave' in sys.modules, wave.__name__))"
        self.assertEqual(warmed(code, imports=["wave"]).stdout, "True wave\n")

    def test_a_kernel_that_is_never_asked_ends(self):
        with tempfile.TemporaryDirectory() as folder:
            outcome = Kernel(folder, frame({"op": "warm", "imports": []}), {}, framed=True).finish()
        self.assertEqual((outcome.code, [event["ev"] for event in outcome.events]), (2, ["warm"]))


# What a session does that waits, without a zygote.
REHEARSE = """
import os, sys
sys.path.insert(0, sys.argv[1])
from brig_kernel import warm
from brig_kernel.channel import Channel
(requests, asks), (answers, events) = os.pipe(), os.pipe()
channel = Channel(requests, events)
before = sorted(os.listdir('/proc/self/fd'))
print('waits', not channel.comes_within(1))
try:
    warm.rehearse(channel, sys.argv[2])
except KeyboardInterrupt:
    print('interrupted')
print('x' in globals(), channel.muted, sorted(os.listdir('/proc/self/fd')) == before)
os.write(asks, b'.')
print('comes', channel.comes_within(1000))
"""


class Rehearsal(unittest.TestCase):
    def rehearsed(self, line: str) -> str:
        words = [sys.executable, "-I", "-u", "-c", REHEARSE, str(KERNEL.parent), line]
        done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60)
        self.assertEqual(done.stderr, "")
        return done.stdout

    def test_it_leaves_nothing_whatever_the_line_does(self):
        for line in ("x = 1; print('mine'); print(x, 'mine')", "def (", "1 / 0", "raise SystemExit(3)"):
            with self.subTest(line):
                self.assertEqual(self.rehearsed(line), "waits True\nFalse False True\ncomes True\n")

    def test_an_interrupt_is_for_the_program(self):
        said = self.rehearsed("raise KeyboardInterrupt")
        self.assertEqual(said, "waits True\ninterrupted\nFalse False True\ncomes True\n")
