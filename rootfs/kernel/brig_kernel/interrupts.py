"""KeyboardInterrupt for the execution that is meant, and no other.

An interrupt comes as a frame that names its execution. The pipe rings a bell, a signal of the kernel's to the main
thread, which ends what it waits for; the handler reads the frame, and only if it names the execution that runs it does
what SIGINT would do. Whoever runs is changed by the main thread alone, where handlers run too, so that an interrupt
that comes late, at whatever moment, meets the next execution with another name.

SIGINT itself, which brigd may have the jailer send besides, carries no name: it interrupts whatever runs, also in code
that asks for signals but does not let other threads run (regular expressions); between executions it does nothing.
"""

from __future__ import annotations

import os
import signal

from brig_kernel.requests import BELL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from brig_kernel.channel import Channel
    from brig_kernel.requests import Requests


class Interrupts:
    """Knows which execution runs."""

    def __init__(self, channel: Channel, requests: Requests) -> None:
        self._channel = channel
        self._requests = requests
        self._running: str | None = None
        self._process = os.getpid()
        self._busy = self._again = False
        # asyncio and others ask whether SIGINT has Python's own handler before they set theirs.
        signal.default_int_handler = self._interrupt  # type: ignore[assignment]
        signal.signal(signal.SIGINT, self._interrupt)
        signal.signal(BELL, self._answer)
        requests.ring(BELL)

    def guard(self, execution: str, run: Callable[[], None]) -> BaseException | None:
        """Runs a function that an interrupt may end; gives the exception that ended it."""
        try:
            try:
                self._running = execution
                self._answer(BELL, None)
                run()
            finally:
                # No call is between the end of `run` and this: handlers run after calls.
                self._running = None
        except BaseException as error:
            self._running = None
            return error
        return None

    def _interrupt(self, _number: int, _frame: FrameType | None) -> None:
        """What SIGINT does."""
        if self._running is None and os.getpid() == self._process:
            return
        interrupt = KeyboardInterrupt()
        if not self._channel.defer(interrupt):
            raise interrupt

    def _answer(self, _number: int, frame: FrameType | None) -> None:
        """Something came by the pipe."""
        if self._running is None or os.getpid() != self._process:
            return
        if self._busy:
            # This interrupted itself.
            self._again = True
            return
        meant = False
        self._busy = self._again = True
        try:
            while self._again:
                self._again = False
                meant |= self._requests.take_interrupt(self._running)
        finally:
            self._busy = False
        if meant:
            handler = signal.getsignal(signal.SIGINT)
            if callable(handler):
                handler(signal.SIGINT, frame)
            elif handler == signal.SIG_DFL:
                signal.raise_signal(signal.SIGINT)
