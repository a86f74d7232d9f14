"""The commands put together, and the one place where errors become exit codes."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence

import typer

from rebuilder.cli import archiving, building, cleaning, dead_letters, failures, following, looking, requests, setup
from rebuilder.cli.output import Output

_PANELS: dict[str, tuple[Callable[..., int], ...]] = {
    "Rebuild": (building.plan, building.rebuild, building.verify, requests.invalidate, requests.pending),
    "Feed": (following.follow, archiving.archive, archiving.rotate_log),
    "Look": (looking.status, looking.tickets, looking.doctor),
    "End and tidy": (cleaning.cancel, cleaning.cleanup),
    "Set up": (setup.install, setup.demo),
}
# Click's own hierarchy, which some versions of Typer carry inside them: BadParameter < UsageError < ClickException.
_USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[1]
_TYPERS_INTERRUPT = 130

app = typer.Typer(name="rebuilder", add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False,
                  context_settings={"help_option_names": ["-h", "--help"]},
                  epilog="stdout is data, stderr is talk. --debug anywhere, or REBUILDER_DEBUG=1, prints tracebacks.")
for _panel, _functions in _PANELS.items():
    for _function in _functions:
        app.command(rich_help_panel=_panel)(_function)
app.add_typer(dead_letters.app, name="dead-letters", rich_help_panel="Look")


@app.callback()
def rebuilder() -> None:
    """Rebuild a read model from its event log while the application keeps reading and writing, and cut over atomically.

    Exit codes:

    0 done, nothing owed;

    1 failed, live as it was;

    2 wrong command line or definitions;

    3 refused;

    4 not now, repeat later;

    5 rows differ (verify, rebuild --fail-on-drift);

    6 done, something is owed;

    7 cancelled, live as it was;

    8 outcome of the COMMIT unknown: look before repeating.
    """


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line; the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments or os.environ.get("REBUILDER_DEBUG", "") not in {"", "0"}
    arguments = [each for each in arguments if each != "--debug"] or ["--help"]
    output = Output(json="--json" in arguments)
    # As Ctrl-C, for what is no run; a run listens for both itself.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        code = app(arguments, prog_name="rebuilder", standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        return failures.interrupted(output)
    except _USAGE_ERROR as error:
        return _usage(output, error)
    except Exception as error:
        return failures.tell(output, error, debug=debug)
    finally:
        signal.signal(signal.SIGTERM, before)
    if code == _TYPERS_INTERRUPT:
        return failures.interrupted(output)
    return int(code or 0)


def _usage(output: Output, error: Exception) -> int:
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "rebuilder"
    message = error.format_message() if hasattr(error, "format_message") else str(error)
    return failures.usage(output, " ".join(message.split()), f"{path} --help")
