"""How far a log is complete, without blocking anyone.

Positions are given before the commit, so what is visible below a position may not be all there will be. Two
statements, in this order, settle it:

1. P0 := the last value that the position's sequence has given;
2. V := the transactions that hold the lock of a writer on the event table, on a partition of it, or on the sequence
   (``nextval`` takes that lock before it draws and keeps it to the end of the transaction).

Once every transaction of V has ended, each position up to P0 is committed or never will be. The other order is wrong:
who draws between V and P0 is in neither. Never wait for V under the fence: one of them may be waiting for it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg

from rebuilder.domain.blocker import Blocker
from rebuilder.eventlog.looking import looking
from rebuilder.sql import load

if TYPE_CHECKING:
    from rebuilder.eventlog.open_log import OpenLog

_SQL = load("eventlog")


@dataclass(frozen=True, slots=True)
class Horizon:
    """Positions up to ``position`` are complete once the ``pending`` virtual transactions have ended."""

    position: int
    pending: frozenset[str]
    own_pids: frozenset[int] = frozenset()

    def settled(self, connection: psycopg.Connection[Any]) -> bool:
        """One look: have all pending transactions ended? (A prepared one has not.)"""
        if not self.pending:
            return True
        with looking(connection):
            row = connection.execute(_SQL["standing"], {"pending": sorted(self.pending)}).fetchone()
        return row is not None and row[0] == 0

    def blockers(self, connection: psycopg.Connection[Any]) -> list[Blocker]:
        """Who is still pending, the oldest first."""
        if not self.pending:
            return []
        with looking(connection):
            rows = connection.execute(
                _SQL["blockers"],
                {"pending": sorted(self.pending), "own": sorted(self.own_pids | {connection.info.backend_pid})},
            ).fetchall()
        return [
            Blocker(pid=pid, user=user, application=application or None, state=state, age_seconds=age,
                    query=None if hidden else query, gid=gid, waiting_on_us=waiting, hidden=hidden)
            for pid, user, application, state, age, query, hidden, gid, waiting in rows
        ]


def take(log: OpenLog, connection: psycopg.Connection[Any], own_pids: Collection[int]) -> Horizon:
    """The horizon of a log now: P0 first, then V."""
    own = frozenset(own_pids) | {connection.info.backend_pid}
    with looking(connection):
        position = _given(log, connection)
        rows = connection.execute(
            _SQL["appenders"],
            {"roots": list(log.roots), "sequence": log.sequence.oid if log.sequence else 0, "own": sorted(own)},
        ).fetchall()
    return Horizon(position, frozenset(row[0] for row in rows), own)


def _given(log: OpenLog, connection: psycopg.Connection[Any]) -> int:
    if log.definition.completeness == "count" or log.sequence is None:
        # No promise hangs on it there: the whole log is compared under the fence.
        return log.max_position(connection)
    return log.sequence.last_value(connection)
