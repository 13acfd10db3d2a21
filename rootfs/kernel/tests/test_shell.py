"""What IPython brings to a context: results, displays, magics, commands."""

import os
import unittest

from tests.context import Context


class Results(unittest.TestCase):
    def test_the_last_expression_is_sent(self):
        with Context() as context:
            ended = context.run("20 + 1")
            self.assertEqual(
                ended.results,
                [{"ev": "result", "id": "e1", "main": True, "display_id": None, "data": {"text/plain": "21"}}],
            )
            self.assertEqual([context.run(code).results for code in ("None", "3;", "x = 3", "")], [[], [], [], []])

    def test_all_forms_are_sent(self):
        forms = {
            "html": ("'<b>'", "text/html", "<b>"),
            "png": ("b'png'", "image/png", "cG5n"),
            "svg": ("'<svg/>'", "image/svg+xml", "<svg/>"),
            "markdown": ("'**'", "text/markdown", "**"),
            "latex": ("'$x$'", "text/latex", "$x$"),
            "json": ("{'a': [1]}", "application/json", '{"a": [1]}'),
        }
        code = "class R:\n    def __repr__(self): return 'plain'\n" + "".join(
            f"    def _repr_{name}_(self): return {value}\n" for name, (value, _, _) in forms.items()
        )
        with Context() as context:
            data = context.run(code + "R()").results[0]["data"]
        self.assertEqual(data, {"text/plain": "plain"} | {kind: text for _, kind, text in forms.values()})

    def test_a_display_is_updated_by_its_name(self):
        code = "from IPython.display import HTML\nh = display(HTML('<b>'), display_id='d')\nh.update(HTML('<i>'))"
        with Context() as context:
            events = context.run(code).results
        told = [(e["display_id"], e.get("update", False), e["data"]["text/html"], e["main"]) for e in events]
        self.assertEqual(told, [("d", False, "<b>", False), ("d", True, "<i>", False)])

    def test_a_failing_form_is_said_and_left_out(self):
        code = (
            "class R:\n    def __repr__(self): return 'plain'\n    def _repr_html_(self): raise ValueError('no')\nR()"
        )
        with Context() as context:
            ended = context.run(code)
        self.assertEqual((ended.code, ended.text), (0, "plain"))
        self.assertIn("ValueError: no", ended.stderr)

    def test_what_is_too_long_is_cut_or_left_out_and_said(self):
        with Context() as context:
            ended = context.run("from IPython.display import HTML\nHTML('h' * 600_000)")
            self.assertEqual(list(ended.results[0]["data"]), ["text/plain"])
            self.assertIn("text/html of 600000 characters left out", ended.stderr)
            ended = context.run("'p' * 2_000_000")
            self.assertTrue(ended.text.endswith("\n... (cut)"))

    def test_a_clear_of_the_output_writes_nothing(self):
        with Context() as context:
            ended = context.run("from IPython.display import clear_output\nclear_output(wait=True)")
        self.assertEqual((ended.stdout, ended.stderr, ended.results), ("", "", []))


class Await(unittest.TestCase):
    def test_await_works_at_top_level_and_state_is_kept(self):
        with Context() as context:
            context.run("import asyncio\nasync def f(x):\n    await asyncio.sleep(0)\n    return x\ny = await f(1)")
            self.assertEqual(context.run("await f(y + 1)").text, "2")

    def test_asyncio_run_works_beside_it(self):
        with Context() as context:
            context.run("import asyncio\nawait asyncio.sleep(0)")
            self.assertEqual(context.run("async def f(): return 3\nasyncio.run(f())").text, "3")
            self.assertEqual(context.run("await f()").text, "3")

    def test_an_error_in_awaited_code_shows_the_codes_frames(self):
        with Context() as context:
            ended = context.run("import asyncio\nasync def f():\n    await asyncio.sleep(0)\n    1 / 0\n\nawait f()")
        self.assertEqual(
            (ended.error["line"], ended.stderr.splitlines()[1]), (4, '  File "<cell 1>", line 6, in <module>')
        )


