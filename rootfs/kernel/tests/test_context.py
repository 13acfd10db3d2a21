"""Contexts of Python: state, results, ends, what is left alone."""

import os
import unittest

from tests.context import Context, memory

PLAIN = {"exit_code": 0, "kept": True}
# For code that is to go on only after its execution has ended (`Context.go`).
WAIT = "import os, time\ndef wait():\n    while not os.path.exists('go'): time.sleep(0.01)\n"


class State(unittest.TestCase):
    def test_state_is_kept_and_told(self):
        with Context() as context:
            first = context.run("x = 41\ndef f(): return x + 1")
            second = context.run("f()")
        expected = {"ev": "done", "id": "e1", "execution_count": 1, "names": 2, **PLAIN}
        self.assertEqual((context.first["ev"], first.events), ("ready", [expected]))
        self.assertEqual((second.text, second.done["execution_count"]), ("42", 2))

    def test_a_start_says_where_and_with_what(self):
        with Context(environment={"SPOT": "x y"}, threads=3) as context:
            ended = context.run("import os\nprint(os.getcwd(), os.environ['SPOT'], os.environ['OMP_NUM_THREADS'])")
        self.assertEqual(ended.stdout, "HOME x y 3\n")

    def test_a_start_that_can_not_be_is_refused(self):
        for start, message in (
            ({"directory": "/nowhere"}, "directory /nowhere: No such file or directory"),
            ({"language": "cobol"}, "language cobol: there are python and bash"),
        ):
            with Context(**start) as context:
                self.assertEqual(context.first, {"ev": "refused", "message": message})
                self.assertEqual(context.process.wait(60), 2)

    def test_variables_of_an_execution_are_gone_after_it(self):
        with Context(environment={"A": "start"}) as context:
            inside = context.run("import os\nos.environ['A'], os.environ['B']", environment={"A": "one", "B": "two"})
            after = context.run("os.environ['A'], os.environ.get('B')")
        self.assertEqual((inside.text, after.text), ("('one', 'two')", "('start', None)"))

    def test_a_reset_forgets(self):
        with Context() as context:
            context.run("from __future__ import annotations\nimport os\nx = 1\nos.chdir('/')\nos.environ['A'] = 'b'")
            context.send({"op": "reset"})
            event = context.event()
            ended = context.run("import os\nprint('x' in globals(), os.getcwd(), os.environ.get('A'), __name__)")
            evaluated = context.run("def f(a: 1 + 1): ...\nf.__annotations__")
        self.assertEqual((event, ended.stdout), ({"ev": "reset"}, "False HOME None __main__\n"))
        self.assertEqual((ended.done["execution_count"], evaluated.text), (1, "{'a': 2}"))

    def test_what_is_not_to_be_stored_leaves_no_number(self):
        with Context() as context:
            context.run("1")
            hidden = context.run("2", store=False)
            silent = context.run("x = 3\nx", silent=True)
            shown = context.run("_, x")
        self.assertEqual((hidden.text, silent.results, shown.text), ("2", [], "(1, 3)"))
        self.assertEqual([ended.done["execution_count"] for ended in (hidden, silent, shown)], [2, 2, 2])

    def test_in_and_out_are_bounded(self):
        with Context() as context:
            for number in range(1, 8):
                context.run(f"{number} * 10")
            ended = context.run("len(In), In[-2], sorted(Out), _, __, ___, _7")
        self.assertEqual(ended.text, "(9, '7 * 10', [5, 6, 7], 70, 60, 50, 70)")

    def test_future_imports_hold_for_later_code(self):
        with Context() as context:
            context.run("from __future__ import annotations")
            self.assertEqual(context.run("def f(a: 1 + 1): ...\nf.__annotations__").text, "{'a': '1 + 1'}")

    def test_modules_of_the_working_directory_are_found_where_it_is_then(self):
        with Context() as context:
            os.mkdir(f"{context.folder}/sub")
            with open(f"{context.folder}/sub/mine.py", "w") as file:
                file.write("x = 5")
            before = context.run("import mine")
            after = context.run("import os\nos.chdir('sub')\nimport mine\nmine.x")
        self.assertEqual((before.error["name"], after.text), ("ModuleNotFoundError", "5"))

    def test_nothing_is_written_and_nothing_of_ours_is_on_the_path(self):
        with Context() as context:
            context.run("1\n%who")
            ended = context.run("import sys, os\n[p for p in sys.path if 'brig' in p], sorted(os.listdir()), sys.argv")
        self.assertEqual(ended.text, "([], [], [''])")

    def test_packages_of_the_template_are_found_before_ours(self):
        with Context() as context:
            os.mkdir(f"{context.folder}/matplotlib_inline")
            with open(f"{context.folder}/matplotlib_inline/__init__.py", "w") as file:
                file.write("mine = True")
            self.assertEqual(context.run("import matplotlib_inline\nmatplotlib_inline.mine").text, "True")

    def test_the_start_leaves_no_thread_and_imports_neither_asyncio_nor_matplotlib(self):
        code = (
            "import sys, threading\n[m for m in ('asyncio', 'matplotlib', 'sqlite3', 'jedi') if m in sys.modules],"
            " threading.active_count(), len(__import__('os').listdir('/proc/self/task'))"
        )
        with Context() as context:
            self.assertEqual(context.run(code).text, "([], 1, 1)")

    def test_memory_stays_flat_over_a_thousand_executions(self):
        code = "import math\ndata = list(range(10_000))\nprint(len(data))\nlen(data) + {}"
        with Context() as context:
            for number in range(200):
                context.run(code.format(number))
            before = memory(context.process)
            for number in range(800):
                ended = context.run(code.format(number))
            after = memory(context.process)
        self.assertEqual((ended.text, ended.done["execution_count"]), ("10799", 1000))
        self.assertLess(after - before, 4 << 20)


