"""Programs run as `python3 main.py` would run them."""

import os
import resource
import signal
import tempfile
import textwrap
import time
import unittest

from tests.kernel import Kernel, run

DONE = {"ev": "done"}


class Plain(unittest.TestCase):
    def test_output_comes_by_the_streams_and_done_by_the_pipe(self):
        outcome = run("import sys\nprint('a', 'b')\nprint('e', file=sys.stderr)")
        self.assertEqual((outcome.code, outcome.stdout, outcome.stderr, outcome.events), (0, "a b\n", "e\n", [DONE]))

    def test_what_was_printed_without_a_newline_survives_a_kill(self):
        outcome = run("import os, sys\nprint('50 %', end='')\nsys.stdout.write(' done')\nos.kill(os.getpid(), 9)")
        self.assertEqual((outcome.code, outcome.stdout), (-9, "50 % done"))

    def test_lines_of_threads_stay_whole(self):
        code = """
            import threading
            def say(word):
                for _ in range(300): print(word, word, sep='-')
            threads = [threading.Thread(target=say, args=(word,)) for word in 'abc']
            [thread.start() for thread in threads]
        """
        outcome = run(textwrap.dedent(code))
        self.assertEqual(sorted(set(outcome.stdout.splitlines())), ["a-a", "b-b", "c-c"])
        self.assertEqual(outcome.stdout.count("\n"), 900)

    def test_print_refuses_what_prints_refuse(self):
        for call in ("print(1, sep=2)", "print(1, nonsense=2)"):
            self.assertEqual(run(f"try: {call}\nexcept TypeError: print('refused')").stdout, "refused\n")

    def test_a_print_of_a_value_that_fails_shows_only_the_programs_frames(self):
        outcome = run("class X:\n    def __str__(self): return 1 / 0\nprint(X())")
        self.assertNotIn("brig", outcome.stderr)
        self.assertIn("line 3, in <module>", outcome.stderr)
        self.assertIn("line 2, in __str__", outcome.stderr)

    def test_an_empty_program_does_nothing(self):
        outcome = run("")
        self.assertEqual((outcome.code, outcome.stdout, outcome.stderr, outcome.events), (0, "", "", [DONE]))

    def test_main_looks_like_main(self):
        code = "import sys\nprint(__name__, __file__, __package__, __spec__, __doc__, sys.argv, sorted(globals()))"
        outcome = run(code, argv=["main.py", "x y"])
        names = "['__builtins__', '__doc__', '__file__', '__loader__', '__name__', '__package__', '__spec__', 'sys']"
        self.assertEqual(outcome.stdout, f"__main__ HOME/main.py None None None ['main.py', 'x y'] {names}\n")

    def test_without_a_file_name_there_is_no_file(self):
        code = "import __main__\nprint('__file__' in globals(), hasattr(__main__, '__file__'))"
        outcome = run(code, filename=None, argv=["-c"])
        self.assertEqual(outcome.stdout, "False False\n")

    def test_the_module_is_its_namespace(self):
        outcome = run("import __main__\nx = 1\n__main__.y = 2\n__main__.__file__ = 'f'\nprint(__main__.x, y, __file__)")
        self.assertEqual(outcome.stdout, "1 2 f\n")

    def test_modules_of_the_working_directory_are_found(self):
        code = "import mine, os\nprint(mine.x, sorted(os.listdir()))"
        outcome = run(code, files={"mine.py": "x = 5"}, env={"PYTHONDONTWRITEBYTECODE": "1"})
        self.assertEqual(outcome.stdout, "5 ['mine.py']\n")

    def test_modules_of_the_kernel_are_not_found_first(self):
        outcome = run("import sys\nprint([p for p in sys.path if 'kernel' in p])\nimport kernel")
        self.assertEqual(outcome.stdout, "[]\n")
        self.assertEqual(outcome.error["name"], "ModuleNotFoundError")

    def test_pythonpath_works(self):
        outcome = run("import sys\nprint(sys.path[1])", env={"PYTHONPATH": "/somewhere"})
        self.assertEqual(outcome.stdout, "/somewhere\n")

    def test_input_fails_at_once(self):
        outcome = run("input('name? ')")
        self.assertEqual((outcome.code, outcome.stdout), (1, "name? "))
        self.assertEqual((outcome.error["name"], outcome.error["line"]), ("EOFError", 1))

    def test_threads_are_set_before_imports_and_the_callers_value_wins(self):
        code = "import os\nprint(os.environ['OMP_NUM_THREADS'], os.environ['OPENBLAS_NUM_THREADS'])"
        self.assertEqual(run(code, threads=3, env={"OMP_NUM_THREADS": "7"}).stdout, "7 3\n")

    def test_text_survives_in_any_language(self):
        self.assertEqual(run("print('žluťoučký \\N{SNAKE} \U0001f40d')").stdout, "žluťoučký 🐍 🐍\n")

    def test_a_byte_order_mark_is_ignored(self):
        self.assertEqual(run("\ufeffprint(1)").stdout, "1\n")

    def test_future_imports_hold_for_the_last_expression(self):
        code = "from __future__ import annotations\nf = lambda: 0\n(lambda: (g := 3))()"
        self.assertEqual(run(code).results[0]["data"], {"text/plain": "3"})

    def test_the_start_imports_nothing_heavy(self):
        names = ("json", "re", "ast", "typing", "traceback", "asyncio")
        code = f"import sys\nprint([m for m in {names} if m in sys.modules])"
        with_site = {"re", "typing"}  # A host's own .pth files may import these.
        self.assertEqual([name for name in eval(run(code).stdout) if name not in with_site], [])


