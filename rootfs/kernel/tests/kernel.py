"""Runs the kernel as the jailer does, over two pipes, and gives what came out."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

KERNEL = Path(__file__).resolve().parent.parent / "kernel.py"


@dataclass
class Outcome:
    """What a run left."""

    code: int
    stdout: str
    stderr: str
    events: list[dict[str, Any]] = field(default_factory=list)

    @property
    def results(self) -> list[dict[str, Any]]:
        return [event for event in self.events if event["ev"] == "result"]

    @property
    def error(self) -> dict[str, Any]:
        [error] = [event for event in self.events if event["ev"] == "error"]
        return error


def spawn(folder: str, environment: dict[str, str]) -> tuple[subprocess.Popen[bytes], int, int]:
    """Starts a kernel; gives it, and the ends of its pipes of frames and requests."""
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    # Numbers above those that they get: neither is overwritten before it is copied.
    theirs = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (theirs_in, theirs_out)]
    os.close(theirs_in)
    os.close(theirs_out)
    variables = {
        "PATH": os.environ["PATH"],
        "LANG": "C.UTF-8",
        "HOME": folder,
        "TMPDIR": folder,
        "MPLBACKEND": "Agg",
    }
    process = subprocess.Popen(
        [sys.executable, "-I", "-u", str(KERNEL)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=folder,
        env={**variables, **environment},
        close_fds=False,
        start_new_session=True,
        preexec_fn=lambda: [os.dup2(end, number) for number, end in enumerate(theirs, 3)] and None,
    )
    for end in theirs:
        os.close(end)
    return process, ours_in, ours_out


class Kernel:
    """A kernel with its request sent."""

    def __init__(
        self, folder: str, request: dict[str, Any] | bytes, environment: dict[str, str], *, framed: bool = False
    ) -> None:
        self.process, ours_in, ours_out = spawn(folder, environment)
        self.frames = os.fdopen(ours_in, "rb")
        body = request if isinstance(request, bytes) else json.dumps(request).encode()
        with contextlib.suppress(BrokenPipeError), os.fdopen(ours_out, "wb") as requests:
            requests.write(body if framed else len(body).to_bytes(4, "little") + body)

    def finish(self) -> Outcome:
        """Reads everything to the end."""
        frames: list[bytes] = []
        reader = threading.Thread(target=lambda: frames.append(self.frames.read()))
        reader.start()
        stdout, stderr = self.process.communicate(timeout=60)
        reader.join(60)
        self.frames.close()
        return Outcome(self.process.returncode, stdout.decode(), stderr.decode(), list(events(frames[0])))


def frame(request: dict[str, Any]) -> bytes:
    """A request as it travels."""
    body = json.dumps(request).encode()
    return len(body).to_bytes(4, "little") + body


def events(frames: bytes) -> Any:
    """Takes frames apart; each must be whole and within the limit."""
    while frames:
        size = int.from_bytes(frames[:4], "little")
        assert size <= 1 << 20, size
        assert len(frames) >= 4 + size, "the last frame is cut"
        yield json.loads(frames[4 : 4 + size])
        frames = frames[4 + size :]


def run(
    code: str, *, files: dict[str, str] | None = None, env: dict[str, str] | None = None, **request: Any
) -> Outcome:
    """Runs code in a fresh folder."""
    with tempfile.TemporaryDirectory() as folder:
        for name, content in (files or {}).items():
            Path(folder, name).write_text(content)
        message = {"op": "run", "code": code, "argv": ["main.py"], "filename": "main.py", "threads": 1, **request}
        outcome = Kernel(os.path.realpath(folder), message, env or {}).finish()
        text = json.dumps(outcome.events).replace(os.path.realpath(folder), "HOME")
        shown = [stream.replace(os.path.realpath(folder), "HOME") for stream in (outcome.stdout, outcome.stderr)]
        return Outcome(outcome.code, *shown, json.loads(text))
