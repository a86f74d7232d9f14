"""What must stay the same in a log while a run reads it: it is append-only, or the run reads again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg
from psycopg.pq import TransactionStatus

from rebuilder.eventlog import relation
from rebuilder.eventlog.looking import looking
from rebuilder.sql import load

if TYPE_CHECKING:
    from rebuilder.eventlog.open_log import OpenLog

_SQL = load("eventlog")


class Archive(NamedTuple):
    """The archived streams: how many, and a digest of which."""

    streams: int
    digest: str


@dataclass(frozen=True, slots=True)
class LogState:
    """A look at a log. The server's counters reach it about a second after the transaction that moved them."""

    updated: int
    deleted: int
    tables: frozenset[str]
    filtered: frozenset[str]
    """Tables whose row security hides rows from this role."""
    beyond_sequence: int | None
    """A visible position that the sequence has not given, if there is one."""
    archive: Archive | None
    """None where the log archives nothing, replays it, or was not asked."""

    def differences(self, other: LogState) -> list[str]:
        """What has changed from this state to the other, in words."""
        found = []
        for name, before, after in (("updated", self.updated, other.updated), ("deleted", self.deleted, other.deleted)):
            if after < before:
                found.append(f"its statistics were reset, so whether rows were {name} is not known")
            elif after > before:
                found.append(f"{after - before} row{'s were' if after - before > 1 else ' was'} {name}")
        found += [f"table {name} came to it" for name in sorted(other.tables - self.tables)]
        found += [f"table {name} went from it" for name in sorted(self.tables - other.tables)]
        found += [f"row security now hides rows of {name}" for name in sorted(other.filtered - self.filtered)]
        if other.beyond_sequence is not None and self.beyond_sequence is None:
            found.append(f"position {other.beyond_sequence} was not given by its sequence")
        if self.archive is not None and other.archive is not None and self.archive != other.archive:
            found.append(f"its archived streams changed ({self.archive.streams} before, {other.archive.streams} now)")
        return found


def take(log: OpenLog, connection: psycopg.Connection[Any], *, streams: bool) -> LogState:
    """Look at a log."""
    with looking(connection):
        if connection.info.transaction_status != TransactionStatus.IDLE:
            connection.execute(_SQL["forget_statistics"])
        bases = relation.base_tables(connection, log.relation)
        rows = connection.execute(_SQL["tables_below"], {"roots": [log.source.table.oid]}).fetchall()
        everything = connection.execute(_SQL["tables_below"], {"roots": [table.oid for table in bases]}).fetchall()
        highest = log.max_position(connection)
        beyond = None
        if log.complete and log.sequence is not None and highest > log.sequence.last_value(connection):
            beyond = highest
        digest = None
        if streams and log.statements.archived is not None:
            digest = connection.execute(log.statements.archive(log.statements.archived), prepare=False).fetchone()
    return LogState(
        updated=sum(row[5] or 0 for row in rows),
        deleted=sum(row[6] or 0 for row in rows),
        tables=frozenset(f"{row[1]}.{row[2]}" for row in everything),
        filtered=frozenset(f"{row[1]}.{row[2]}" for row in everything if row[7]),
        beyond_sequence=beyond,
        archive=Archive(int(digest[0]), str(digest[1])) if digest else None,
    )
