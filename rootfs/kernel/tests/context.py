"""A context driven as brigd drives it: frames by two pipes, output by two others, each read as it comes."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.kernel import spawn

# Far more than any test needs; a machine may be slow.
PATIENCE = 60.0


@dataclass
class Ended:
    """What an execution left; `done` is None if the interpreter ended in it."""

    events: list[dict[str, Any]] = field(default_factory=list)
    stdout: str = ""
    stderr: str = ""
    # What had come since the execution before.
    between: str = ""

    @property
    def done(self) -> dict[str, Any] | None:
        return self.events[-1] if self.events and self.events[-1]["ev"] == "done" else None

    @property
    def code(self) -> int | None:
        return self.done["exit_code"] if self.done else None

    @property
    def results(self) -> list[dict[str, Any]]:
        return [event for event in self.events if event["ev"] == "result"]

    @property
    def text(self) -> str:
        [result] = self.results
        return result["data"]["text/plain"]

    @property
    def error(self) -> dict[str, Any]:
        [error] = [event for event in self.events if event["ev"] == "error"]
        return error


class Context:
    """A started context in a folder of its own."""

    # What is done before its start, if anything is.
    ahead: dict[str, Any] | None = None

    def __init__(self, *, env: dict[str, str] | None = None, **start: Any) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self.folder = os.path.realpath(self._folder.name)
        self.process, self.frames, self.requests = spawn(self.folder, env or {})
        self._bytes = {self.frames: b"", self._out: b"", self._err: b""}
        self._open = set(self._bytes)
        self._count = 0
        for descriptor in self._open:
            os.set_blocking(descriptor, False)
        if self.ahead is not None:
            self.send({"op": "warm", "threads": 1, **self.ahead})
            assert self.event() == {"ev": "warm"}
        self.send({"op": "start", "directory": self.folder, "threads": 1, **start})
        self.first = self.event()

    @property
    def _out(self) -> int:
        return self.process.stdout.fileno()

    @property
    def _err(self) -> int:
        return self.process.stderr.fileno()

    def __enter__(self) -> Context:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        for process in session(self.process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self.process.communicate()
        os.close(self.frames)
        os.close(self.requests)
        self._folder.cleanup()

    def send(self, request: dict[str, Any]) -> None:
        body = json.dumps(request).encode()
        os.write(self.requests, len(body).to_bytes(4, "little") + body)

    def go(self) -> None:
        """Makes the file `go`, which code waits for that is to go on only after its execution has ended."""
        with open(os.path.join(self.folder, "go"), "w"):
            pass

    def begin(self, code: str, **request: Any) -> str:
        """Sends code; gives the id of its execution."""
        self._count += 1
        name = f"e{self._count}"
        self.send({"op": "run", "id": name, "code": code, **request})
        return name

    def finish(self, between: str = "") -> Ended:
        """Reads to the end of an execution, or of the interpreter."""
        ended = Ended(between=between)
        until = time.monotonic() + PATIENCE
        while (event := self.event()) is not None:
            ended.events.append(event)
            assert time.monotonic() < until, f"{len(ended.events)} events in {PATIENCE} s, and no end"
            if event["ev"] == "done":
                break
        if ended.done is None:
            self.process.wait(PATIENCE)
        # All that the execution itself has written lies in the pipes by now.
        self._read(0)
        ended.stdout, ended.stderr = self.output(), self._taken(self._err)
        return ended

    def run(self, code: str, **request: Any) -> Ended:
        self._read(0)
        between = self.output() + self._taken(self._err)
        self.begin(code, **request)
        return self.finish(between)

    def interrupt(self, name: str) -> None:
        self.send({"op": "interrupt", "id": name})

    def signal(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def output(self) -> str:
        return self._taken(self._out)

    def wait_output(self, text: str) -> None:
        """Waits until a text has been written to stdout."""
        self._wait(lambda: text.encode() in self._bytes[self._out])

    def event(self) -> dict[str, Any] | None:
        """The next frame; None at the end of the pipe."""
        self._wait(lambda: self._frame() is not None or self.frames not in self._open)
        body = self._frame()
        if body is None:
            assert not self._bytes[self.frames], "the last frame is cut"
            return None
        self._bytes[self.frames] = self._bytes[self.frames][4 + len(body) :]
        return json.loads(body)

    def _frame(self) -> bytes | None:
        data = self._bytes[self.frames]
        size = int.from_bytes(data[:4], "little")
        assert size <= 1 << 20, size
        return data[4 : 4 + size] if len(data) >= 4 + size and len(data) >= 4 else None

    def _taken(self, descriptor: int) -> str:
        text, self._bytes[descriptor] = self._bytes[descriptor].decode(), b""
        return text.replace(self.folder, "HOME")

    def _wait(self, condition: Any) -> None:
        until = time.monotonic() + PATIENCE
        while not condition():
            left = until - time.monotonic()
            assert left > 0, f"nothing came in {PATIENCE} s; so far {self._bytes}"
            self._read(left)

    def _read(self, timeout: float) -> None:
        """Reads what has come: one read takes all that a pipe holds. Who writes on and on does not hold this up."""
        ready, _, _ = select.select(list(self._open), [], [], timeout)
        for descriptor in ready:
            part = os.read(descriptor, 1 << 20)
            self._bytes[descriptor] += part
            if not part:
                self._open.discard(descriptor)


def session(leader: int) -> Iterator[int]:
    """All processes of a session: what a context has started dies with its test."""
    for name in os.listdir("/proc"):
        with contextlib.suppress(ValueError, OSError), open(f"/proc/{int(name)}/stat") as stat:
            if int(stat.read().rpartition(")")[2].split()[3]) == leader:
                yield int(name)


def memory(process: subprocess.Popen[bytes]) -> int:
    """Resident memory of a process, in bytes."""
    with open(f"/proc/{process.pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
