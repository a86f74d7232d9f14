"""Progress of a run on stderr: a bar on a terminal, plain lines in a pipe."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from rebuilder.cli.output import Output, seconds, share, silence
from rebuilder.domain.blocker import Blocker
from rebuilder.domain.observation import Observation, Observer
from rebuilder.domain.ticket import Phase
from rebuilder.errors import RebuilderError

_EVERY = 3.0
_SEEN_KINDS = ("warning", "waiting", "quarantined")


@contextmanager
def watched(output: Output, what: str) -> Iterator[Observer]:
    """An observer that shows progress while the block runs."""
    console = _Talk(file=sys.stderr)
    # Not the console's own opinion: FORCE_COLOR would have it draw a bar into a pipe.
    if sys.stderr.isatty() and not console.is_dumb_terminal:
        with _bar(console) as bar:
            output.through = above(console)
            try:
                yield Bar(bar, bar.add_task(what, total=None, rate="", eta="", done=""), output, what)
            finally:
                output.through = None
    else:
        yield Lines(output, what)


@contextmanager
def naming_ticket(observer: Observer) -> Iterator[Observer]:
    """An observer that passes on what it is told; an error then says which ticket records it."""
    last: list[Observation] = []

    def told(seen: Observation) -> None:
        last[:] = [seen]
        observer(seen)

    try:
        yield told
    except RebuilderError as error:
        # In its first step a run has no ticket yet, and may meet another's.
        if last and last[0].phase is not Phase.LOCK_STATE:
            error.fields.setdefault("ticket", last[0].ticket)
        raise


def above(console: Console) -> Callable[[str], None]:
    """Say something above the bar; not as markup, and not broken into lines that could not be copied."""
    return lambda text: console.print(Text(text), soft_wrap=True)


class _Talk(Console):
    """Nobody may be reading any more; a run goes on without its bar."""

    def on_broken_pipe(self) -> None:
        """Be quiet from now on (Rich's own answer is to end the program)."""
        self.quiet = True
        silence(sys.stderr)


def _bar(console: Console) -> Progress:
    return Progress(
        SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"),
        TextColumn("{task.fields[done]}"), TextColumn("{task.fields[rate]}"), TextColumn("{task.fields[eta]}"),
        TimeElapsedColumn(), console=console, transient=True, redirect_stdout=False, redirect_stderr=False)


class Lines:
    """Plain lines: each phase once, warnings, who is in the way, and progress every few seconds."""

    def __init__(self, output: Output, what: str) -> None:
        self._output = output
        self._what = what
        self._phases: set[str] = set()
        self._last = 0.0
        self._in_the_way: tuple[Any, ...] = ()

    def __call__(self, seen: Observation) -> None:
        """Tell what is worth a line."""
        now = time.monotonic()
        due = now - self._last >= _EVERY
        if (text := told(seen)) is not None:
            # Attempts for the fence come every ten milliseconds: one line for each new obstacle, not for each attempt.
            subject = (seen.kind, seen.detail.get("failed_on"), _pids(seen))
            if seen.kind not in {"attempt", "waiting"} or due or subject != self._in_the_way:
                self._in_the_way = subject
                self._say(text, now)
        elif seen.kind == "phase" and (due or seen.phase not in self._phases):
            self._phases.add(seen.phase)
            self._say(str(seen.phase), now)
        elif seen.kind == "progress" and due:
            self._say(", ".join(part for part in (f"{seen.phase} {share(seen.events_done, seen.events_total)} events",
                                                  _rate(seen), _eta(seen)) if part), now)

    def _say(self, text: str, now: float) -> None:
        self._last = now
        self._output.say(f"{self._what}: {text}")


class Bar:
    """A progress bar with rate and time left; what else there is to say stands above it."""

    def __init__(self, bar: Progress, task: TaskID, output: Output, what: str) -> None:
        self._bar = bar
        self._task = task
        self._output = output
        self._what = what
        self._in_the_way: tuple[Any, ...] = ()

    def __call__(self, seen: Observation) -> None:
        """Move the bar, or print above it."""
        self._bar.update(
            self._task, description=f"{self._what}: {seen.phase}", completed=seen.events_done, total=seen.events_total,
            done=share(seen.events_done, None) if seen.events_done else "", rate=_rate(seen), eta=_eta(seen))
        if (text := told(seen)) is None:
            return
        subject = (seen.kind, seen.detail.get("failed_on"), _pids(seen))
        if seen.kind not in {"attempt", "waiting"} or subject != self._in_the_way:
            self._in_the_way = subject
            self._output.say(text)


def told(seen: Observation) -> str | None:
    """An observation that is more than a number, as a line."""
    if seen.kind == "attempt":
        names = [Blocker(**each).describe() for each in seen.detail.get("blockers", ())]
        return f"fence not taken: {seen.message}" + (f"; in the way: {'; '.join(names)}" if names else "")
    if seen.kind in _SEEN_KINDS:
        return f"{'warning: ' if seen.kind == 'warning' else ''}{_set_aside(seen)}{seen.message}"
    return None


def _set_aside(seen: Observation) -> str:
    return "set aside: " if seen.kind == "quarantined" else ""


def _pids(seen: Observation) -> tuple[Any, ...]:
    return tuple((each.get("pid"), each.get("gid")) for each in seen.detail.get("blockers", ()))


def _rate(seen: Observation) -> str:
    return f"{seen.rate:,.0f}/s" if seen.rate else ""


def _eta(seen: Observation) -> str:
    return f"ETA {seconds(seen.eta)}" if seen.eta else ""
