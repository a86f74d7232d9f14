"""Status and tickets, for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rebuilder.cli.output import cell, pairs, seconds, share, table
from rebuilder.domain.blocker import Blocker
from rebuilder.domain.ticket import Ticket
from rebuilder.engine.status import ProjectionStatus

_COLUMNS = ("projection", "health", "live", "recipe", "generation", "position", "high-water mark", "lag", "rebuilt at",
            "dead letters", "owed")
_NUMBERS = ("live", "recipe", "generation", "position", "high-water mark", "lag", "dead letters", "owed")


def status_text(found: Sequence[ProjectionStatus], *, one: bool) -> str:
    """A table, and below it a line for each running ticket and each owed thing; one projection as names and values."""
    if not found:
        return "No projection has been rebuilt here, and no application is known that would name them."
    if one:
        return "\n".join(pairs(_fields(each)) for each in found)
    lines = [table(_COLUMNS, [_row(each) for each in found], right=_NUMBERS)]
    for each in found:
        lines += [f"{each.projection}: {text}" for text in _remarks(each)]
    return "\n".join(lines)


def _row(each: ProjectionStatus) -> tuple[Any, ...]:
    return (each.projection, each.health, each.version, each.recipe_version, each.generation, each.position,
            each.high_water_mark, each.lag, each.rebuilt_at, each.dead_letters, len(each.owed))


def _fields(each: ProjectionStatus) -> list[tuple[str, Any]]:
    return [
        *zip(_COLUMNS, (cell(value) for value in _row(each)), strict=True),
        ("feeding", each.feeding), ("tables", ", ".join(each.tables) or None),
        ("categories", ", ".join(each.categories) or None),
        *((name, text) for name, text in (remark.split(": ", 1) for remark in _remarks(each))),
    ]


def _remarks(each: ProjectionStatus) -> Iterator[str]:
    if each.ticket is not None:
        yield f"running: {_running(each)}"
        for blocker in each.progress.blockers if each.progress else ():
            yield f"in the way: {Blocker(**blocker).describe()}"
    if each.recipe_version is not None and each.version is not None and each.recipe_version > each.version:
        yield f"next: rebuilder rebuild {each.projection} --reason recipe_changed"
    if each.last_failure is not None:
        yield f"last failure: {' '.join(each.last_failure.split())}"
    for owed in each.owed:
        yield f"owed: {owed.kind} {owed.label} (next: {owed.command})"
    for kept in each.kept:
        yield f"kept: {kept}"
    if each.dead_letters:
        yield f"dead letters: rebuilder dead-letters list {each.projection}"


def _running(each: ProjectionStatus) -> str:
    ticket, progress = each.ticket, each.progress
    assert ticket is not None
    parts = [f"ticket {ticket.id}"]
    if progress is not None:
        parts += [str(progress.phase), f"{share(progress.events_done, progress.events_total)} events"]
        parts += [f"{progress.rate:,.0f}/s"] if progress.rate else []
        parts += [f"ETA {seconds(progress.eta)}"] if progress.eta else []
        parts += [f"attempts for the fence {progress.attempts}"] if progress.attempts else []
        parts += ["cancel requested"] if progress.cancel_requested else []
        parts.append(f"heartbeat {seconds(progress.age)} ago")
    parts.append("alive" if each.alive else "its connection is gone (next: rebuilder cleanup)")
    return ", ".join(parts)


def ticket_rows(found: Sequence[Ticket]) -> Iterator[tuple[Any, ...]]:
    """The rows of the tickets' table."""
    for each in found:
        took = None
        if each.started_at is not None and each.finished_at is not None:
            took = (each.finished_at - each.started_at).total_seconds()
        yield (each.id, each.projection, each.generation, each.version, each.stage,
               each.started_at or each.requested_at, seconds(took), each.reason, _outcome(each))


def _outcome(each: Ticket) -> str | None:
    if each.failure_code is not None:
        said = " ".join(str((each.failure or {}).get("message", "")).split())
        return f"{each.failure_code}: {said}" if said else each.failure_code
    if each.report is not None:
        return f"{each.report.get('events_applied', 0):,} events"
    return f"{each.host}, process {each.pid}"
