"""A context whose shell was made before anybody asked for it is as any."""

import unittest

from tests import test_context, test_figures, test_interrupt, test_shell
from tests.context import Context


class Ahead(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        Context.ahead = {"context": True, "imports": ["wave"]}

    @classmethod
    def tearDownClass(cls) -> None:
        Context.ahead = None


class State(Ahead, test_context.State):
    # The number of threads is settled before, by the same limits.
    test_a_start_says_where_and_with_what = None
    # It has imported what it was told to.
    test_the_start_leaves_no_thread_and_imports_neither_asyncio_nor_matplotlib = None
    # That of an interpreter without a start ahead is enough.
    test_memory_stays_flat_over_a_thousand_executions = None


class Ends(Ahead, test_context.Ends): ...


class Output(Ahead, test_context.Output): ...


class Interrupts(Ahead, test_interrupt.Interrupts): ...


class Results(Ahead, test_shell.Results): ...


class Await(Ahead, test_shell.Await): ...


class Magics(Ahead, test_shell.Magics): ...


class Figures(Ahead, test_figures.InContexts): ...
