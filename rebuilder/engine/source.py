"""Which log a rebuild saw: its incarnation, and how much and what is in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

from psycopg import sql

from rebuilder.domain.lifecycle import LogFingerprint, Tier
from rebuilder.errors import SourceRotated
from rebuilder.eventlog import OpenLog, fingerprint
from rebuilder.eventlog.fingerprint import Segment
from rebuilder.store.ledger import Bookkeeping
from rebuilder.store.sessions import Connection, translated

if TYPE_CHECKING:
    from rebuilder.engine.replay import Replay
    from rebuilder.engine.run import Run


@dataclass(frozen=True, slots=True)
class Source:
    """An opened log as the lifecycle store asks for it."""

    log: OpenLog
    books: Bookkeeping

    @property
    def label(self) -> str:
        """The log's name in the bookkeeping."""
        return self.log.label

    def head(self, connection: Connection) -> int:
        """The highest visible position."""
        return self.log.max_position(connection)

    def fence(self, connection: Connection) -> None:
        """Keep appenders out until the transaction ends: SHARE, which waits for them and is waited for by them."""
        names = connection.execute("SELECT oid::regclass::text FROM unnest(%s::oid[]) AS oid ORDER BY oid",
                                   (list(self.log.roots),)).fetchall()
        for (name,) in names:
            # regclass quotes what needs it; the server made the text.
            connection.execute(sql.SQL("LOCK TABLE {} IN SHARE MODE").format(sql.SQL(name)))

    def fingerprint(self, connection: Connection, generation: UUID, tier: Tier) -> LogFingerprint:
        """What is visible now; for SHA-256 the closed segments are as they were stored, and the rest is hashed."""
        if tier == "sha256":
            closed = stored_segments(connection, self.books, generation)
            above = closed[-1].last if closed else 0
            found = [*closed, *fingerprint.segments(self.log, connection, above=above)]
            events, position = fingerprint.count(self.log, connection)
            return LogFingerprint(generation, tier, events, position, fingerprint.digest_of(found))
        if tier == "sum64":
            return LogFingerprint(generation, tier, *fingerprint.sum64(self.log, connection))
        return LogFingerprint(generation, tier, *fingerprint.count(self.log, connection))


def active_source(connection: Connection, books: Bookkeeping, label: str) -> UUID:
    """The incarnation of a log; the first is made when it is first asked for."""
    row = books.run(connection, "active_source", log=label).fetchone()
    if row is None:
        books.run(connection, "insert_source", log=label, reason=None)
        row = books.run(connection, "active_source", log=label).fetchone()
    assert row is not None
    return UUID(str(row[0]))


def rotate_source(connection: Connection, books: Bookkeeping, label: str, reason: str) -> UUID:
    """A new incarnation: positions may mean other events from now on (a restore, a rewrite of the log)."""
    with translated("rotating the log's incarnation"), connection.transaction():
        books.run(connection, "retire_source", log=label)
        books.run(connection, "insert_source", log=label, reason=reason)
        return active_source(connection, books, label)


def stored_segments(connection: Connection, books: Bookkeeping, generation: UUID) -> list[Segment]:
    """The closed segments of an incarnation, in order."""
    rows = books.run(connection, "segments", source=generation).fetchall()
    return [Segment(first, last, events, bytes(digest)) for first, last, events, digest in rows]


def close_segments(connection: Connection, books: Bookkeeping, log: OpenLog, generation: UUID,
                   horizon: int) -> list[Segment]:
    """Hash and store the segments that a settled horizon has closed since; all that are closed."""
    closed = stored_segments(connection, books, generation)
    above, upto = closed[-1].last if closed else 0, fingerprint.closed_upto(horizon)
    if upto > above:
        store_segments(connection, books, generation,
                       fingerprint.segments(log, connection, above=above, upto=upto))
        closed = stored_segments(connection, books, generation)
    return closed


def store_segments(connection: Connection, books: Bookkeeping, generation: UUID, found: Sequence[Segment]) -> None:
    """Store closed segments."""
    statement, cursor = books.query("insert_segment"), connection.cursor()
    parameters: list[dict[str, Any]] = [
        {"source": generation, "first": each.first, "last": each.last, "events": each.events, "digest": each.digest}
        for each in found]
    with translated("storing the log's segments"), connection.transaction():
        cursor.executemany(statement, parameters)


def note_source(run: Run) -> None:
    """Which incarnation the run reads, before it reads."""
    with run.ledger.using() as connection:
        run.source = active_source(connection, run.books, run.log.label)


def prove_source(run: Run, replay: Replay) -> None:
    """Before the fence, where the setting asks for it: the digest of what is closed, hashed once and stored."""
    if run.settings.log_fingerprint != "sha256":
        return
    with translated("hashing the log's closed segments"), run.reading() as reader:
        closed = close_segments(reader, run.books, run.log, run.source, replay.horizon)
    run.digest = fingerprint.digest_of(closed)


def record_source(run: Run, replay: Replay, position: int) -> None:
    """With the swap: the log is still the one that was read; how many events of it the rebuild read, to where."""
    main = run.main
    if active_source(main, run.books, run.log.label) != run.source:
        raise SourceRotated(f"The incarnation of {run.log.label} was rotated while the rebuild read it. Live is as it "
                            "was.", hint="repeat: the next run reads the log as it is now")
    run.books.run(main, "prove_ticket", ticket=run.ticket, source=run.source, position=position, events=replay.read,
                  tier="sha256" if run.digest else "count", digest=run.digest)
    run.books.run(main, "complete_source", projection=run.projection.name, source=run.source)
