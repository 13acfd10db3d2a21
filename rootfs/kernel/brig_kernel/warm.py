"""What is done before anybody knows what is to be run: the imports of the template, and its line of code; of what is to be
a context, its shell.

What goes wrong here says nothing: the code that imports the module is told, as if there had been no warm-up. What is
written or shown goes nowhere.

What was imported here is not taken apart at the end (module `ending`), which takes longer than a short program as a whole.
"""

from __future__ import annotations

import atexit
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType

    from brig_kernel.channel import Channel
    from brig_kernel.ending import Ending


# How long a session that was forked waits for its request before it uses the time, in milliseconds: longer than it
# takes from the fork to a request that is there already.
PATIENCE = 50

# How the interpreter ends, once this is done.
ending: Ending | None = None


def up(channel: Channel, request: dict[str, object]) -> None:
    """Does it, and says that it is done."""
    from brig_kernel import prepare

    prepare(request.get("threads"))
    before: set[str] = set(sys.modules)
    warmed: dict[str, object] = {}
    # Registered before whatever is imported registers, so that it is done after that.
    atexit.register(leave, warmed)
    is_zygote = request.get("zygote") is True
    if is_zygote:
        # Its children poll.
        import select  # noqa: F401

        from brig_kernel import zygote

        zygote.gather()
        ours = zygote.descriptors()
    imports = request.get("imports")
    steps = [f"import {name}" for name in (imports if isinstance(imports, list) else [])]
    code = request.get("code")
    if isinstance(code, str):
        steps.append(code)
    fault = None
    channel.muted = True
    with _Silence() as silence:
        # First, as pyplot is adapted when it is imported.
        greet(channel, is_context=request.get("context") is True)
        for step in ["", *steps]:
            attempt(step)
            if is_zygote and fault is None and (found := zygote.look(ours | silence.descriptors)):
                fault = f"{step.splitlines()[0] if step else 'the interpreter itself'}: {found}"
    channel.muted = False
    warmed.update((name, module) for name, module in sys.modules.items() if name not in before)
    global ending
    from brig_kernel.ending import Ending

    ending = Ending(leave, warmed)
    settle()
    if is_zygote:
        try:
            if fault is not None:
                raise zygote.NoZygoteError(fault)
            zygote.serve(channel)
        except zygote.NoZygoteError as error:
            channel.send({"ev": "refused", "message": str(error)})
            sys.exit(0)
    channel.send({"ev": "warm"})
    if is_zygote and isinstance(code, str) and not channel.comes_within(PATIENCE):
        rehearse(channel, code)


def greet(channel: Channel, *, is_context: bool) -> None:
    """Makes what programs find beyond plain Python: of a context, its shell."""
    if is_context:
        from brig_kernel.context import RefusalError, make_shell

        try:
            make_shell(channel)
        except RefusalError:
            pass  # The start of the context says so.
    else:
        from brig_kernel.hooks import install

        install(channel)


def attempt(code: str) -> None:
    """Runs code that may fail."""
    try:
        exec(compile(code, "<warm-up>", "exec", dont_inherit=True), {"__name__": "__warm_up__"})
    except BaseException:
        pass


def rehearse(channel: Channel, code: str) -> None:
    """Runs the template's line once more, in the session that waits, and reads and compiles it as a program: what that and
    code like it write to is memory of this process afterwards, and need not be copied from the zygote's when somebody
    waits for the answer.
    """
    from brig_kernel.channel import decode, encode
    from brig_kernel.program import Program

    channel.muted = True
    try:
        with _Silence():
            request = encode({"op": "run", "code": code, "argv": [""], "threads": 1})
            Program.of(decode(request.encode())).compile()
            print()
            exec(compile(code, "<warm-up>", "exec", dont_inherit=True), {"__name__": "__warm_up__"})
    except KeyboardInterrupt:
        raise  # It is for the program that is to run, and ends it.
    except BaseException:
        pass
    finally:
        channel.muted = False


def settle() -> None:
    """What is there now stays: the collector need not go through it again and again."""
    import gc

    gc.collect()
    _LEFT.append(_LEFT)
    gc.freeze()


# Refers to itself and is frozen with the rest: it and what is put into it is never taken apart.
_LEFT: list[object] = []


def leave(warmed: dict[str, object]) -> None:
    """Takes the modules of the warm-up out of what the interpreter takes apart at its end."""
    for name, module in warmed.items():
        if sys.modules.get(name) is module:
            _LEFT.append(sys.modules.pop(name))


class _Silence:
    """Leads descriptors 1 and 2 to nowhere for a while."""

    def __enter__(self) -> _Silence:
        self._kept = [os.dup(number) for number in (1, 2)]
        self.descriptors = {str(number) for number in self._kept}
        null = os.open(os.devnull, os.O_WRONLY)
        for number in (1, 2):
            os.dup2(null, number)
        os.close(null)
        return self

    def __exit__(self, kind: object, value: object, trace: TracebackType | None) -> None:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        for number, kept in enumerate(self._kept, 1):
            os.dup2(kept, number)
            os.close(kept)