class Output(unittest.TestCase):
    def test_a_line_is_out_before_the_program_is_killed(self):
        with tempfile.TemporaryDirectory() as folder:
            request = {"op": "run", "code": "print('first')\nimport time\ntime.sleep(60)", "filename": "main.py"}
            kernel = Kernel(folder, request, {})
            self.assertEqual(os.read(kernel.process.stdout.fileno(), 100), b"first\n")
            kernel.process.kill()
            outcome = kernel.finish()
        self.assertEqual((outcome.code, outcome.events), (-signal.SIGKILL, []))

    def test_what_is_not_a_line_is_out_at_the_end(self):
        self.assertEqual(run("print('x', end='')").stdout, "x")

    def test_much_output_is_complete(self):
        outcome = run("for i in range(20000): print('x' * 50)")
        self.assertEqual(len(outcome.stdout), 20000 * 51)

    def test_a_program_that_closes_its_streams_ends_well(self):
        outcome = run("import sys\nsys.stdout.close()\nsys.stderr.close()\n1/0")
        self.assertEqual((outcome.code, outcome.error["name"]), (1, "ZeroDivisionError"))


class Await(unittest.TestCase):
    def test_await_works_at_top_level(self):
        code = (
            "import asyncio\nasync def f(x):\n    await asyncio.sleep(0)\n    return x\nprint(await f(1))\nawait f(2)"
        )
        outcome = run(code)
        self.assertEqual((outcome.stdout, outcome.results[0]["data"]), ("1\n", {"text/plain": "2"}))

    def test_async_statements_work_at_top_level(self):
        code = (
            "import asyncio\nasync def numbers():\n    yield 1\n    yield 2\n"
            "async for x in numbers():\n    print(x)\nprint([y async for y in numbers()])"
        )
        self.assertEqual(run(code).stdout, "1\n2\n[1, 2]\n")

    def test_asyncio_run_works_without_top_level_await(self):
        self.assertEqual(run("import asyncio\nasync def f(): print('in')\nasyncio.run(f())").stdout, "in\n")

    def test_asyncio_is_not_imported_for_others(self):
        self.assertEqual(run("import sys\nprint('asyncio' in sys.modules)").stdout, "False\n")


