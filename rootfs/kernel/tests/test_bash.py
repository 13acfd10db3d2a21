"""Contexts of bash."""

import time
import unittest

from tests.context import PATIENCE, Context


def bash(**start):
    return Context(language="bash", **start)


class Bash(unittest.TestCase):
    def test_state_is_kept(self):
        with bash(environment={"SPOT": "s"}) as context:
            context.run("x=5; f() { echo f $1; }; mkdir sub; cd sub; export E=e")
            ended = context.run('f $x; echo $PWD $SPOT; sh -c "echo $E"')
        expected = {"ev": "done", "id": "e2", "exit_code": 0, "execution_count": 2, "kept": True, "names": None}
        self.assertEqual(
            (context.first["ev"], ended.stdout, ended.events), ("ready", "f 5\nHOME/sub s\ne\n", [expected])
        )

    def test_the_status_is_told(self):
        with bash() as context:
            for code, status in (("true", 0), ("false", 1), ("(exit 7)", 7), ("nonsense", 127), ("if", 2), ("", 0)):
                ended = context.run(code)
                self.assertEqual((ended.code, ended.done["kept"]), (status, True), code)

    def test_errors_that_end_a_script_do_not_end_the_context(self):
        with bash() as context:
            context.run("x=1")
            ended = context.run("set -u; echo $nope; echo after")
            self.assertEqual((ended.code, ended.stdout), (1, ""))
            self.assertIn("nope: unbound variable", ended.stderr)
            self.assertEqual(context.run("echo $x").stdout, "1\n")

    def test_a_bash_that_ends_comes_back_without_its_state(self):
        with bash() as context:
            for code, status in (("exit 4", 4), ("kill -9 $$", 137), ("set -e; false", 1), ("exec true", 0)):
                context.run("x=1; cd /")
                ended = context.run(code)
                self.assertEqual((ended.code, ended.done["kept"]), (status, False), code)
                self.assertEqual(context.run("echo [$x] $PWD").stdout, "[] HOME\n")

    def test_programs_have_no_input_and_none_of_our_descriptors(self):
        with bash() as context:
            self.assertEqual(context.run("cat; echo; ls /proc/self/fd").stdout.split(), ["0", "1", "2", "3"])

    def test_code_of_any_kind_passes(self):
        with bash() as context:
            self.assertEqual(context.run("echo 'a!b \"é\"'\ncat <<END\n$((1 + 1))\nEND\n# end").stdout, 'a!b "é"\n2\n')
            long = "x=" + "y" * 500_000 + "; echo ${#x}"
            self.assertEqual(context.run(long).stdout, "500000\n")

    def test_variables_of_an_execution_are_gone_after_it(self):
        with bash() as context:
            inside = context.run('echo "$A"; sh -c \'echo "$A"\'', environment={"A": "it's $x"})
            self.assertEqual((inside.stdout, context.run("echo [$A]").stdout), ("it's $x\nit's $x\n", "[]\n"))

    def test_jobs_go_on_between_executions(self):
        with bash() as context:
            context.run("{ until [ -e go ]; do sleep 0.01; done; echo from the job; } &")
            context.go()
            context.wait_output("from the job\n")
            self.assertEqual(context.run("wait; echo done").stdout, "done\n")

    def test_the_execution_that_is_meant_is_interrupted(self):
        for code in (
            "echo up; sleep 600; echo after",
            "echo up; while :; do :; done",
            "f() { echo up; sleep 600; }; f; echo after",
        ):
            with bash() as context:
                context.run("x=3")
                name = context.begin(code)
                context.wait_output("up\n")
                context.interrupt("other")
                context.interrupt(name)
                ended = context.finish()
                self.assertEqual((ended.code, ended.done["kept"], ended.stdout), (130, True, "up\n"))
                self.assertEqual(context.run("echo $x").stdout, "3\n")

    def test_the_signal_alone_does_it_too(self):
        with bash() as context:
            context.signal()
            context.begin("echo up; sleep 600")
            context.wait_output("up\n")
            context.signal()
            self.assertEqual(context.finish().code, 130)

    def test_late_interrupts_never_hit_the_next_execution(self):
        with bash() as context:
            for number in range(200):
                name = context.begin(f"x={number}")
                context.interrupt(name)
                self.assertIn(context.finish().code, (0, 130))
                self.assertEqual(context.run("echo whole").stdout, "whole\n")

    def test_a_reset_forgets_and_ends_jobs(self):
        with bash() as context:
            job = int(context.run("x=1; cd /; sleep 600 & echo $!").stdout)
            context.send({"op": "reset"})
            self.assertEqual(context.event(), {"ev": "reset"})
            ended = context.run("echo [$x] $PWD")
            self.assertEqual((ended.stdout, ended.done["execution_count"]), ("[] HOME\n", 1))
            until = time.monotonic() + PATIENCE
            while not is_dead(job):
                self.assertLess(time.monotonic(), until)
                time.sleep(0.01)


def is_dead(pid: int) -> bool:
    """Whether a process has ended; whoever has to may not have reaped it yet."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


if __name__ == "__main__":
    unittest.main()
