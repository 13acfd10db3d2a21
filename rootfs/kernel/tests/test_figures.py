"""Figures of matplotlib. Where it is not installed these can't run: they do in the `data` image."""

import importlib.util
import unittest

from tests.context import Context
from tests.kernel import run

PLOT = "import matplotlib.pyplot as plt\nplt.plot([1, 2])\n"


@unittest.skipUnless(importlib.util.find_spec("matplotlib"), "matplotlib is not installed here")
class Figures(unittest.TestCase):
    def forms(self, code: str) -> "list[list[str]]":
        outcome = run(code)
        self.assertEqual(outcome.stderr, "")
        return [sorted(result["data"]) for result in outcome.results]

    def test_an_open_figure_is_sent_at_the_end(self):
        outcome = run(PLOT + "x = 1")
        [result] = outcome.results
        self.assertFalse(result["main"])
        self.assertTrue(result["data"]["image/png"].startswith("iVBOR"))

    def test_a_closed_figure_is_not_sent(self):
        self.assertEqual(self.forms(PLOT + "plt.close()"), [])

    def test_show_sends_and_closes_so_that_the_next_plot_is_a_new_figure(self):
        outcome = run(PLOT + "plt.show()\nprint(plt.get_fignums())\nplt.plot([3])\nplt.show()\n")
        self.assertEqual((outcome.stdout, outcome.stderr, len(outcome.results)), ("[]\n", "", 2))

    def test_a_figure_as_last_expression_is_sent_once(self):
        self.assertEqual(self.forms(PLOT + "plt.gcf()"), [["image/png", "text/plain"]])

    def test_figures_are_sent_after_an_error_too(self):
        self.assertEqual(len(run(PLOT + "1/0\n").results), 1)

    def test_an_empty_figure_is_not_sent(self):
        self.assertEqual(self.forms("import matplotlib.pyplot as plt\nf = plt.figure()"), [])

    def test_only_so_many_figures_are_sent(self):
        code = "import matplotlib.pyplot as plt\nplt.rcParams['figure.max_open_warning'] = 0\n"
        outcome = run(code + "for i in range(22): plt.subplots(figsize=(1, 1))\n")
        self.assertEqual(len(outcome.results), 20)
        self.assertIn("more than 20 figures", outcome.stderr)

    def test_a_forked_child_sends_no_figure(self):
        code = PLOT + "import os\nif os.fork() == 0:\n    plt.show()\n    os._exit(0)\nos.wait()\nx = 1"
        self.assertEqual(len(run(code).results), 1)

    def test_a_figure_made_where_a_sent_one_was_is_sent(self):
        code = "for i in range(12):\n    plt.plot([i])\n    plt.show()\n    gc.collect()\n"
        self.assertEqual(len(run("import gc\nimport matplotlib.pyplot as plt\n" + code).results), 12)


@unittest.skipUnless(importlib.util.find_spec("matplotlib"), "matplotlib is not installed here")
class InContexts(unittest.TestCase):
    def test_figures_are_shown_without_asking_and_each_code_starts_with_none(self):
        with Context() as context:
            first = context.run(PLOT + "fig = plt.gcf()\nx = 1")
            second = context.run("plt.plot([3])\nplt.get_fignums()")
            again = context.run("fig")
        self.assertEqual(
            [(r["main"], sorted(r["data"])) for r in first.results], [(False, ["image/png", "text/plain"])]
        )
        self.assertEqual([r["main"] for r in second.results], [True, False])
        self.assertEqual(second.results[0]["data"]["text/plain"], "[1]")
        self.assertEqual([(r["main"], r["chart"]["type"]) for r in again.results], [(True, "line")])

    def test_a_figure_is_shown_once_and_after_an_error_too(self):
        with Context() as context:
            self.assertEqual(len(context.run(PLOT + "display(plt.gcf())").results), 1)
            self.assertEqual(len(context.run(PLOT + "1/0").results), 1)
            self.assertEqual(len(context.run(PLOT + "plt.show()\nplt.plot([3])\nplt.show()").results), 2)

    def test_the_bound_of_figures_is_one_of_each_execution(self):
        code = (
            "import matplotlib.pyplot as plt\nplt.rcParams['figure.max_open_warning'] = 0\n"
            "for i in range(21): plt.subplots(figsize=(1, 1))"
        )
        with Context() as context:
            self.assertEqual([len(context.run(code).results) for _ in range(2)], [20, 20])

    def test_another_format_can_be_asked_for(self):
        with Context() as context:
            context.run("%matplotlib inline\n%config InlineBackend.figure_format = 'svg'")
            [result] = context.run(PLOT + "x = 1").results
        self.assertEqual((sorted(result["data"]), result["chart"]["type"]), (["image/svg+xml", "text/plain"], "line"))

    def test_an_interrupt_ends_the_drawing(self):
        code = (
            "import matplotlib.pyplot as plt, matplotlib.figure, time\nfig, ax = plt.subplots()\nax.plot([1])\n"
            "class Slow(type(ax.lines[0])):\n    def draw(self, r):\n        print('up')\n        time.sleep(600)\n"
            "ax.lines[0].__class__ = Slow\nx = 1"
        )
        with Context() as context:
            name = context.begin(code)
            context.wait_output("up")
            context.interrupt(name)
            ended = context.finish()
        self.assertEqual((ended.code, ended.error["name"], ended.results), (130, "KeyboardInterrupt", []))


if __name__ == "__main__":
    unittest.main()
