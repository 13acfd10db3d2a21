"""Interrupts: the execution that is meant, and no other."""

import unittest

from tests.context import Context

KEYBOARD = "KeyboardInterrupt"


class Interrupts(unittest.TestCase):
    def check(self, code: str, *, by_signal: bool = False, before: str = "") -> None:
        """Interrupts code that has said that it is up; the context must live on with its state."""
        with Context() as context:
            context.run("kept = 1")
            if before:
                context.run(before)
            name = context.begin(code)
            context.wait_output("up")
            if by_signal:
                context.signal()
            else:
                context.interrupt(name)
            ended = context.finish()
            self.assertEqual((ended.code, ended.error["name"]), (130, KEYBOARD), ended)
            self.assertNotIn("brig_kernel", ended.stderr)
            self.assertEqual(context.run("kept").text, "1")

    def test_a_loop(self):
        self.check("print('up')\nwhile True: pass")

    def test_a_call_that_waits(self):
        self.check("import time\nprint('up')\ntime.sleep(600)")

    def test_a_wait_for_a_thread(self):
        self.check("import threading\nprint('up')\nthreading.Event().wait()")

    def test_a_command(self):
        self.check("!echo up; sleep 600")

    def test_a_script(self):
        self.check("%%bash\necho up\nsleep 600")

    def test_a_child_of_subprocess(self):
        self.check("import subprocess\nprint('up')\nsubprocess.run(['sleep', '600'])")

    def test_code_that_awaits(self):
        self.check("import asyncio\nprint('up')\nawait asyncio.sleep(600)")

    def test_a_loop_in_code_that_awaits(self):
        self.check("import asyncio\nawait asyncio.sleep(0)\nprint('up')\nwhile True: pass")

    def test_asyncio_run(self):
        self.check("import asyncio\nprint('up')\nasyncio.run(asyncio.sleep(600))")

    def test_a_repr(self):
        self.check("class R:\n    def __repr__(self):\n        print('up')\n        while True: pass\nR()")

    def test_the_signal_alone_does_it_too(self):
        self.check("print('up')\nwhile True: pass", by_signal=True)

    def test_a_regular_expression_that_lets_no_thread_run(self):
        self.check("import re\nprint('up')\nre.match('(a|a)*$', 'a' * 60 + 'b')")

    def test_the_line_is_where_the_code_was(self):
        with Context() as context:
            # Said when the code waits, and no earlier.
            up = "    asyncio.get_running_loop().call_later(0, print, 'up')\n"
            name = context.begin(f"import asyncio\nasync def f():\n{up}    await asyncio.sleep(600)\n\nawait f()")
            context.wait_output("up")
            context.interrupt(name)
            self.assertEqual(context.finish().error["line"], 4)

    def test_finally_runs_and_the_code_may_go_on(self):
        code = (
            "import time\ntry:\n    print('up')\n    time.sleep(600)\n"
            "except KeyboardInterrupt:\n    print('caught')\n'on'"
        )
        with Context() as context:
            name = context.begin(code)
            context.wait_output("up")
            context.interrupt(name)
            ended = context.finish()
        self.assertEqual((ended.code, ended.text, ended.stdout), (0, "'on'", "up\ncaught\n"))

    def test_the_codes_own_handler_is_asked(self):
        before = "import signal, time\nhit = []\nsignal.signal(signal.SIGINT, lambda *_: hit.append(1))"
        with Context() as context:
            context.run(before)
            name = context.begin("print('up')\nwhile not hit: time.sleep(0.01)\nlen(hit)")
            context.wait_output("up")
            context.interrupt(name)
            self.assertEqual(context.finish().text, "1")

    def test_an_interrupt_of_another_execution_is_passed_over(self):
        with Context() as context:
            first = context.run("import time\ngo = time.monotonic")
            name = context.begin("print('up')\nt = go()\nwhile go() < t + 0.3: pass\n'whole'")
            context.wait_output("up")
            context.interrupt(first.done["id"])
            context.interrupt("never")
            ended = context.finish()
            self.assertEqual((ended.code, ended.text, ended.done["id"]), (0, "'whole'", name))

    def test_interrupts_between_executions_are_passed_over(self):
        with Context() as context:
            first = context.run("1")
            context.interrupt(first.done["id"])
            context.interrupt("e2")  # Not there yet.
            context.signal()
            self.assertEqual(context.run("2").text, "2")

    def test_an_interrupt_that_comes_with_its_execution_hits_it(self):
        with Context() as context:
            name = context.begin("while True: pass")
            context.interrupt(name)
            self.assertEqual(context.finish().code, 130)

    def test_late_interrupts_never_hit_the_next_execution(self):
        with Context() as context:
            for _ in range(300):
                name = context.begin("x = 1")
                context.interrupt(name)
                self.assertIn(context.finish().code, (0, 130))
                self.assertEqual(context.run("y = 2").code, 0)

    def test_an_interrupt_never_cuts_a_frame(self):
        with Context() as context:
            for _ in range(20):
                name = context.begin("print('up')\nwhile True: display('x' * 400_000)")
                context.wait_output("up")
                context.event()
                context.interrupt(name)
                self.assertEqual(context.finish().code, 130)

    def test_an_interrupt_ends_the_code_and_no_thread_that_sends_beside_it(self):
        thread = (
            "import threading, sys\nsys.setswitchinterval(1e-6)\nfailed = []\n"
            "def sends():\n    try:\n        while True: display('thread')\n"
            "    except KeyboardInterrupt as error: failed.append(error)\n"
            "for _ in range(4): threading.Thread(target=sends, daemon=True).start()"
        )
        with Context() as context:
            self.assertEqual(context.run(thread).code, 0)
            for _ in range(100):
                name = context.begin("print('up')\nwhile True: display('x' * 400_000)")
                context.wait_output("up")
                context.interrupt(name)
                self.assertEqual(context.finish().code, 130)
            self.assertEqual(context.run("assert not failed").code, 0)

    def test_a_child_is_interrupted_as_any(self):
        code = (
            "import os, signal, time\nr, w = os.pipe()\npid = os.fork()\n"
            "if not pid:\n    try:\n        os.write(w, b'x')\n        time.sleep(600)\n"
            "    except KeyboardInterrupt: os._exit(7)\n"
            "os.read(r, 1)\nos.kill(pid, signal.SIGINT)\nos.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])"
        )
        with Context() as context:
            self.assertEqual(context.run(code).text, "7")


if __name__ == "__main__":
    unittest.main()
