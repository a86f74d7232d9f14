"""Progress in a pipe: few lines, and none that matters is missing."""

import io

import pytest
from rich.console import Console

from rebuilder.cli import progress
from rebuilder.cli.output import Output
from rebuilder.cli.progress import Bar, Lines
from rebuilder.domain.blocker import Blocker
from rebuilder.domain.observation import Observation
from rebuilder.domain.ticket import Phase


@pytest.fixture
def clock(monkeypatch):
    """Seconds that pass only when the test says so."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def lines(clock, capsys):
    told = Lines(Output(), "accounts")
    told.read = lambda: [line.removeprefix("accounts: ") for line in capsys.readouterr().err.splitlines()]
    return told


def seen(kind, phase=Phase.CATCH_UP, message="", **fields):
    return Observation(kind, "accounts", "t", phase, message, **fields)


def attempt(pid, message="public.a (live) was locked by somebody else"):
    return seen("attempt", Phase.FENCE, message,
                detail={"failed_on": "public.a", "blockers": [Blocker(pid=pid, user="clerk").to_json()] if pid else []})


def test_each_phase_is_told_once(lines):
    for phase in (Phase.CATCH_UP, Phase.FENCE, Phase.CATCH_UP, Phase.FENCE, Phase.SWAP):
        lines(seen("phase", phase))
    assert lines.read() == ["catch up", "fence", "swap"]


def test_progress_is_told_every_few_seconds_with_rate_and_time_left(lines, clock):
    lines(seen("phase"))
    for done in range(0, 10_000, 1000):
        lines(seen("progress", events_done=done, events_total=10_000, rate=2000.0, eta=4.5))
    assert lines.read() == ["catch up"]
    clock[0] += 3
    lines(seen("progress", events_done=4500, events_total=10_000, rate=2000.0, eta=2.75))
    assert lines.read() == ["catch up 4,500 of 10,000 (45 %) events, 2,000/s, ETA 2.8 s"]


def test_an_obstacle_is_told_once_until_it_changes_or_lasts(lines, clock):
    for _ in range(100):
        lines(attempt(42))
    lines(attempt(43))
    assert lines.read() == [
        f"fence not taken: public.a (live) was locked by somebody else; in the way: pid {pid} (user clerk)"
        for pid in (42, 43)]
    clock[0] += 3
    lines(attempt(43))
    assert len(lines.read()) == 1


def test_warnings_and_what_is_set_aside_are_always_told(lines):
    lines(seen("warning", message="mind this"))
    lines(seen("warning", message="and this"))
    lines(seen("quarantined", message="event 7 (Poison, stream a): ValueError"))
    lines(seen("waiting", message="The horizon stands still: pid 9"))
    assert lines.read() == ["warning: mind this", "warning: and this",
                            "set aside: event 7 (Poison, stream a): ValueError", "The horizon stands still: pid 9"]


def test_the_end_is_not_progress(lines):
    lines(seen("completed"))
    lines(seen("failed", message="the error is told by the command"))
    assert lines.read() == []


def test_a_bar_moves_and_what_is_said_stands_above_it():
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=160)
    output = Output()
    with progress._bar(console) as bar:
        output.through = progress.above(console)
        told = Bar(bar, bar.add_task("accounts", total=None, rate="", eta="", done=""), output, "accounts")
        told(seen("progress", events_done=4500, events_total=10_000, rate=2000.0, eta=2.75))
        bar.refresh()
        told(attempt(42))
        told(attempt(42))
        bar.refresh()
    text = screen.getvalue()
    for part in ("accounts: catch up", "accounts: fence", "45 %", "4,500", "2,000/s", "ETA 2.8 s"):
        assert part in text
    assert text.count("in the way: pid 42") == 1
