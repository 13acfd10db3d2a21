"""multiprocessing and its kin, started each way."""

import unittest

from tests.kernel import run

POOL = """\
import multiprocessing as mp
from pathlib import Path

HERE = Path(__file__).name

def square(x):
    return x * x, HERE, __file__.rpartition("/")[2]

if __name__ == "__main__":
    mp.set_start_method({method!r})
    with mp.Pool(2) as pool:
        print(pool.map(square, [1, 2, 3]))
"""

RESULT = "[(1, 'main.py', 'main.py'), (4, 'main.py', 'main.py'), (9, 'main.py', 'main.py')]\n"


class Multiprocessing(unittest.TestCase):
    def check(self, code: str, expected: str) -> None:
        outcome = run(code)
        self.assertEqual((outcome.stdout, outcome.stderr, outcome.code), (expected, "", 0))

    def test_fork(self):
        self.check(POOL.format(method="fork"), RESULT)

    def test_spawn(self):
        self.check(POOL.format(method="spawn"), RESULT)

    def test_forkserver(self):
        self.check(POOL.format(method="forkserver"), RESULT)

    def test_spawn_of_a_program_with_top_level_await(self):
        code = (
            "import asyncio, concurrent.futures as cf, multiprocessing as mp\nimport os\ndef f(x): return x + 1\n"
            "await asyncio.sleep(0)\nif __name__ == '__main__':\n"
            "    with cf.ProcessPoolExecutor(2, mp_context=mp.get_context('spawn')) as pool:\n"
            "        print(await asyncio.get_running_loop().run_in_executor(pool, f, 1))\n"
        )
        self.check(code, "2\n")

    def test_spawn_of_a_program_without_a_name(self):
        code = (
            "import multiprocessing as mp\ndef f(x): return x + 1\nif __name__ == '__main__':\n"
            "    with mp.get_context('spawn').Pool(1) as pool: print(pool.map(f, [1]))\n"
        )
        self.assertEqual(run(code, filename=None).stdout, "[2]\n")

    def test_a_spawned_process_spawns(self):
        code = (
            "import multiprocessing as mp\ncontext = mp.get_context('spawn')\ndef inner(q): q.put('inner')\n"
            "def outer(q):\n    p = context.Process(target=inner, args=(q,))\n    p.start()\n    p.join()\n"
            "if __name__ == '__main__':\n    q = context.Queue()\n    p = context.Process(target=outer, args=(q,))\n"
            "    p.start()\n    print(q.get(timeout=30))\n    p.join()\n"
        )
        self.check(code, "inner\n")

    def test_an_exception_in_a_spawned_process_shows_its_source(self):
        code = (
            "import multiprocessing as mp\ndef f():\n    1/0  # here\nif __name__ == '__main__':\n"
            "    p = mp.get_context('spawn').Process(target=f)\n    p.start()\n    p.join()\n    print(p.exitcode)\n"
        )
        outcome = run(code)
        self.assertEqual(outcome.stdout, "1\n")
        self.assertIn('File "HOME/main.py", line 3, in f\n    1/0  # here\n', outcome.stderr)

    def test_classes_of_the_program_travel_both_ways(self):
        code = (
            "import multiprocessing as mp\nfrom dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\n"
            "def f(p): return P(p.x + 1)\nif __name__ == '__main__':\n"
            "    with mp.get_context('spawn').Pool(1) as pool: print(pool.map(f, [P(1)]))\n"
        )
        self.check(code, "[P(x=2)]\n")

    def test_shared_memory(self):
        code = (
            "from multiprocessing import Process, shared_memory\ndef f(name):\n"
            "    m = shared_memory.SharedMemory(name)\n    m.buf[0] = 42\n    m.close()\nif __name__ == '__main__':\n"
            "    m = shared_memory.SharedMemory(create=True, size=8)\n    p = Process(target=f, args=(m.name,))\n"
            "    p.start()\n    p.join()\n    print(m.buf[0])\n    m.close()\n    m.unlink()\n"
        )
        self.check(code, "42\n")

    def test_concurrent_futures(self):
        code = (
            "from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor\ndef f(x): return x + 1\n"
            "with ThreadPoolExecutor() as t, ProcessPoolExecutor(2) as p:\n"
            "    print(list(t.map(f, [1, 2])), list(p.map(f, [3, 4])))\n"
        )
        self.check(code, "[2, 3] [4, 5]\n")

    def test_nothing_is_written_for_a_program_that_starts_no_process(self):
        self.check("import os\nprint(os.listdir(os.environ['TMPDIR']))", "[]\n")


if __name__ == "__main__":
    unittest.main()