class Magics(unittest.TestCase):
    def test_those_that_make_sense_work(self):
        with Context() as context:
            self.assertEqual(context.run("%time 1 + 1").text, "2")
            self.assertIn("Wall time", context.run("%%time\nx = 5").stdout)
            self.assertIn("per loop", context.run("%timeit -n 1 -r 1 x").stdout)
            self.assertEqual(context.run("%who_ls").text, "['x']")
            self.assertEqual(context.run("%env SPOT=7\n!echo $SPOT").stdout, "env: SPOT=7\n7\n")
            self.assertEqual(context.run("%cd /\n%pwd").text, "'/'")
            self.assertIn("Docstring", context.run("len?").results[0]["data"]["text/plain"])
            self.assertEqual(context.run("%matplotlib inline").code, 0)
            self.assertEqual(context.run("    indented = 1\n    indented").text, "1")

    def test_output_is_captured(self):
        with Context() as context:
            ended = context.run("%%capture out\nprint('in')\ndisplay(1)\n5")
            self.assertEqual((ended.stdout, ended.results), ("", []))
            self.assertEqual(context.run("out.stdout, len(out.outputs)").text, "('in\\n', 2)")

    def test_those_that_can_not_work_say_why(self):
        for code, words in (
            ("%debug", "%debug: needs a terminal"),
            ("%edit x.py", "%edit: needs a terminal"),
            ("%logstart", "%logstart: nothing of a context is logged"),
            ("%load x.py", "%load: there is no next input"),
            ("%conda install x", "%conda: packages are those of the template"),
            ("%matplotlib qt", "qt can't be used"),
            ("%nonsense", "`%nonsense` not found"),
        ):
            with Context() as context:
                ended = context.run(code)
                self.assertEqual((ended.code, ended.error["name"], ended.error["traceback"]), (1, "UsageError", ""))
                self.assertIn(words, ended.error["message"])
                self.assertEqual(ended.stderr, f"UsageError: {ended.error['message']}\n")

    def test_a_name_of_a_magic_is_a_name(self):
        with Context() as context:
            self.assertEqual(context.run("ls").error["name"], "NameError")

    def test_tb_shows_the_last_traceback(self):
        with Context() as context:
            error = context.run("1 / 0").error
            context.run("1")
            self.assertEqual(context.run("%tb").stderr, error["traceback"])

    def test_scripts_run_as_commands_of_the_execution(self):
        with Context() as context:
            self.assertEqual(context.run("%%bash\nx=3\necho $x\necho err >&2").stdout, "3\n")
            failed = context.run("%%bash\necho before\nexit 3")
            self.assertEqual((failed.stdout, failed.error["name"]), ("before\n", "CalledProcessError"))
            self.assertEqual(context.run("_exit_code").text, "3")
            self.assertEqual(context.run("%%bash --no-raise-error --out text\necho kept\nfalse").code, 0)
            self.assertEqual(context.run("text").text, "'kept\\n'")
            self.assertEqual(context.run("%%script sh -s a\necho $1").stdout, "a\n")
            self.assertEqual(context.run("%%ruby\nputs 1").error["name"], "UsageError")

    def test_commands(self):
        with Context() as context:
            self.assertEqual(context.run("name = 'x y'\n!echo {name}; exit 4\n_exit_code").stdout, "x y\n")
            self.assertEqual(context.run("_exit_code").text, "4")
            self.assertEqual(context.run("lines = !printf 'a\\nb'\nlist(lines)").text, "['a', 'b']")
            self.assertEqual(context.run("!cat").stdout, "")

    def test_order_of_output_and_commands_is_kept(self):
        with Context() as context:
            self.assertEqual(context.run("print('a', end='')\n!echo b\nprint('c')").stdout, "ab\nc\n")

    def test_scripts_leave_no_thread(self):
        with Context() as context:
            context.run("%%bash\ntrue")
            self.assertEqual(context.run("import threading\nthreading.active_count()").text, "1")

    def test_nothing_lands_in_the_home(self):
        with Context() as context:
            context.run("%cd /\n%history\n1/0")
            self.assertEqual(os.listdir(context.folder), [])


if __name__ == "__main__":
    unittest.main()
