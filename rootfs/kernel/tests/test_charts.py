"""What plots show, as data."""

import importlib.util
import unittest

from tests.context import Context

BEFORE = "import datetime\nimport matplotlib.pyplot as plt\nfig, ax = plt.subplots()\n"


@unittest.skipUnless(importlib.util.find_spec("matplotlib"), "matplotlib is not installed here")
class Charts(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.context = Context()

    @classmethod
    def tearDownClass(cls):
        cls.context.__exit__()

    def chart(self, code: str):
        ended = self.context.run(BEFORE + code + "\nx = 1")
        self.assertEqual((ended.code, ended.stderr), (0, ""), ended.stderr)
        [result] = ended.results
        return result.get("chart")

    def test_lines_with_titles_labels_units_and_ticks(self):
        code = (
            "ax.plot([1, 2, 3], [2.5, float('nan'), 4], label='north')\nax.plot([1, 2], [1, 1])\nax.axhline(2)\n"
            "ax.set(title='Sales', xlabel='Time (h)', ylabel='Mass [kg]', xticks=[1, 2, 3])\nax.grid()\nax.legend()"
        )
        chart = self.chart(code)
        self.assertEqual(
            [chart.pop(key) for key in ("y_ticks", "y_tick_labels")] and chart,
            {
                "type": "line",
                "title": "Sales",
                "x_label": "Time (h)",
                "x_unit": "h",
                "y_label": "Mass [kg]",
                "y_unit": "kg",
                "x_ticks": [1.0, 2.0, 3.0],
                "x_tick_labels": ["1", "2", "3"],
                "x_scale": "linear",
                "y_scale": "linear",
                "elements": [
                    {"label": "north", "points": [[1.0, 2.5], [2.0, None], [3.0, 4.0]]},
                    {"label": "Line 1", "points": [[1.0, 1.0], [2.0, 1.0]]},
                ],
            },
        )

    def test_dates_and_logarithms(self):
        chart = self.chart(
            "ax.plot([datetime.date(2024, 1, 1), datetime.date(2024, 2, 1)], [1, 100])\nax.set_yscale('log')"
        )
        self.assertEqual((chart["x_scale"], chart["y_scale"]), ("datetime", "log"))
        self.assertEqual(chart["elements"][0]["points"], [["2024-01-01", 1.0], ["2024-02-01", 100.0]])

    def test_points(self):
        chart = self.chart("ax.scatter([1, 2], [3, 4], label='a')\nax.scatter([5], [6])")
        self.assertEqual(chart["type"], "scatter")
        self.assertEqual(
            chart["elements"],
            [
                {"label": "a", "points": [[1.0, 3.0], [2.0, 4.0]]},
                {"label": "Series 1", "points": [[5.0, 6.0]]},
            ],
        )

    def test_bars_upright_and_lying(self):
        expected = [{"label": "a", "group": "Group 0", "value": 1.0}, {"label": "b", "group": "Group 0", "value": 1.0}]
        self.assertEqual(self.chart("ax.bar(['a', 'b'], [1, 1])")["elements"], expected)
        chart = self.chart("ax.barh(['a', 'b'], [1, 1])")
        self.assertEqual((chart["type"], chart["elements"]), ("bar", expected))

    def test_groups_of_bars(self):
        code = (
            "import numpy as np\nx = np.arange(2)\nax.bar(x - 0.2, [1, 2], 0.4, label='this')\n"
            "ax.bar(x + 0.2, [3, 4], 0.4, label='that')\nax.set_xticks(x, ['a', 'b'])"
        )
        told = [(bar["label"], bar["group"], bar["value"]) for bar in self.chart(code)["elements"]]
        self.assertEqual(told, [("a", "this", 1.0), ("b", "this", 2.0), ("a", "that", 3.0), ("b", "that", 4.0)])

    def test_bars_with_errors_and_histograms(self):
        self.assertEqual(self.chart("ax.bar(['a'], [2], yerr=[0.5])")["type"], "bar")
        chart = self.chart("ax.hist([1, 1, 2], bins=[0, 1.5, 3])")
        self.assertEqual([(bar["label"], bar["value"]) for bar in chart["elements"]], [("0.75", 2.0), ("2.25", 1.0)])

    def test_a_pie(self):
        chart = self.chart("ax.pie([1, 3], labels=['a', 'b'])\nax.set_title('P')")
        self.assertEqual((chart["type"], chart["title"], "x_label" in chart), ("pie", "P", False))
        told = [(part["label"], round(part["angle"]), part["radius"]) for part in chart["elements"]]
        self.assertEqual(told, [("a", 90, 1.0), ("b", 270, 1.0)])

    def test_boxes(self):
        [box] = self.chart("ax.boxplot([[1, 2, 3, 4, 5]], tick_labels=['a'])")["elements"]
        quartiles = {"first_quartile": 2.0, "median": 3.0, "third_quartile": 4.0}
        self.assertEqual(box, {"label": "a", "min": 1.0, **quartiles, "max": 5.0, "outliers": []})

    def test_boxes_of_other_looks(self):
        for options in ("patch_artist=True", "orientation='horizontal'"):
            chart = self.chart(f"ax.boxplot([[1, 2, 3, 4, 30], [2, 3]], tick_labels=['a', 'b'], {options})")
            told = [(box["label"], box["median"], box["outliers"]) for box in chart["elements"]]
            self.assertEqual((chart["type"], told), ("box_and_whisker", [("a", 3.0, [30.0]), ("b", 2.5, [])]))

    def test_several_axes_are_a_superchart(self):
        code = "plt.close()\nfig, (a, b) = plt.subplots(1, 2)\nfig.suptitle('Both')\na.plot([1])\nb.bar(['x'], [2])"
        chart = self.chart(code)
        self.assertEqual((chart["type"], chart["title"]), ("superchart", "Both"))
        self.assertEqual([element["type"] for element in chart["elements"]], ["line", "bar"])

    def test_what_can_not_be_told_is_unknown_and_what_is_too_much_is_left_out(self):
        chart = self.chart("ax.imshow([[1, 2], [3, 4]])\nax.set_title('I')")
        self.assertEqual((chart["type"], chart["title"], chart["elements"]), ("unknown", "I", []))
        self.assertIsNone(self.chart("ax.plot(range(10_000))"))
        self.assertIsNone(self.chart("ax.set_title('x' * 1000)"))

    def test_plots_of_pandas_and_seaborn(self):
        code = "import pandas as pd\npd.DataFrame({'a': [1, 2], 'b': [3, 4]}, index=['x', 'y']).plot.bar(ax=ax)"
        told = [(bar["label"], bar["group"], bar["value"]) for bar in self.chart(code)["elements"]]
        self.assertEqual(told, [("x", "a", 1.0), ("y", "a", 2.0), ("x", "b", 3.0), ("y", "b", 4.0)])
        chart = self.chart("pd.Series([1, 2], index=pd.date_range('2024-01-01', periods=2)).plot(ax=ax)")
        self.assertEqual((chart["type"], chart["x_scale"]), ("line", "datetime"))
        chart = self.chart("import seaborn as sns\nsns.lineplot(x=[1, 2], y=[3, 4], ax=ax)")
        self.assertEqual(chart["elements"][0]["points"], [[1.0, 3.0], [2.0, 4.0]])


if __name__ == "__main__":
    unittest.main()