class Ends(unittest.TestCase):
    def test_exit_codes(self):
        self.assertEqual(run("import sys\nsys.exit()").code, 0)
        self.assertEqual(run("import sys\nsys.exit(0)").events, [DONE])
        self.assertEqual(run("raise SystemExit(7)").code, 7)
        self.assertEqual(run("exit(3)").code, 3)

    def test_an_exit_with_a_number_is_reported_without_a_traceback(self):
        outcome = run("import sys\nsys.exit(7)")
        expected = {"ev": "error", "name": "SystemExit", "message": "7", "line": 2, "traceback": ""}
        self.assertEqual((outcome.error, outcome.stderr), (expected, ""))

    def test_an_exit_with_text_prints_it_and_is_one(self):
        outcome = run("import sys\nsys.exit('gone wrong')")
        self.assertEqual((outcome.code, outcome.stderr, outcome.error["message"]), (1, "gone wrong\n", "gone wrong"))

    def test_an_interrupt_is_a_keyboard_interrupt(self):
        with tempfile.TemporaryDirectory() as folder:
            code = "import time\nprint('up'); time.sleep(60)"
            kernel = Kernel(folder, {"op": "run", "code": code, "filename": "main.py"}, {})
            os.read(kernel.process.stdout.fileno(), 100)
            kernel.process.send_signal(signal.SIGINT)
            outcome = kernel.finish()
        self.assertEqual((outcome.code, outcome.error["name"], outcome.error["line"]), (130, "KeyboardInterrupt", 2))

    def test_os_exit_ends_at_once(self):
        outcome = run("import os\nprint('x')\nos._exit(4)")
        self.assertEqual((outcome.code, outcome.stdout, outcome.events), (4, "x\n", []))

    def test_atexit_runs_and_threads_are_waited_for(self):
        code = (
            "import atexit, threading, time\natexit.register(print, 'last')\n"
            "threading.Thread(target=lambda: (time.sleep(0.2), print('thread'))).start()\nprint('main')"
        )
        self.assertEqual(run(code).stdout, "main\nthread\nlast\n")

    def test_a_forked_child_that_runs_to_the_end_is_silent_on_the_pipe(self):
        code = "import os\npid = os.fork()\nif pid: os.wait()\nprint('child' if not pid else 'parent')\npid > 0"
        outcome = run(code)
        self.assertEqual(outcome.stdout, "child\nparent\n")
        self.assertEqual(
            outcome.events, [{"ev": "result", "main": True, "display_id": None, "data": {"text/plain": "True"}}, DONE]
        )

    def test_children_do_not_have_the_pipes(self):
        child = "import os; print([n for n in (3, 4, 200, 201) if os.path.exists(f'/proc/self/fd/{n}')])"
        code = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {child!r}], close_fds=False)"
        self.assertEqual(run(code).stdout, "[]\n")

    def test_the_pipes_are_out_of_the_way(self):
        code = """
            import os, stat
            print([n for n in (3, 4, 200, 201) if os.path.exists(f'/proc/self/fd/{n}')])
            print([stat.S_ISFIFO(os.fstat(n).st_mode) for n in (200, 201)])
        """
        self.assertEqual(run(textwrap.dedent(code)).stdout, "[200, 201]\n[True, True]\n")

    def test_a_low_limit_of_open_files_leaves_them_where_they_are(self):
        with tempfile.TemporaryDirectory() as folder:
            code = "import os\nprint([os.get_inheritable(n) for n in (3, 4)])\n1"
            request = {"op": "run", "code": code, "filename": "main.py"}
            before = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (100, before[1]))
            try:
                kernel = Kernel(folder, request, {})
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, before)
            outcome = kernel.finish()
        self.assertEqual((outcome.stdout, len(outcome.results)), ("[False, False]\n", 1))

    def test_long_events_of_threads_stay_whole(self):
        code = """
            import threading
            def say(word):
                for _ in range(20): display(word * 300000)
            threads = [threading.Thread(target=say, args=(word,)) for word in 'abc']
            [thread.start() for thread in threads]
            [thread.join() for thread in threads];
        """
        outcome = run(textwrap.dedent(code))
        self.assertEqual(len(outcome.results), 60)
        self.assertTrue(all(len(set(result["data"]["text/plain"].strip("'"))) == 1 for result in outcome.results))

    def test_a_program_that_closes_all_descriptors_ends_well(self):
        outcome = run("import os\nos.closerange(3, 1000)\nwith open('x', 'w') as f: os.dup2(f.fileno(), 201)\n1/0\n")
        self.assertEqual((outcome.code, outcome.events), (1, []))

    def test_a_bad_request_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            for request in (
                b"{",
                b"[]",
                b'{"op":"dance"}',
                b'{"op":"run","code":1}',
                b'{"op":"run","code":"","argv":[1]}',
            ):
                outcome = Kernel(folder, request, {}).finish()
                self.assertEqual((outcome.code, outcome.events), (2, []))
                self.assertTrue(outcome.stderr.startswith("kernel: "), outcome.stderr)


if __name__ == "__main__":
    unittest.main()
