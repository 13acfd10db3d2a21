"""IPython's shell as a context has it: no terminal, no files, no history beyond the session, no threads.

Results, displays and errors go to the channel. What a terminal would do is left out or refused.
"""

from __future__ import annotations

import builtins
import os
import re
import sys

from IPython.core.autocall import ExitAutocall
from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.error import UsageError
from IPython.core.formatters import DisplayFormatter
from IPython.core.history import HistoryManager
from IPython.core.interactiveshell import InteractiveShell

from brig_kernel import display, failure, write_stderr

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from brig_kernel.channel import Channel

# `Out` has this many values, `In` this many characters of code: what it held for longer would be memory lost.
MAX_OUT = 3
MAX_IN = 1 << 20


class Exit(ExitAutocall):  # type: ignore[misc]
    """`exit` and `quit`: end the execution, not the interpreter."""

    def __call__(self, code: object = None) -> None:
        raise SystemExit(code)

    def __repr__(self) -> str:
        return "exit() ends the execution; the context lives on"


class History(HistoryManager):  # type: ignore[misc]
    """`In`, `Out`, `_i` and `%history`, of this context alone and in memory."""

    # IPython leaves out `exit`; then the numbers of `In` are not those of the executions.
    _exit_re = re.compile(r"(?!)")

    def __init__(self, shell: Shell) -> None:
        super().__init__(shell=shell, parent=shell, hist_file=":memory:", enabled=False)
        self._first = 1
        self._characters = 0

    def store_inputs(self, line_num: int, source: str, source_raw: str | None = None) -> None:
        super().store_inputs(line_num, source, source_raw)
        self.db_input_cache.clear()
        self.shell.user_ns.pop(f"_i{line_num}", None)
        self._characters += len(self.input_hist_raw[-1]) + len(self.input_hist_parsed[-1])
        while self._characters > MAX_IN and self._first < len(self.input_hist_raw) - 1:
            for history in (self.input_hist_raw, self.input_hist_parsed):
                self._characters -= len(history[self._first])
                history[self._first] = ""
            self._first += 1

    def reset(self, new_session: bool = True) -> None:
        super().reset(new_session)
        self._first, self._characters = 1, 0

    def store_output(self, line_num: int) -> None:
        self.outputs.clear()
        self.exceptions.clear()

    def end_session(self) -> None: ...

    def writeout_cache(self, conn: object = None) -> None: ...


class Formatter(DisplayFormatter):  # type: ignore[misc]
    """Forms of values; figures have an image and a chart."""

    def format(self, obj: object, include: Any = None, exclude: Any = None) -> Any:
        figures = sys.modules.get("brig_kernel.figures")
        is_figure = figures is not None and figures.is_figure(obj)
        forms, metadata = super().format(obj, include, exclude)
        if is_figure and figures is not None:
            figures.mark_sent(obj)
            forms[display.CHART] = figures.chart(obj)
        return forms, metadata


class Publisher(DisplayPublisher):  # type: ignore[misc]
    """Sends what is displayed."""

    channel: Channel

    def publish(
        self,
        data: Any,
        metadata: Any = None,
        source: Any = None,
        *,
        transient: Any = None,
        update: bool = False,
        main: bool = False,
        **_more: Any,
    ) -> None:
        if not self.channel.is_ours():
            return
        name = (transient or {}).get("display_id")
        name = None if name is None else str(name)[:256]
        display.send_data(self.channel, data, main=main, display_id=name, update=update)

    def clear_output(self, wait: bool = False) -> None:
        """What was sent stays sent."""

    def _setup_execution_tracking(self) -> None: ...


class Hook(DisplayHook):  # type: ignore[misc]
    """Values of last expressions."""

    def __call__(self, result: object = None) -> None:
        """Of code that IPython runs itself (`%%capture`, `run_cell`)."""
        if result is None:
            return
        forms, _ = self.compute_format_data(result)
        self.update_user_ns(result)
        self.fill_exec_result(result)
        pub = self.shell.display_pub
        if isinstance(pub, Publisher):
            pub.publish(forms, main=True)
        else:
            pub.publish(forms)

    def cull_cache(self) -> None:
        kept = self.shell.user_ns["_oh"]
        for number in sorted(kept)[: len(kept) - MAX_OUT + 1]:
            self.shell.user_ns.pop(f"_{number}", None)
            kept.pop(number, None)


