"""What an interpreter must not have that is to be forked into sessions. That it can be is tried in real sessions."""

import json
import unittest
from typing import Any

from tests.test_warm import warmed


def said(code: str) -> dict[str, Any]:
    """What a zygote says that has run this line."""
    outcome = warmed("print(1)", imports=[], code=code, zygote=True)
    assert outcome.code == 0 and outcome.stdout == "", outcome
    return json.loads(json.dumps(outcome.events[-1]))


class Refused(unittest.TestCase):
    def assert_refused(self, code: str, why: str) -> None:
        event = said(code)
        self.assertEqual(event["ev"], "refused")
        self.assertIn(why, event["message"])

    def test_memory_that_all_would_share(self):
        self.assert_refused(
            "import mmap, sys; sys.kept = mmap.mmap(-1, 4096)",
            "import mmap, sys; sys.kept = mmap.mmap(-1, 4096): it maps memory that all processes forked from it would share",
        )
        self.assert_refused("import multiprocessing, sys; sys.kept = multiprocessing.Value('i')", "would share")

    def test_a_second_thread(self):
        code = "import threading, time; threading.Thread(target=time.sleep, args=(9,), daemon=True).start()"
        self.assert_refused(code, "it leaves a second thread running")

    def test_an_open_file(self):
        self.assert_refused("import sys; sys.kept = open('/proc/version')", "open (/proc/version)")
        self.assert_refused("import socket, sys; sys.kept = socket.socketpair()", "open (socket:")

    def test_a_layer_without_the_library(self):
        self.assert_refused("import wave", "libbrig_fork.so")

    def test_a_generator_that_can_not_be_seeded_as_a_whole(self):
        code = "import numpy; numpy.random.set_bit_generator(numpy.random.PCG64())"
        self.assert_refused(code, "another generator")
