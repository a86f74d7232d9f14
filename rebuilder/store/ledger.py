"""The second connection: autocommit, of the engine's own, so that others see a run while its transaction is open.

It touches no live table between fence and commit, and after the swap's first statement writes progress only:
PostgreSQL cannot see a deadlock between two connections of one process.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID, uuid4

import psycopg
from psycopg import sql
from psycopg.types.json import Jsonb

from rebuilder import errors
from rebuilder.domain.archive import Shard
from rebuilder.domain.ticket import Phase, Progress, Reason, Stage, Ticket
from rebuilder.settings import Settings
from rebuilder.sql import load
from rebuilder.store.sessions import Connection, short, translated

_QUERIES = {**load("queries"), **load("lifecycle")}


def host() -> str:
    """The machine's name, as others will read it in a ticket."""
    return socket.gethostname()


class Bookkeeping:
    """The statements of the bookkeeping, for one scope and schema; each takes the connection it runs on."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._composed: dict[str, sql.Composed] = {}

    def query(self, name: str) -> sql.Composed:
        """A named query, with the schema filled in."""
        if name not in self._composed:
            # Each is run with parameters, beside which a % of the name is doubled.
            schema = sql.Identifier(self.settings.schema.replace("%", "%%"))
            self._composed[name] = sql.SQL(_QUERIES[name]).format(s=schema)
        return self._composed[name]

    def run(self, connection: Connection, name: str, **parameters: Any) -> psycopg.Cursor[tuple[Any, ...]]:
        """Execute a named query on a connection, in whatever transaction that is in."""
        with translated("reading or writing the bookkeeping"):
            return connection.execute(self.query(name), {"scope": self.settings.scope, **parameters})

    def check_installed(self, connection: Connection) -> None:
        """Raise :class:`~rebuilder.errors.NotInstalled` if the schema is not there."""
        names = {key: sql.Identifier(self.settings.schema, table).as_string(connection)
                 for key, table in (("state", "projection_state"), ("version", "alembic_version"))}
        with translated("looking for the bookkeeping"):
            row = connection.execute(_QUERIES["installed"], names).fetchone()
        if row != (True, True):
            raise errors.NotInstalled(
                f"The bookkeeping schema {self.settings.schema!r} is not installed in this database.",
                hint="run `rebuilder install` (or `rebuilder install --sql` for a DBA)")

    def tickets(self, connection: Connection, projection: str | None, *, ticket: UUID | None = None,
                limit: int = 20) -> list[Ticket]:
        """The last rebuilds, newest first."""
        rows = self.run(connection, "tickets", projection=projection, ticket=ticket, limit=limit).fetchall()
        return [Ticket(r[0], r[1], r[2], r[3], Stage(r[4]), *r[5:]) for r in rows]

    def progress(self, connection: Connection, ticket: UUID) -> Progress | None:
        """How far a ticket is."""
        row = self.run(connection, "progress", ticket=ticket).fetchone()
        if row is None:
            return None
        phase, done, total, rate, eta, attempts, age, blockers, cancel, position = row
        return Progress(Phase(phase), done, total, rate, eta, attempts, age, tuple(blockers), cancel, position)


class Ledger:
    """One run's side of the bookkeeping, over the second connection. Thread-safe: the heartbeat uses it too."""

    def __init__(self, connection: Connection, books: Bookkeeping, projection: str) -> None:
        self.connection = connection
        self.books = books
        self.projection = projection
        self._lock = threading.RLock()

    @contextmanager
    def using(self) -> Iterator[Connection]:
        """The second connection, for questions of other modules; the heartbeat waits meanwhile."""
        with self._lock:
            yield self.connection

    def _write(self, name: str, **parameters: Any) -> list[tuple[Any, ...]]:
        with self._lock, short(self.connection, self.books.settings.lock_timeout_ms) as connection:
            cursor = self.books.run(connection, name, **{"projection": self.projection, **parameters})
            return cursor.fetchall() if cursor.description else []

    def insert_state(self, *, followed: bool) -> None:
        """The projection's state row (and its follower's checkpoint), committed."""
        self._write("insert_state")
        if followed:
            self._write("insert_checkpoint")

    def holder(self) -> tuple[Any, ...] | None:
        """(ticket, host, pid, since, phase, heartbeat age) of the running ticket, if any."""
        rows = self._write("open_ticket")
        return rows[0] if rows else None

    def close_abandoned(self) -> list[tuple[Any, ...]]:
        """Close tickets whose process is gone; the caller holds the state row."""
        return self._write("close_abandoned")

    def open(self, ticket: UUID, *, version: int, reason: Reason, note: str | None, backend_pid: int) -> int:
        """Write the running ticket; its generation."""
        rows = self._write("insert_ticket", ticket=ticket, version=version, reason=str(reason), note=note, host=host(),
                           pid=os.getpid(), backend_pid=backend_pid)
        return int(rows[0][0])

    def requested(self) -> UUID | None:
        """The ticket that waits to be started, if there is one."""
        rows = self._write("requested_ticket")
        return rows[0][0] if rows else None

    def adopt(self, ticket: UUID, *, version: int, reason: Reason, note: str | None, backend_pid: int) -> int | None:
        """Start a ticket that waited; its generation, or None if somebody else has taken it."""
        rows = self._write("adopt_ticket", ticket=ticket, version=version, reason=str(reason), note=note, host=host(),
                           pid=os.getpid(), backend_pid=backend_pid)
        return int(rows[0][0]) if rows else None

    def shard_read(self, ticket: UUID, manifest: UUID, shard: Shard, events: int) -> None:
        """Note that a shard of an archive was read to its end."""
        self._write("put_index_checkpoint", ticket=ticket, manifest=manifest, shard=shard.id,
                    position=shard.last_position, events=events)

    def request(self, reason: Reason, note: str | None) -> None:
        """Write a request, unless one for that reason is pending already."""
        self._write("insert_request_once", id=uuid4(), reason=str(reason), note=note, actor=None)

    def link(self, ticket: UUID, *, invalidation: UUID | None) -> None:
        """Say which request a ticket works on."""
        self._write("link_ticket", ticket=ticket, invalidation=invalidation)

    def progress(self, ticket: UUID, progress: Progress) -> bool:
        """Write progress and heartbeat; whether a cancel was asked for."""
        rows = self._write("write_progress", ticket=ticket, phase=str(progress.phase), done=progress.events_done,
                           total=progress.events_total, position=progress.position, rate=progress.rate,
                           eta=progress.eta, attempts=progress.attempts, blockers=Jsonb(list(progress.blockers)))
        return bool(rows and rows[0][0])

    def cancel_requested(self, ticket: UUID) -> bool:
        """Whether somebody asked for the end of the run."""
        return self._write("cancel_requested", ticket=ticket) == [(True,)]

    def close(self, ticket: UUID, error: BaseException, details: dict[str, Any]) -> None:
        """Record after the rollback why the run ended."""
        cancelled = isinstance(error, errors.RebuildCancelled)
        code = error.code if isinstance(error, errors.RebuilderError) else "unexpected"
        self._write("close_ticket", ticket=ticket, stage=str(Stage.CANCELLED if cancelled else Stage.FAILED), code=code,
                    failure=Jsonb(details, dumps=_dumps))
        self._write("fail_state", failure=str(details.get("message", ""))[:2000], cancelled=cancelled)

    def update_report(self, ticket: UUID, report: dict[str, Any]) -> None:
        """Complete the report with what is known only after the commit."""
        self._write("update_report", ticket=ticket, report=Jsonb(report, dumps=_dumps))

    def record_dead_letter(self, **fields: Any) -> None:
        """Write a dead letter so that it survives a later failure of the run."""
        data = fields.pop("data", None)
        self._write("record_dead_letter", data=None if data is None else Jsonb(data, dumps=_dumps), **fields)

    def owed(self, projection: str | None) -> list[tuple[Any, ...]]:
        """What is left to do, for a projection or for all."""
        return self._write("owed", projection=projection)

    def owed_superseded(self, ticket: UUID) -> None:
        """Make the retired tables of earlier rebuilds due."""
        self._write("owed_superseded", ticket=ticket)

    def owed_done(self, id_: int) -> None:
        """Settle one owed thing."""
        self._write("owed_done", id=id_)

    def owed_failed(self, id_: int, error: str) -> None:
        """Note why one owed thing could not be settled."""
        self._write("owed_failed", id=id_, error=error[:2000])

    def xact_status(self, xid: str) -> str | None:
        """``committed``, ``aborted``, ``in progress``, or None if too old to know."""
        rows = self._write("xact_status", xid=xid)
        return rows[0][0] if rows else None


def _dumps(value: Any) -> str:
    return json.dumps(value, default=str)
