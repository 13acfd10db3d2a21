"""Exceptions: what is sent, what is printed, where it starts."""

import unittest

from tests.kernel import run

TYPICAL = """\
def f(d):
    return d['missing']

f({})
"""

TYPICAL_TRACEBACK = """\
Traceback (most recent call last):
  File "HOME/main.py", line 4, in <module>
    f({})
  File "HOME/main.py", line 2, in f
    return d['missing']
           ~^^^^^^^^^^^
KeyError: 'missing'
"""


class Failure(unittest.TestCase):
    def test_a_traceback_starts_at_the_program_and_shows_its_source(self):
        outcome = run(TYPICAL + "\n")
        error = {"ev": "error", "name": "KeyError", "message": "'missing'", "line": 2, "traceback": TYPICAL_TRACEBACK}
        self.assertEqual((outcome.code, outcome.error, outcome.stderr), (1, error, TYPICAL_TRACEBACK))
        self.assertEqual(outcome.events[-1], {"ev": "done"})

    def test_a_program_without_a_name_has_one_in_tracebacks(self):
        outcome = run("1/0", filename=None)
        self.assertIn('File "<code>", line 1, in <module>\n    1/0\n', outcome.stderr)

    def test_a_traceback_of_awaited_code_starts_at_the_program(self):
        outcome = run("import asyncio\nasync def f():\n    await asyncio.sleep(0)\n    1/0\nawait f()")
        lines = outcome.stderr.splitlines()
        self.assertEqual(lines[1], '  File "HOME/main.py", line 5, in <module>')
        self.assertNotIn("brig_kernel", outcome.stderr)
        self.assertEqual(outcome.error["line"], 4)

    def test_the_line_is_the_programs_when_a_library_fails(self):
        outcome = run("import textwrap\n\ntextwrap.dedent(3)")
        self.assertEqual((outcome.error["name"], outcome.error["line"]), ("TypeError", 3))

    def test_causes_are_shown(self):
        outcome = run("try:\n    1/0\nexcept ZeroDivisionError as e:\n    raise ValueError('v') from e")
        self.assertIn("ZeroDivisionError: division by zero\n\nThe above exception was the direct cause", outcome.stderr)
        self.assertNotIn("brig_kernel", outcome.stderr)

    def test_exception_groups_are_shown(self):
        outcome = run("raise ExceptionGroup('g', [ValueError('v'), KeyError('k')])")
        self.assertIn("ValueError: v", outcome.stderr)
        self.assertEqual(outcome.error["name"], "ExceptionGroup")

    def test_a_syntax_error_is_shown_as_python_shows_it(self):
        outcome = run("x = 1\ny = = 2\n")
        expected = '  File "HOME/main.py", line 2\n    y = = 2\n        ^\nSyntaxError: invalid syntax\n'
        self.assertEqual((outcome.code, outcome.stderr), (1, expected))
        self.assertEqual((outcome.error["name"], outcome.error["line"]), ("SyntaxError", 2))
        self.assertEqual(outcome.error["traceback"], expected)

    def test_a_syntax_error_found_late_shows_its_line_too(self):
        outcome = run("x = 1\nreturn x\n")
        self.assertIn('  File "HOME/main.py", line 2\n    return x\n', outcome.stderr)

    def test_an_indentation_error_is_shown(self):
        outcome = run("if 1:\nx = 2\n")
        self.assertEqual((outcome.error["name"], outcome.error["line"]), ("IndentationError", 2))

    def test_a_nul_in_the_code_is_an_error_of_the_program(self):
        self.assertEqual(run("x = 1\0").code, 1)

    def test_a_syntax_error_in_another_module_has_its_frames(self):
        outcome = run("import bad", files={"bad.py": "x = = 1"})
        self.assertIn('File "HOME/main.py", line 1, in <module>', outcome.stderr)
        self.assertEqual(outcome.error["line"], 1)

    def test_a_deep_recursion_is_reported(self):
        outcome = run("def f(): f()\nf()")
        self.assertEqual((outcome.code, outcome.error["name"], outcome.error["line"]), (1, "RecursionError", 1))

    def test_a_long_traceback_is_cut_in_the_middle(self):
        outcome = run("raise ValueError('x' * 200_000 + 'END')")
        self.assertLessEqual(len(outcome.error["traceback"]), 64 << 10)
        self.assertLessEqual(len(outcome.error["message"]), 4 << 10)
        self.assertTrue(outcome.error["traceback"].startswith("Traceback"))
        self.assertTrue(outcome.error["traceback"].endswith("END\n"))

    def test_an_exception_whose_str_fails_is_reported(self):
        outcome = run("class E(Exception):\n    def __str__(self): raise ValueError\nraise E")
        self.assertEqual((outcome.error["name"], outcome.error["message"]), ("E", "<exception str() failed>"))

    def test_the_programs_own_excepthook_is_called(self):
        outcome = run("import sys\nsys.excepthook = lambda t, e, tb: print('mine', t.__name__, tb.tb_lineno)\n1/0\n")
        self.assertEqual((outcome.stdout, outcome.stderr, outcome.code), ("mine ZeroDivisionError 3\n", "", 1))

    def test_the_source_is_there_for_the_program_itself(self):
        code = (
            "import traceback, inspect, warnings\ndef f():\n    return 1\nclass C:\n    x = 2\n"
            "try:\n    1/0\nexcept Exception:\n    print(traceback.format_exc())\n"
            "print(inspect.getsource(f), inspect.getsource(C))\nwarnings.warn('careful')\n"
        )
        outcome = run(code)
        self.assertIn('File "HOME/main.py", line 7, in <module>\n    1/0\n', outcome.stdout)
        self.assertIn("def f():\n    return 1\n class C:\n    x = 2\n", outcome.stdout)
        self.assertEqual(outcome.stderr, "HOME/main.py:11: UserWarning: careful\n  warnings.warn('careful')\n")

    def test_modules_of_the_program_do_not_shadow_ours(self):
        outcome = run(TYPICAL + "\n", files={"traceback.py": "boom", "linecache.py": "boom", "json.py": "boom"})
        self.assertEqual(outcome.stderr, TYPICAL_TRACEBACK)


if __name__ == "__main__":
    unittest.main()
