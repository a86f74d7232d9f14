"""stdout is data, stderr is talk. Whoever reads them may be gone: that must not change what the command does."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

_WIDE = 100_000


class Output:
    """How one command speaks."""

    def __init__(self, *, json: bool = False) -> None:
        self.json = json
        # A progress bar redraws the terminal's last lines: what is said meanwhile has to go through it.
        self.through: Callable[[str], None] | None = None

    def say(self, text: str) -> None:
        """Talk, on stderr."""
        if self.through is not None:
            self.through(text)
        else:
            _write(sys.stderr, text)

    def warn(self, text: str) -> None:
        """Something a person should read."""
        self.say(f"warning: {text}")

    def data(self, value: Any, text: Callable[[], str]) -> None:
        """The command's result, on stdout: ``value`` as JSON, or ``text()`` for people."""
        _write(sys.stdout, dump(value) if self.json else text())

    def line(self, value: Any, text: Callable[[], str]) -> None:
        """One of several results: JSON in one line each."""
        _write(sys.stdout, dump(value, indent=None) if self.json else text())


def dump(value: Any, indent: int | None = 2) -> str:
    """JSON text of anything that a report or an error carries."""
    return json.dumps(value, indent=indent, ensure_ascii=False, default=_plain)


def _plain(value: Any) -> Any:
    if hasattr(value, "to_json"):
        return value.to_json()
    if isinstance(value, set | frozenset):
        return sorted(value)
    return str(value)


def _write(stream: TextIO, text: str) -> None:
    try:
        # A message may quote an event: characters that the terminal can't show must not end the command.
        encoding = stream.encoding or "utf-8"
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
        stream.flush()
    except BrokenPipeError:
        silence(stream)


def silence(stream: TextIO) -> None:
    """Send what is still written to a stream that nobody reads to nowhere, so that the end of Python is quiet too."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, right: Sequence[str] = ()) -> str:
    """A table. On a terminal it fits; in a pipe a row is a line, however long."""
    made = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
    for column in columns:
        made.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        # Text and not str: Rich would take brackets in a label for markup.
        made.add_row(*(Text(cell(value)) for value in row))
    return render(made)


def pairs(rows: Iterable[tuple[str, Any]]) -> str:
    """Names and values, one a line; what is None is left out."""
    made = Table(box=None, pad_edge=False, show_header=False, show_edge=False)
    made.add_column(style="bold", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in rows:
        if value is not None:
            made.add_row(name, Text(cell(value)))
    return render(made)


def render(what: Any) -> str:
    """Something of Rich's as text for stdout."""
    terminal = sys.stdout.isatty()
    kept = io.StringIO()
    width = Console(file=sys.stdout).width if terminal else _WIDE
    console = Console(file=kept, width=width, force_terminal=terminal, highlight=False)
    console.print(what)
    return "\n".join(line.rstrip() for line in kept.getvalue().rstrip("\n").split("\n"))


def cell(value: Any) -> str:
    """A value for people."""
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case datetime():
            return f"{value:%Y-%m-%d %H:%M:%S %Z}"
        case _:
            return str(value)


def seconds(value: float | None) -> str:
    """A duration for people: 12 ms, 3.4 s, 5 min 10 s, 2 h 5 min."""
    if value is None:
        return "-"
    if value < 1:
        return f"{value * 1000:.0f} ms"
    if value < 60:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def share(done: int, total: int | None) -> str:
    """How far: "4,500 of 10,000 (45 %)"."""
    if not total:
        return f"{done:,}"
    return f"{done:,} of {total:,} ({min(100, 100 * done // total)} %)"
