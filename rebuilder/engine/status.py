"""How projections are, from any connection, while a rebuild runs too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import psycopg

from rebuilder.domain.projection import Projection
from rebuilder.domain.report import Owed
from rebuilder.domain.ticket import Health, Progress, Stage, Ticket
from rebuilder.engine.pending import Pending, pending_of
from rebuilder.eventlog import OpenLog, Selection, TableLog
from rebuilder.store.ledger import Bookkeeping
from rebuilder.store.requests import pending_requests
from rebuilder.store.sessions import Connection, connect, translated


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectionStatus:
    """One projection. ``lag`` is in events: matching ones above the checkpoint; 0 for what is not followed; None when
    the application is not known. ``high_water_mark`` is the highest position of the log, 0 if it is empty.
    """

    projection: str
    health: Health
    generation: int
    version: int | None
    recipe_version: int | None
    feeding: str | None
    position: int | None
    high_water_mark: int | None
    lag: int | None
    rebuilt_at: datetime | None
    last_failure: str | None
    dead_letters: int
    owed: tuple[Owed, ...]
    kept: tuple[str, ...]
    ticket: Ticket | None
    progress: Progress | None
    alive: bool | None
    categories: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()
    pending: Pending | None = None

    def to_json(self) -> dict[str, Any]:
        """The status as strings, numbers, lists and objects."""
        return {
            "projection": self.projection, "health": str(self.health), "generation": self.generation,
            "version": self.version, "recipe_version": self.recipe_version, "feeding": self.feeding,
            "position": self.position, "high_water_mark": self.high_water_mark, "lag": self.lag,
            "rebuilt_at": self.rebuilt_at.isoformat() if self.rebuilt_at else None, "last_failure": self.last_failure,
            "dead_letters": self.dead_letters,
            "owed": [{"kind": o.kind, "label": o.label, "command": o.command} for o in self.owed],
            "kept": list(self.kept), "ticket": self.ticket.to_json() if self.ticket else None,
            "progress": self.progress.to_json() if self.progress else None, "alive": self.alive,
            "categories": list(self.categories), "tables": list(self.tables),
            "pending": self.pending.to_json() if self.pending else None,
        }


def status_of(connection: Connection, books: Bookkeeping, projections: Sequence[Projection],
              log: TableLog) -> list[ProjectionStatus]:
    """The status of an application's projections."""
    books.check_installed(connection)
    with translated("reading the event log"):
        opened = log.open(connection)
    return [_status(connection, books, projection.name, projection, opened) for projection in projections]


def status_without_application(connection: Connection, books: Bookkeeping,
                               name: str | None = None) -> list[ProjectionStatus]:
    """The status of every projection that the bookkeeping knows, for somebody who has only the DSN."""
    books.check_installed(connection)
    known = [row[0] for row in books.run(connection, "known_projections").fetchall()]
    return [_status(connection, books, each, None, None) for each in known if name in {None, each}]


def _status(connection: Connection, books: Bookkeeping, name: str, projection: Projection | None,
            log: OpenLog | None) -> ProjectionStatus:
    row = books.run(connection, "read_state", projection=name).fetchone()
    never = (0, None, None, "never_built", None, None, None)
    generation, version, position, health, rebuilt_at, failure, _ = row or never
    ticket = next((t for t in books.tickets(connection, name, limit=1) if t.stage is Stage.RUNNING), None)
    progress = books.progress(connection, ticket.id) if ticket else None
    high, lag = _lag(connection, books, projection, log)
    owed = books.run(connection, "owed", projection=name).fetchall()
    made = books.run(connection, "read_health", projection=name).fetchone()
    return ProjectionStatus(
        projection=name, health=Health(made[0] if made else health), generation=generation, version=version,
        recipe_version=projection.version if projection else None,
        feeding=projection.feeding_name if projection else None, position=position, high_water_mark=high, lag=lag,
        rebuilt_at=rebuilt_at, last_failure=failure,
        dead_letters=_one(books.run(connection, "count_dead_letters", projection=name)),
        owed=tuple(Owed(kind, label) for _, kind, label, _, due, *_ in owed if due),
        kept=tuple(label for _, kind, label, _, due, *_ in owed if kind == "drop-retired" and not due),
        ticket=ticket, progress=progress, alive=_alive(connection, ticket) if ticket else None,
        categories=tuple(projection.categories) if projection else (),
        tables=tuple(projection.tables) if projection else (),
        pending=pending_of(connection, books, projection, pending_requests(connection, books, name))
        if projection else None)


def _lag(connection: Connection, books: Bookkeeping, projection: Projection | None,
         log: OpenLog | None) -> tuple[int | None, int | None]:
    if projection is None or log is None:
        return None, None
    with translated("reading the event log"):
        selection = Selection(types=projection.types, categories=tuple(projection.categories))
        high = log.max_position(connection)
        if projection.feeding_name != "async":
            return high, None if projection.feeding_name == "external" else 0
        row = books.run(connection, "read_checkpoint", projection=projection.name).fetchone()
        return high, log.count(connection, selection, above=row[0] if row else 0)


def _alive(connection: Connection, ticket: Ticket) -> bool:
    """Whether the backend of the ticket's main transaction is still there."""
    name = f"rebuilder:{str(ticket.id)[:8]}:main"
    row = connection.execute("SELECT FROM pg_stat_activity WHERE application_name = %s", (name,)).fetchone()
    return row is not None


def _one(cursor: psycopg.Cursor[Any]) -> int:
    row = cursor.fetchone()
    return int(row[0]) if row else 0


def request_cancel(conninfo: str, books: Bookkeeping, ticket: UUID) -> bool:
    """Ask a running rebuild to stop; it is asked through its progress row, and its statement is cancelled at once."""
    with connect(conninfo, role="cancel", autocommit=True) as connection:
        books.check_installed(connection)
        row = books.run(connection, "request_cancel", ticket=ticket).fetchone()
        if row is None:
            return False
        # The number alone may by now be another session's: the name must fit too.
        with translated("cancelling the running statement"):
            connection.execute("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE pid = %s"
                               " AND application_name = %s", (row[0], f"rebuilder:{str(ticket)[:8]}:main"))
    return True
