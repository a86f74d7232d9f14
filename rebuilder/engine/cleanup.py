"""Settles what is owed, each thing in a transaction of its own with its own lock timeout.

Only what a ticket of ours registered is touched, and nothing of live is locked by dropping a retired table.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

import psycopg
from psycopg import sql

from rebuilder import errors
from rebuilder.domain.ticket import Stage
from rebuilder.engine.schemas import ready_made
from rebuilder.settings import Settings
from rebuilder.store.ledger import Bookkeeping, Ledger
from rebuilder.store.sessions import Connection, Server, connect, short, translate, translated

_LOCK_TIMEOUT = "500ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleaned:
    """One thing that cleanup looked at. ``done`` is False with ``error`` when it is still owed, or with neither when it
    is kept on purpose until ``due``.
    """

    kind: str
    label: str
    done: bool
    error: str | None = None
    due: str | None = None

    def to_json(self) -> dict[str, object]:
        """The fields as an object."""
        return {"kind": self.kind, "label": self.label, "done": self.done, "error": self.error, "due": self.due}


def settle_owed(ledger: Ledger, name: str | None, *, all_kept: bool = False) -> list[Cleaned]:
    """Do what is due (or, with ``all_kept``, drop the retired tables that are still being kept, too)."""
    looked = []
    for id_, kind, label, statement, due, _, _, due_at, _ in ledger.owed(name):
        if not due and not (all_kept and kind == "drop-retired"):
            looked.append(Cleaned(kind=kind, label=label, done=False, due=due_at.isoformat()))
            continue
        with ledger.using() as connection:
            error = _settle(connection, kind, label, statement)
        if error is None:
            ledger.owed_done(id_)
        else:
            ledger.owed_failed(id_, error)
        looked.append(Cleaned(kind=kind, label=label, done=error is None, error=error))
    return looked


def cleanup(conninfo: str, settings: Settings, name: str | None, *, all_kept: bool = False) -> list[Cleaned]:
    """Settle what is owed, close the tickets of runs that are gone, and drop work schemas that such a run left."""
    books = Bookkeeping(settings)
    with connect(conninfo, role="cleanup", autocommit=True) as connection:
        Server.of(connection).check()
        books.check_installed(connection)
        ledger = Ledger(connection, books, name or "")
        closed = _close_abandoned(connection, books, name)
        return [*closed, *_drop_work_schemas(connection, books, name), *settle_owed(ledger, name, all_kept=all_kept)]


def _close_abandoned(connection: Connection, books: Bookkeeping, name: str | None) -> list[Cleaned]:
    """A running ticket whose state row can be locked has no run any more."""
    closed = []
    for ticket in books.tickets(connection, name, limit=1000):
        if ticket.stage is not Stage.RUNNING:
            continue
        with suppress(errors.NotNow), short(connection, 1):
            books.run(connection, "lock_state", projection=ticket.projection)
            rows = books.run(connection, "close_abandoned", projection=ticket.projection).fetchall()
            closed += [Cleaned(kind="abandoned-ticket", label=f"{row[0]} of {ticket.projection}", done=True)
                       for row in rows]
    return closed


def _drop_work_schemas(connection: Connection, books: Bookkeeping, name: str | None) -> list[Cleaned]:
    """A run's schemas outlive it only if a handler ended the run's transaction; their names carry the ticket."""
    gone = []
    for ticket in books.tickets(connection, name, limit=1000):
        if ticket.stage in {Stage.RUNNING, Stage.REQUESTED}:
            continue
        rows = connection.execute("SELECT nspname FROM pg_namespace WHERE nspname LIKE %s",
                                  (f"rebuilder\\_work\\_{ticket.id.hex[:10]}%",)).fetchall()
        for (schema,) in rows:
            with translated(f"dropping work schema {schema}"):
                connection.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(schema)))
            gone.append(Cleaned(kind="work-schema", label=schema, done=True))
        if rows and ticket.stage is not Stage.COMPLETED:
            # It was made for the swap that did not come. Without CASCADE: nothing of ours is in it.
            for (schema,) in connection.execute("SELECT nspname FROM pg_namespace WHERE nspname LIKE %s",
                                                (f"rebuilder\\_retired\\_{ticket.id.hex[:10]}%",)).fetchall():
                with suppress(psycopg.errors.DependentObjectsStillExist):
                    connection.execute(sql.SQL("DROP SCHEMA {}").format(sql.Identifier(schema)))
    return gone


def _settle(connection: Connection, kind: str, label: str, statement: str) -> str | None:
    try:
        with connection.transaction():
            # Owed statements are qualified; a search_path could only put something before pg_catalog.
            connection.execute("SELECT set_config('lock_timeout', %s, true), set_config('search_path', '', true),"
                               " set_config('statement_timeout', '0', true)", (_LOCK_TIMEOUT,))
            if kind == "drop-retired":
                _drop_retired(connection, schema=statement, table=label[len(statement) + 1:])
            else:
                connection.execute(statement)
    except psycopg.Error as error:
        return translate(error, f"settling {kind} {label}").message
    return None


def _drop_retired(connection: Connection, *, schema: str, table: str) -> None:
    """Drop a retired table, and its schema with the last one. Never CASCADE: what came to depend on it is named."""
    connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(sql.Identifier(schema, table)))
    left = connection.execute("SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
                              " WHERE n.nspname = %s", (schema,)).fetchone()
    if left == (0,) and not ready_made(schema):
        connection.execute(sql.SQL("DROP SCHEMA IF EXISTS {}").format(sql.Identifier(schema)))
