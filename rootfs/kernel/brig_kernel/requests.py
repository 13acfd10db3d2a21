"""The requests of a context: frames that come while nothing else is done, and interrupts while code runs.

The pipe is read without waiting, so that a signal handler may read it too.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import struct

from brig_kernel.channel import MAX_REQUEST, ChannelError, decode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

# What brigd may send ahead is one run, and interrupts; a pipe holds the rest of what it sends.
MAX_AHEAD = 64

# fcntl(2): the thread that gets the signal. Not among the module's names.
F_SETOWN_EX = 15
F_OWNER_TID = 0


class Requests:
    """Reads the request pipe of a context."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        # brigd has closed its end.
        self.ended = False
        os.set_blocking(descriptor, False)
        self._bytes = bytearray()
        self._read: list[dict[str, object]] = []
        self._broken: ChannelError | None = None

    def ring(self, number: int) -> None:
        """From now on the kernel sends the calling thread a signal for whatever comes by the pipe."""
        import _thread

        fcntl.fcntl(self.descriptor, F_SETOWN_EX, struct.pack("ii", F_OWNER_TID, _thread.get_native_id()))
        fcntl.fcntl(self.descriptor, fcntl.F_SETSIG, number)
        flags = fcntl.fcntl(self.descriptor, fcntl.F_GETFL)
        fcntl.fcntl(self.descriptor, fcntl.F_SETFL, flags | os.O_ASYNC)

    def next(self, wait: Callable[[int], None] | None = None) -> dict[str, object] | None:
        """Waits for the next request; None when brigd has closed its end. Interrupts come too late here.

        `wait` waits until the descriptor can be read, in place of poll.
        """
        while True:
            self._fill()
            while self._read:
                request = self._read.pop(0)
                if request.get("op") != "interrupt":
                    return request
            if self._broken is not None:
                raise self._broken
            if self.ended:
                return None
            (wait or wait_readable)(self.descriptor)

    def take_interrupt(self, execution: str) -> bool:
        """Whether an interrupt of this execution has come. It is taken, as are those of others."""
        self._fill()
        interrupts = [request for request in self._read if request.get("op") == "interrupt"]
        if interrupts:
            self._read = [request for request in self._read if request.get("op") != "interrupt"]
        return any(request.get("id") == execution for request in interrupts)

    def _fill(self) -> None:
        """Reads what is there. This may run in the middle of the code of a user, whom errors are not meant for."""
        try:
            self._take()
        except ChannelError as error:
            self._broken, self.ended = error, True

    def _take(self) -> None:
        while not self.ended and len(self._read) < MAX_AHEAD:
            try:
                part = os.read(self.descriptor, 1 << 16)
            except BlockingIOError:
                return
            except OSError as error:
                raise ChannelError(f"request pipe: {error}") from None
            if not part:
                self.ended = True
                return
            self._bytes += part
            self._split()

    def _split(self) -> None:
        while len(self._bytes) >= 4:
            size = int.from_bytes(self._bytes[:4], "little")
            if size > MAX_REQUEST:
                raise ChannelError(f"request of {size} bytes, at most {MAX_REQUEST}")
            if len(self._bytes) < 4 + size:
                return
            body = self._bytes[4 : 4 + size]
            del self._bytes[: 4 + size]
            self._read.append(decode(body))


def wait_readable(descriptor: int) -> None:
    """Waits until a descriptor can be read, or its other end is closed."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    poll.poll()


# Ignored where it has no handler: the bell of a process that took its handler away rings in vain.
BELL = signal.SIGURG
