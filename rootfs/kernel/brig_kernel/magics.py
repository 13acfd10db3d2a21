"""Magics that differ in a context: those that can't work say so, scripts run as commands of the execution."""

from __future__ import annotations

import importlib.util
import shlex
import subprocess
import sys

from IPython.core.error import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from brig_kernel.shell import Shell

TERMINAL = "needs a terminal, a context has none"
HISTORY = "there is no next input to be changed"
FILES = "nothing of a context is logged or kept beyond its life"
PACKAGES = "packages are those of the template"

REFUSED = {
    "bookmark": FILES,
    "conda": PACKAGES,
    "debug": TERMINAL,
    "ed": TERMINAL,
    "edit": TERMINAL,
    "load": HISTORY,
    "loadpy": HISTORY,
    "logoff": FILES,
    "logon": FILES,
    "logstart": FILES,
    "logstate": FILES,
    "logstop": FILES,
    "mamba": PACKAGES,
    "micromamba": PACKAGES,
    "notebook": "a context is no notebook",
    "pastebin": "there is no such service here",
    "pdb": TERMINAL,
    "recall": HISTORY,
    "rep": HISTORY,
    "store": FILES,
    "uv": PACKAGES,
}

# IPython's own start an event loop in a thread, and are not interrupted.
SCRIPTS = ("bash", "perl", "pypy", "python", "python2", "python3", "ruby", "script", "sh")

SCRIPT_USAGE = "%%{0} [--out NAME] [--err NAME] [--no-raise-error] [ARGUMENT ..]"


def adapt(shell: Shell) -> None:
    """Puts ours in place of IPython's."""
    lines, cells = shell.magics_manager.magics["line"], shell.magics_manager.magics["cell"]
    lines.update({name: _refusal(name, reason) for name, reason in REFUSED.items()})
    lines.update(matplotlib=_matplotlib(shell), pip=_pip(shell), config=_config(shell))
    cells.update({name: _script(shell, name) for name in SCRIPTS})


def _refusal(name: str, reason: str) -> Callable[[str], None]:
    def refused(_line: str) -> None:
        raise UsageError(f"%{name}: {reason}")

    refused.__doc__ = f"Not to be had: {reason}."
    return refused


def _matplotlib(shell: Shell) -> Callable[[str], None]:
    def matplotlib(line: str) -> None:
        """Figures are shown without asking; `inline` and `agg` are accepted."""
        shell.enable_gui(line.strip() or None)

    return matplotlib


def _pip(shell: Shell) -> Callable[[str], None]:
    def pip(line: str) -> None:
        """Runs pip, if the template has it."""
        if importlib.util.find_spec("pip") is None:
            raise UsageError(f"%pip: {PACKAGES}, and pip is none of them")
        shell.system(f"{shlex.quote(sys.executable)} -m pip {line}")

    return pip


def _config(shell: Shell) -> Callable[[str], Any]:
    plain: list[Callable[[str], Any]] = []

    def config(line: str) -> Any:
        """IPython's own; `InlineBackend` is there without matplotlib's inline backend."""
        if not plain:
            from IPython.core.magics.config import ConfigMagics

            plain.append(ConfigMagics(shell=shell).magics["line"]["config"])
        if line.lstrip().startswith("InlineBackend"):
            from matplotlib_inline.config import InlineBackend

            backend = InlineBackend.instance(parent=shell)
            backend.shell = shell
            if backend not in shell.configurables:
                shell.configurables.append(backend)
        return plain[0](line)

    return config


def _script(shell: Shell, name: str) -> Callable[[str, str], None]:
    def script(line: str, cell: str) -> None:
        from brig_kernel import commands

        words = shlex.split(line)
        options: dict[str, str | bool] = {}
        while words and words[0] in ("--out", "--err", "--no-raise-error"):
            word = words.pop(0)
            if word == "--no-raise-error":
                options[word] = True
            elif words:
                options[word] = words.pop(0)
            else:
                raise UsageError("usage: " + SCRIPT_USAGE.format(name))
        argv = words if name == "script" else [name, *words]
        if not argv:
            raise UsageError("usage: " + SCRIPT_USAGE.format(name) + ": names no program")
        sys.stdout.flush()
        sys.stderr.flush()
        pipes = {key[2:]: subprocess.PIPE for key in options if key != "--no-raise-error"}
        try:
            process = subprocess.Popen(
                argv, stdin=subprocess.PIPE, stdout=pipes.get("out"), stderr=pipes.get("err"), process_group=0
            )
        except OSError as error:
            raise UsageError(f"%%{name}: {error}") from None
        try:
            out, err = process.communicate(cell.encode("utf-8", "surrogateescape"))
        except BaseException:
            commands.stop(process)
            raise
        for key, text in (("--out", out), ("--err", err)):
            if isinstance(options.get(key), str):
                shell.user_ns[options[key]] = text.decode("utf-8", "replace")
        shell.user_ns["_exit_code"] = process.returncode
        if process.returncode and not options.get("--no-raise-error"):
            raise subprocess.CalledProcessError(process.returncode, argv)

    script.__doc__ = f"Runs the cell as a script: {SCRIPT_USAGE.format(name)}"
    return script
