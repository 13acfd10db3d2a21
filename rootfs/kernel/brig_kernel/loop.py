"""The event loop of a context. Made for the first code that awaits; its tasks go on between executions."""

from __future__ import annotations

import sys

from brig_kernel.requests import wait_readable

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio
    from collections.abc import Coroutine
    from typing import Any


class Loop:
    """Runs coroutines, and waits for requests while there are tasks."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def __call__(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Runs a coroutine to its end; the tasks that it leaves stay. An interrupt cancels it."""
        import asyncio

        loop = self._made()
        task = loop.create_task(coroutine)
        try:
            return loop.run_until_complete(task)
        except KeyboardInterrupt as interrupt:
            if task.done():
                raise
            task.cancel()
            try:
                return loop.run_until_complete(task)
            except asyncio.CancelledError as cancelled:
                # It shows where the code waited.
                raise interrupt.with_traceback(cancelled.__traceback__) from None

    def wait(self, descriptor: int) -> None:
        """Waits until a descriptor can be read. Tasks go on meanwhile."""
        loop = self._loop
        if loop is None or loop.is_closed() or not sys.modules["asyncio"].all_tasks(loop):
            wait_readable(descriptor)
            return
        loop.add_reader(descriptor, loop.stop)
        try:
            loop.run_forever()
        except (KeyboardInterrupt, SystemExit):
            pass  # A task's own; asyncio has told it.
        finally:
            if not loop.is_closed():
                loop.remove_reader(descriptor)

    def close(self) -> None:
        """Cancels all tasks."""
        loop, self._loop = self._loop, None
        if loop is None or loop.is_closed():
            return
        import asyncio

        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.wait(tasks, timeout=1) if tasks else asyncio.sleep(0))
        loop.close()

    def _made(self) -> asyncio.AbstractEventLoop:
        if self._loop is None or self._loop.is_closed():
            import asyncio

            from IPython.core import async_helpers

            self._loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self._loop)
            # The one that IPython gives to code that it runs itself.
            async_helpers._asyncio_event_loop = self._loop
        return self._loop
