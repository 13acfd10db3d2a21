"""Values shown as rich results."""

import unittest

from tests.kernel import run

RICH = "class R:\n    def __repr__(self): return 'plain'\n"


class LastExpression(unittest.TestCase):
    def test_the_last_expression_is_sent_and_not_printed(self):
        outcome = run("x = 20\nx + 1")
        expected = [{"ev": "result", "main": True, "display_id": None, "data": {"text/plain": "21"}}, {"ev": "done"}]
        self.assertEqual((outcome.stdout, outcome.events), ("", expected))

    def test_none_shows_nothing(self):
        self.assertEqual(run("print(1)").results, [])

    def test_a_semicolon_mutes(self):
        self.assertEqual(run("3;").results, [])
        self.assertEqual(run("3 ; # quiet").results, [])

    def test_an_earlier_expression_shows_nothing(self):
        self.assertEqual(run("1\nx = 2").results, [])

    def test_an_expression_over_several_lines_is_shown(self):
        self.assertEqual(run("sum([\n  1,\n  2,\n])\n\n# end\n").results[0]["data"], {"text/plain": "3"})

    def test_a_failure_in_the_last_expression_is_an_error_of_the_program(self):
        outcome = run("x = 0\n1 / x")
        self.assertEqual((outcome.code, outcome.error["line"], outcome.results), (1, 2, []))
        self.assertIn("1 / x\n    ~~^~~\n", outcome.stderr)


class Rich(unittest.TestCase):
    def test_all_forms_are_collected(self):
        code = RICH + (
            "    def _repr_html_(self): return '<b>'\n    def _repr_png_(self): return b'png'\n"
            "    def _repr_svg_(self): return '<svg/>'\n    def _repr_markdown_(self): return '**'\n"
            "    def _repr_latex_(self): return '$x$'\n    def _repr_json_(self): return {'a': [1]}\n"
            "    def _repr_jpeg_(self): return None\nR()"
        )
        expected = {
            "text/plain": "plain",
            "text/html": "<b>",
            "image/png": "cG5n",
            "image/svg+xml": "<svg/>",
            "text/markdown": "**",
            "text/latex": "$x$",
            "application/json": '{"a": [1]}',
        }
        self.assertEqual(run(code).results[0]["data"], expected)

    def test_a_mimebundle_wins_over_the_single_forms(self):
        code = RICH + (
            "    def _repr_mimebundle_(self, include=None, exclude=None):\n"
            "        return {'text/html': 'm', 'x/y': {'z': 1}}, {}\n"
            "    def _repr_html_(self): return 'h'\nR()"
        )
        self.assertEqual(run(code).results[0]["data"], {"text/plain": "plain", "text/html": "m", "x/y": '{"z": 1}'})

    def test_a_class_is_shown_as_a_class(self):
        outcome = run(RICH + "    def _repr_html_(self): return 'h'\nR")
        self.assertEqual(outcome.results[0]["data"], {"text/plain": "<class '__main__.R'>"})

    def test_an_object_that_answers_to_everything_is_shown_plain(self):
        data = run("from unittest.mock import MagicMock\nMagicMock(name='m')").results[0]["data"]
        self.assertEqual(list(data), ["text/plain"])

    def test_a_failing_form_is_left_out_and_said(self):
        outcome = run(RICH + "    def _repr_html_(self): raise ValueError('no')\nR()")
        self.assertEqual((outcome.code, outcome.results[0]["data"]), (0, {"text/plain": "plain"}))
        self.assertEqual(outcome.stderr, "display: _repr_html_ of a R failed: ValueError: no\n")

    def test_a_failing_repr_is_said(self):
        outcome = run("class R:\n    def __repr__(self): raise ValueError('no')\nR()")
        self.assertEqual(outcome.code, 0)
        self.assertEqual(outcome.results[0]["data"], {"text/plain": "<R object, its repr failed with ValueError>"})

    def test_what_is_too_long_is_cut_or_left_out_and_said(self):
        outcome = run(RICH.replace("'plain'", "'p' * 600_000") + "    def _repr_html_(self): return 'h' * 600_000\nR()")
        data = outcome.results[0]["data"]
        self.assertEqual(list(data), ["text/plain"])
        self.assertTrue(data["text/plain"].endswith("\n... (cut)"))
        self.assertIn("text/html of 600000 characters left out", outcome.stderr)

    def test_forms_that_are_too_long_together_are_left_out(self):
        forms = "".join(f"    def _repr_{form}_(self): return 'h' * 500_000\n" for form in ("html", "svg", "markdown"))
        outcome = run(RICH + forms + "R()")
        self.assertIn("too long together", outcome.stderr)
        self.assertIn("text/plain", outcome.results[0]["data"])

    def test_display_shows_values_at_any_time(self):
        outcome = run("display(1, 'x')\nprint('end')")
        self.assertEqual(
            [(r["main"], r["data"]["text/plain"]) for r in outcome.results], [(False, "1"), (False, "'x'")]
        )

    def test_text_of_any_kind_passes(self):
        outcome = run("'\\ud800 \\0 \\u2028 \U0001f40d'")
        self.assertEqual(outcome.results[0]["data"]["text/plain"], "'\\ud800 \\x00 \\u2028 🐍'")


if __name__ == "__main__":
    unittest.main()
