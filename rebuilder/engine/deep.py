"""A deep look at the log itself: is every old event what it was when its segment was closed?"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from rebuilder.engine.source import active_source, close_segments, stored_segments
from rebuilder.engine.stop import StopToken
from rebuilder.errors import HorizonBlocked, RebuildCancelled
from rebuilder.eventlog import TableLog, fingerprint
from rebuilder.settings import Settings
from rebuilder.store.ledger import Bookkeeping
from rebuilder.store.sessions import connect, translated

_PATIENCE = 60.0


@dataclass(frozen=True, slots=True)
class Altered:
    """A segment that is not what it was: events were edited in place (``events`` equal), removed or inserted."""

    first_position: int
    last_position: int
    events_before: int
    events_now: int


@dataclass(frozen=True, slots=True)
class LogReport:
    """What a deep look found. ``segments`` were compared, ``closed`` are new and will be compared from now on."""

    log: str
    generation: str
    segments: int
    closed: int
    altered: tuple[Altered, ...]
    digest: str

    def to_json(self) -> dict[str, Any]:
        """As text, numbers and lists."""
        return asdict(self)


def verify_log(conninfo: str, definition: TableLog, settings: Settings, stop: StopToken) -> LogReport:
    """Hash every closed segment anew and compare it with what was stored; then close those that are closed by now.

    Positions are settled before they are hashed, so that a late commit is not taken for an insertion.
    """
    books = Bookkeeping(settings)
    with connect(conninfo, role="verify log", autocommit=True) as connection:
        books.check_installed(connection)
        with translated("hashing the event log"):
            log = definition.open(connection)
            generation = active_source(connection, books, log.label)
            before = stored_segments(connection, books, generation)
            upto = before[-1].last if before else 0
            now = {each.first: each for each in fingerprint.segments(log, connection, upto=upto)} if upto else {}
            known = {each.first: each for each in before}
            altered = tuple(
                Altered(first, first + fingerprint.SEGMENT - 1, known[first].events if first in known else 0,
                        now[first].events if first in now else 0)
                for first in sorted({*now, *known}) if now.get(first) != known.get(first))
            horizon = log.horizon(connection, own_pids=())
            waited = 0.0
            while not horizon.settled(connection):
                if stop.wait(0.05):
                    raise RebuildCancelled(f"The look at {log.label} was cancelled ({stop.why}).")
                waited += 0.05
                if waited > _PATIENCE:
                    raise HorizonBlocked(f"An open transaction holds the horizon of {log.label}.",
                                         hint="end it, then repeat",
                                         blockers=[each.to_json() for each in horizon.blockers(connection)])
            closed = close_segments(connection, books, log, generation, horizon.position)
    return LogReport(log.label, str(generation), len(before), len(closed) - len(before), altered,
                     fingerprint.digest_of(closed))
