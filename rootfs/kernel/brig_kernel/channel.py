"""Frames to and from brigd."""

from __future__ import annotations

import _json
import _thread
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_REQUEST = 8 << 20
MAX_EVENT = 1 << 20

# Programs that close "all" descriptors, or expect their first open file to be 3, should not meet ours.
REQUESTS = 200
EVENTS = 201


class ChannelError(Exception):
    """The other end does not keep to the protocol."""


class _Scanner:
    """What the scanner of the json module wants to know; the module itself costs as much as the rest of the start."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = None


class Channel:
    """The pipes from and to brigd. Only the process that made it sends; forked children are silent."""

    def __init__(self, requests: int, events: int) -> None:
        self.requests = move(requests, REQUESTS)
        # Id of the execution that a context runs: it goes with each event.
        self.execution: str | None = None
        self._events = move(events, EVENTS)
        self._identity = self._look()
        self._process = os.getpid()
        # A pipe takes a long event in parts, between which another thread's would come. A handler of signals may
        # interrupt its own thread's event, and must not wait for it.
        self._writing = _thread.RLock()
        # An exception that a handler would raise in the middle of an event, and how deep this is in one.
        self._deferred: BaseException | None = None
        self._depth = 0
        self._main = _thread.get_ident()
        # Events of code that nobody asked for are not sent.
        self.muted = False

    def renew(self, requests: int, events: int) -> None:
        """In a child that was forked into a session: other pipes, and the process is another."""
        self.requests = move(requests, REQUESTS)
        self._events = move(events, EVENTS)
        self._identity = self._look()
        self._process = os.getpid()

    def receive(self) -> dict[str, object]:
        """Waits for the request."""
        size = int.from_bytes(self._read(4), "little")
        if size > MAX_REQUEST:
            raise ChannelError(f"request of {size} bytes, at most {MAX_REQUEST}")
        return decode(self._read(size))

    def comes_within(self, milliseconds: int) -> bool:
        """Whether a request comes in this time, or the other end is closed."""
        import select

        poll = select.poll()
        poll.register(self.requests, select.POLLIN)
        return bool(poll.poll(milliseconds))

    def is_ours(self) -> bool:
        """Whether this process is the one that talks to brigd."""
        return os.getpid() == self._process

    def send(self, event: Mapping[str, object]) -> bool:
        """Sends an event. False: it is too long, and was not sent."""
        if self.muted:
            return True
        if self.execution is not None:
            event = {**event, "id": self.execution}
        body = encode(event).encode("ascii")
        if len(body) > MAX_EVENT:
            return False
        self._write(len(body).to_bytes(4, "little") + body)
        return True

    def defer(self, error: BaseException) -> bool:
        """For handlers of signals: whether an event is being sent, half of which would be worse than none.

        The exception is raised when it is sent.
        """
        if self._depth:
            self._deferred = error
        return self._depth > 0

    def send_done(self) -> None:
        """Says that nothing more comes."""
        self.send({"ev": "done"})

    def _read(self, size: int) -> bytes:
        parts = []
        while size:
            part = os.read(self.requests, min(size, 1 << 20))
            if not part:
                raise ChannelError("the pipe was closed before the request was complete")
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        # The program may have closed the descriptor and opened a file under its number.
        if not self.is_ours() or self._look() != self._identity:
            return
        # Handlers run in the main thread only.
        deep = int(_thread.get_ident() == self._main)
        self._depth += deep
        try:
            with self._writing:
                while view:
                    view = view[os.write(self._events, view) :]
        except OSError:
            pass  # brigd is gone; the program's own ways of output are not our business.
        finally:
            self._depth -= deep
        # Not in another thread, which may end its own event in between.
        if deep and self._deferred is not None and not self._depth:
            error, self._deferred = self._deferred, None
            raise error

    def _look(self) -> tuple[int, int] | None:
        try:
            status = os.fstat(self._events)
        except OSError:
            return None
        return status.st_dev, status.st_ino


def move(descriptor: int, to: int) -> int:
    """Moves a descriptor out of the way, to a number that no child inherits; gives the number."""
    try:
        os.dup2(descriptor, to, inheritable=False)
    except OSError:
        # A low limit of open files.
        os.set_inheritable(descriptor, False)
        return descriptor
    os.close(descriptor)
    return to


def decode(body: bytes | bytearray) -> dict[str, object]:
    """The object that a request is."""
    try:
        text = body.decode("utf-8", "surrogatepass")
        value, _ = _json.make_scanner(_Scanner)(text, 0)  # type: ignore[arg-type]
    except (StopIteration, ValueError, SystemError):
        # SystemError: the scanner finds no module json to take its exception from.
        raise ChannelError("request is not JSON") from None
    if not isinstance(value, dict):
        raise ChannelError("request is not an object")
    return value


def encode(value: object) -> str:
    """JSON of what events are made of."""
    if isinstance(value, str):
        return _json.encode_basestring_ascii(value)
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, float):
        # JSON has neither infinity nor what is no number.
        return float.__repr__(value) if value - value == 0 else "null"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(map(encode, value)) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{encode(str(key))}:{encode(item)}" for key, item in value.items()) + "}"
    raise TypeError(f"no event holds a {type(value).__name__}")
