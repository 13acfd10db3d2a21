"""A bash whose state is kept: variables, functions, working directory, jobs.

It is an interactive bash without a terminal that reads its commands from a pipe: an interactive one goes on after an
interrupt and after errors that end a script. Each run is one line by that pipe; the code itself lies in a memory file,
read and evaluated in the shell itself, with end of file for standard input. Before bash reads the next line it tells
the exit status by another pipe (PROMPT_COMMAND), also after an interrupt.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess

TYPE_CHECKING = False
if TYPE_CHECKING:
    from brig_kernel.context import Run
    from brig_kernel.requests import Requests

BASH = "/bin/bash"

# Prompts go nowhere; no history, no `!` in strings, no notices of jobs that belong to a terminal.
PREPARE = (
    """PS1= PS2= PROMPT_COMMAND='builtin printf "%d\\n" "$?" >&{status}'; """
    "set +o history +o histexpand +o monitor; unset HISTFILE; exec 2>&{stderr} {stderr}>&-\n"
)

# One line. It says that it has begun: an interrupt before that would meet a bash that reads, and another line. The
# code's programs get none of our descriptors.
EVALUATE = (
    'builtin printf "begun\\n" >&{status}; '
    '{variables}eval "$(</proc/self/fd/{code})" </dev/null {status}>&- {code}<&-\n'
)

# Asks whether bash reads again.
SYNC = 'builtin printf "reads\\n" >&{status}\n'

# A signal may come between bash and a program that it starts, and reach one of them alone: then bash waits for the
# program, or tells an end while the program goes on. So it is sent again, after these many milliseconds, as long as the
# code has not ended and bash does not read.
REPEATS = (100, 200, 400, 800)


class Bash:
    """The bash of a context."""

    wait = None

    def __init__(self, requests: Requests) -> None:
        self._requests = requests
        self._directory, self._environment = os.getcwd(), dict(os.environ)
        self._count = 0
        self._running = self._interrupted = False
        self._repeats: list[int] = []
        # Without the name of an execution: the last means before all of this is replaced. The pipe ends the wait, which
        # a handler alone does not.
        self._rung, self._bell = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.signal(signal.SIGINT, self._ring)
        self._code = os.memfd_create("code", os.MFD_CLOEXEC)
        self._start()

    def run(self, run: Run) -> dict[str, object]:
        """Runs code; gives its exit status. A bash that ended is replaced by a new one, without its state."""
        if run.store:
            self._count += 1
        while self._readable(self._rung, timeout=0):
            os.read(self._rung, 64)  # Meant what ran before.
        os.ftruncate(self._code, 0)
        os.pwrite(self._code, run.code.encode("utf-8", "replace"), 0)
        variables = "".join(f"{name}={quoted(value)} " for name, value in run.environment.items())
        self._order(EVALUATE.format(code=self._code, status=self._status_end, variables=variables))
        status = self._finish(run.id)
        kept = status is not None
        if status is None:
            status = self._ended()
            self._start()
        return {"exit_code": status, "execution_count": self._count, "kept": kept, "names": None}

    def reset(self) -> None:
        """A new bash; the old one's jobs end with it."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._ended()
        self._count = 0
        self._start()

    def _ring(self, _number: int, _frame: object) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._bell, b"!")

    def _interrupt(self) -> None:
        if self._running:
            if not self._interrupted:
                self._interrupted, self._repeats = True, list(REPEATS)
            os.killpg(self._process.pid, signal.SIGINT)

    def _start(self) -> None:
        commands, self._commands = os.pipe2(os.O_CLOEXEC)
        self._status, self._status_end = os.pipe2(os.O_CLOEXEC)
        stderr = os.dup(2)
        self._process = subprocess.Popen(
            [BASH, "--noprofile", "--norc", "--noediting", "-i"],
            stdin=commands,
            stderr=subprocess.DEVNULL,
            pass_fds=(self._status_end, self._code, stderr),
            cwd=self._directory,
            env=self._environment,
            process_group=0,
        )
        os.close(commands)
        os.close(stderr)
        os.close(self._status_end)
        self._order(PREPARE.format(status=self._status_end, stderr=stderr))
        self._told = b""
        self._line()

    def _order(self, line: str) -> None:
        data = memoryview(line.encode("utf-8", "surrogateescape"))
        try:
            while data:
                data = data[os.write(self._commands, data) :]
        except BrokenPipeError:
            pass  # Its status pipe will be at its end too.

    def _finish(self, execution: str) -> int | None:
        """Waits for the status of the code; None if bash has ended."""
        line: bytes | None = b""
        while line is not None and line != b"begun":
            line = self._line()
        self._running, self._interrupted, self._repeats = True, False, []
        if self._requests.take_interrupt(execution):
            # It was read together with the request to run.
            self._interrupt()
        try:
            line = self._line(execution) if line is not None else None
        finally:
            self._running, self._repeats = False, []
        if line is None or (self._interrupted and not self._reads()):
            return None
        return int(line) & 0xFF if line.isdigit() else None

    def _reads(self) -> bool:
        """Whether a bash that was interrupted has come to rest."""
        for patience in REPEATS:
            self._order(SYNC.format(status=self._status_end))
            while b"\n" in self._told or self._readable(self._status, timeout=patience):
                line = self._line()
                if line is None or line == b"reads":
                    return line is not None
            os.killpg(self._process.pid, signal.SIGINT)
        return False

    def _line(self, execution: str | None = None) -> bytes | None:
        """The next line that bash tells, None at the end; takes interrupts of an execution meanwhile."""
        requests = self._requests
        while b"\n" not in self._told:
            watched = [self._status]
            if execution is not None and not requests.ended:
                watched += [requests.descriptor, self._rung]
            ready = self._readable(*watched, timeout=self._repeats[0] if self._repeats else None)
            if not ready and self._repeats:
                del self._repeats[0]
                self._interrupt()
            if requests.descriptor in ready and execution is not None and requests.take_interrupt(execution):
                self._interrupt()
            if self._rung in ready and os.read(self._rung, 1):
                self._interrupt()
            if self._status in ready:
                part = os.read(self._status, 64)
                if not part:
                    return None
                self._told += part
        line, _, self._told = self._told.partition(b"\n")
        return line

    def _readable(self, *descriptors: int, timeout: int | None = None) -> list[int]:
        poll = select.poll()
        for descriptor in descriptors:
            poll.register(descriptor, select.POLLIN)
        return [descriptor for descriptor, _ in poll.poll(timeout)]

    def _ended(self) -> int:
        """The status of a bash that has ended, or closed what it tells its status by."""
        os.close(self._commands)
        try:
            code = self._process.wait(1)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        os.close(self._status)
        return 128 - code if code < 0 else code


def quoted(value: str) -> str:
    """A value as bash reads it back."""
    return "'" + value.replace("'", "'\\''") + "'"
