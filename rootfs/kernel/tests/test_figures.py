"""Figures of matplotlib. Where it is not installed these can't run: they do in the `data` image."""

import importlib.util
import unittest

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


if __name__ == "__main__":
    unittest.main()