class Shell(InteractiveShell):  # type: ignore[misc]
    """The shell of a context."""

    def __init__(self, channel: Channel, module: Any) -> None:
        self._text = ""
        super().__init__(
            user_module=module,
            automagic=False,
            autoindent=False,
            banner1="",
            cache_size=MAX_OUT,
            colors="nocolor",
            display_page=True,
            enable_tip=False,
            show_rewritten_input=False,
            xmode="Plain",
            exiter=Exit(self),
        )
        self.display_pub.channel = channel
        # It would clear the namespace at the end, before the program's own functions run.
        import atexit

        atexit.unregister(self.atexit_operations)
        InteractiveShell._instance = Shell._instance = self
        builtins.get_ipython = self.get_ipython  # type: ignore[attr-defined]
        builtins.exit = builtins.quit = self.exiter  # type: ignore[assignment]
        display.forms = self.forms

    def forms(self, value: object) -> dict[str, object]:
        """All forms of a value; none if it has displayed itself."""
        return self.display_formatter.format(value)[0]  # type: ignore[no-any-return]

    def count_names(self) -> int:
        """How many names the user has defined."""
        hidden = self.user_ns_hidden
        return sum(1 for name in list(self.user_ns) if name not in hidden and not name.startswith("_"))

    # What is shown.

    def showtraceback(self, exc_tuple: Any = None, *_arguments: Any, **_options: Any) -> None:
        """Prints the exception at hand; without one, that of the last execution that failed."""
        error = (exc_tuple or sys.exc_info())[1]
        write_stderr(self._text or "no traceback\n" if error is None else failure.shown(error))

    showsyntaxerror = showindentationerror = showtraceback

    def remember_traceback(self, text: str) -> None:
        """For `%tb`. The exception itself would keep all that its frames hold."""
        self._text = text or self._text

    @property
    def inspector(self) -> Any:
        """What `name?` asks; made when it is first asked."""
        made = self.__dict__.get("_inspector")
        if made is None:
            made = self.inspector_class(theme_name="nocolor", parent=self)
            self.__dict__["_inspector"] = made
        return made

    # What a session does not have.

    def ask_yes_no(self, prompt: str, default: object = None, interrupt: object = None) -> bool:
        """Nobody is there to be asked; who says `%reset` means it."""
        return True

    def set_next_input(self, s: str, replace: bool = False) -> None:
        raise UsageError("a context has no next input to be changed")

    def enable_gui(self, gui: str | None = None) -> None:
        if gui not in (None, "inline", "agg"):
            raise UsageError(f"a context has no display: {gui} can't be used; figures are shown without asking")

    def enable_matplotlib(self, gui: str | None = None) -> tuple[str, str]:
        self.enable_gui(gui)
        return "inline", "agg"

    def init_ipython_dir(self, _directory: object) -> None: ...

    def init_profile_dir(self, _directory: object) -> None:
        self.profile_dir = None
        # What magics would keep in a profile (`%cd` its directories) lives as long as the context.
        self.db = {}

    def init_virtualenv(self) -> None: ...

    def init_prompts(self) -> None: ...

    def init_completer(self) -> None:
        self.Completer = None

    def init_syntax_highlighting(self, changes: object = None) -> None:
        self.pycolorize = str

    # What is made differently.

    def init_history(self) -> None:
        self.history_manager = History(self)
        self.configurables.append(self.history_manager)

    def init_display_formatter(self) -> None:
        self.display_formatter = Formatter(parent=self)
        self.configurables.append(self.display_formatter)
        plain = self.display_formatter.formatters["text/plain"]
        # Lists of any length, as repr gives them; what is too long is cut when it is sent.
        plain.max_seq_length = 0
        image = self.display_formatter.formatters["image/png"]
        image.for_type_by_name("matplotlib.figure", "Figure", _figure)

    def init_display_pub(self) -> None:
        self.display_pub = Publisher(parent=self, shell=self)
        self.configurables.append(self.display_pub)

    def init_displayhook(self) -> None:
        self.displayhook_class = Hook
        super().init_displayhook()

    def init_user_ns(self) -> None:
        super().init_user_ns()
        # IPython's refuses descriptors 0 to 2, which are a context's own.
        self.user_ns.pop("open", None)
        self.user_ns_hidden.pop("open", None)
        for name, value in (("__doc__", None), ("__package__", None), ("__spec__", None), ("__loader__", None)):
            self.user_ns.setdefault(name, value)

    def init_magics(self) -> None:
        from brig_kernel import magics

        super().init_magics()
        magics.adapt(self)

    def system(self, cmd: str) -> None:
        """`!command`: its output is the execution's, its status is `_exit_code`."""
        from brig_kernel import commands

        code = commands.run_shell(self.var_expand(cmd, depth=1))
        self.user_ns["_exit_code"] = code
        if self.system_raise_on_error and code != 0:
            import subprocess

            raise subprocess.CalledProcessError(code, cmd)

    system_piped = system_raw = system


def _figure(figure: Any) -> str | None:
    from brig_kernel import figures

    return figures.png(figure)


def make(channel: Channel) -> Shell:
    """Makes the shell, with a fresh `__main__`."""
    module = type(sys)("__main__")
    shell = Shell(channel, module)
    os.environ.setdefault("PAGER", "cat")
    return shell