class Ends(unittest.TestCase):
    def test_an_error_is_told_and_the_context_lives_on(self):
        with Context() as context:
            context.run("def f(n):\n    return 1 / n\n")
            ended = context.run("\nf(0)")
            after = context.run("1")
        expected = (
            'Traceback (most recent call last):\n  File "<cell 2>", line 2, in <module>\n    f(0)\n'
            '  File "<cell 1>", line 2, in f\n    return 1 / n\n           ~~^~~\nZeroDivisionError: division by zero\n'
        )
        self.assertEqual((ended.code, ended.error["line"], ended.error["traceback"]), (1, 2, expected))
        self.assertEqual((ended.stderr, after.text), (expected, "1"))

    def test_a_syntax_error_shows_the_codes_own_line(self):
        with Context() as context:
            for code, line in (("x = 1\ny = = 2", 2), ("\n\n%time 1\ny = = 2", 4), ("return 1", 1), ("(", 1)):
                ended = context.run(code)
                self.assertEqual((ended.code, ended.error["name"], ended.error["line"]), (1, "SyntaxError", line))
                self.assertNotIn("brig", ended.stderr)

    def test_lines_are_counted_as_the_code_was_sent(self):
        with Context() as context:
            ended = context.run("\n\n%cd /\n\n1 / 0")
        self.assertEqual((ended.error["name"], ended.error["line"]), ("ZeroDivisionError", 5))

    def test_sys_exit_ends_the_execution_alone(self):
        with Context() as context:
            context.run("import sys\nx = 1")
            ends = [context.run(code) for code in ("sys.exit()", "sys.exit(3)", "exit('gone')", "quit(0)", "x")]
        self.assertEqual([ended.code for ended in ends], [0, 3, 1, 0, 0])
        self.assertEqual([len(ended.events) for ended in ends], [1, 2, 2, 1, 2])
        self.assertEqual((ends[1].error["name"], ends[1].error["message"], ends[1].stderr), ("SystemExit", "3", ""))
        self.assertEqual((ends[2].stderr, ends[4].text), ("gone\n", "1"))

    def test_an_interpreter_that_ends_is_the_end_of_the_pipe(self):
        for code, status in (
            ("import os\nprint('x')\nos._exit(4)", 4),
            ("import os\nprint('x')\nos.kill(os.getpid(), 9)", -9),
        ):
            with Context() as context:
                ended = context.run(code)
                self.assertEqual((ended.events, ended.stdout, context.process.returncode), ([], "x\n", status))

    def test_an_exit_runs_atexit_and_waits_for_threads(self):
        code = (
            f"{WAIT}import atexit, threading\nx = 'kept'\natexit.register(lambda: print('last', x))\n"
            "threading.Thread(target=lambda: (wait(), print('thread'))).start()"
        )
        for end in ("exit", None):
            with Context() as context:
                context.run(code)
                if end:
                    context.send({"op": end})
                else:
                    os.close(context.requests)
                    context.requests = os.open("/dev/null", os.O_RDONLY)
                context.go()
                self.assertIsNone(context.event())
                self.assertEqual((context.process.wait(60), context.finish().stdout), (0, "thread\nlast kept\n"))

    def test_a_deep_recursion_and_lack_of_memory_are_errors(self):
        with Context() as context:
            self.assertEqual(context.run("def f(): f()\nf()").error["name"], "RecursionError")
            self.assertEqual(context.run("x = bytearray(1 << 62)").error["name"], "MemoryError")
            self.assertEqual(context.run("1").code, 0)

    def test_input_fails_at_once(self):
        with Context() as context:
            self.assertEqual(context.run("input('name? ')").error["name"], "EOFError")

    def test_a_request_that_is_none_ends_the_context(self):
        for request in ({"op": "dance"}, {"op": "run", "code": "1"}, {"op": "run", "id": "a", "code": 1}):
            with Context() as context:
                context.send(request)
                self.assertEqual((context.event(), context.process.wait(60)), (None, 2))
                self.assertIn("kernel: ", context.finish().stderr)

    def test_a_child_that_the_code_forks_is_silent_and_ends_with_the_code(self):
        code = "import os\npid = os.fork()\nif pid: os.waitpid(pid, 0)\nelse: x = 1 / 0\nprint('parent')\npid > 0"
        with Context() as context:
            ended = context.run(code)
            after = context.run("'x' in globals()")
        self.assertEqual((ended.text, ended.stdout, ended.code), ("True", "parent\n", 0))
        self.assertIn("ZeroDivisionError", ended.stderr)
        self.assertEqual((after.text, after.done["execution_count"]), ("False", 2))

    def test_multiprocessing_by_fork_works(self):
        code = "import multiprocessing as mp\ndef f(x): return x * x\nwith mp.Pool(2) as p: print(p.map(f, [1, 2, 3]))"
        with Context() as context:
            self.assertEqual(context.run(code).stdout, "[1, 4, 9]\n")

    def test_children_do_not_have_the_pipes(self):
        child = "import os; print([n for n in (3, 4, 200, 201) if os.path.exists(f'/proc/self/fd/{n}')])"
        with Context() as context:
            self.assertEqual(context.run(f"!python3 -c {child!r}").stdout, "[]\n")


class Output(unittest.TestCase):
    def test_all_of_an_execution_is_out_when_it_is_done(self):
        with Context() as context:
            ended = context.run("import sys\nprint('é' * 100_000, end='')\nsys.stderr.write('no line')")
        self.assertEqual((ended.stdout, ended.stderr), ("é" * 100_000, "no line"))

    def test_what_threads_write_between_executions_is_not_lost(self):
        start = (
            f"{WAIT}import threading\ngone = threading.Event()\n"
            "def say():\n    wait()\n    print('from the thread')\n    display('shown')\n    gone.set()\n"
            "threading.Thread(target=say).start()"
        )
        with Context() as context:
            context.run(start)
            context.go()
            context.wait_output("from the thread\n")
            result = context.event()
            ended = context.run("gone.wait()")
        self.assertEqual((ended.between, ended.stdout), ("from the thread\n", ""))
        self.assertEqual((result["data"]["text/plain"], "id" in result), ("'shown'", False))

    def test_tasks_go_on_between_executions(self):
        code = (
            "import asyncio, os\nasync def tick():\n"
            "    while not os.path.exists('go'): await asyncio.sleep(0.01)\n    print('tick')\n"
            "task = asyncio.create_task(tick())\nawait asyncio.sleep(0)"
        )
        with Context() as context:
            context.run(code)
            context.go()
            context.wait_output("tick\n")
            self.assertEqual(context.run("task.done()").text, "True")

    def test_frames_that_the_code_writes_itself_can_not_be_told_from_ours(self):
        code = "import os\nbody = b'{\"ev\":\"forged\"}'\nos.write(201, len(body).to_bytes(4, 'little') + body)\nNone"
        with Context() as context:
            self.assertEqual(context.run(code).events[0], {"ev": "forged"})

    def test_code_that_closes_everything_is_the_end_for_brigd_alone(self):
        with Context() as context:
            context.begin("import os\nos.closerange(3, 1000)")
            self.assertIsNone(context.event())
            self.assertEqual(context.process.wait(60), 2)


if __name__ == "__main__":
    unittest.main()
