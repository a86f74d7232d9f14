"""Feeding live inside an application's own transaction.

The live tables are locked ROW EXCLUSIVE before it is read which version live was built with: a writer that waited on a
fence reads what the cut-over wrote. Then the transaction's snapshot is asked whether it knows live at all: above READ
COMMITTED it may be older than the cut-over, and an UPDATE would find no row and say nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus

from rebuilder.domain.batch_sql import BatchSql
from rebuilder.domain.event import Event
from rebuilder.domain.projection import Projection, SqlHandlers
from rebuilder.domain.registry import Registry
from rebuilder.domain.upcasters import UpcastContext
from rebuilder.engine.apply_batch import execute_live
from rebuilder.engine.apply_sql import checked
from rebuilder.engine.fold_live import fold_live, fold_tables
from rebuilder.errors import CutOverDuringTransaction, DefinitionError, RecipeOutdated, RefusedError
from rebuilder.eventlog import TableLog
from rebuilder.sql import load
from rebuilder.store.ledger import Bookkeeping
from rebuilder.store.sessions import Connection

_QUERIES = load("queries")


class LiveTarget:
    """Where handlers write in ``project``: the caller's own connection, one statement at a time."""

    def __init__(self, connection: Connection, tables: dict[str, sql.Identifier]) -> None:
        self._connection = connection
        self._tables = tables

    def execute(self, statement: Any, params: Any = None) -> None:
        """Run a statement."""
        self._cursor().execute(checked(statement, self._connection), params)

    def fetch_one(self, statement: Any, params: Any = None) -> tuple[Any, ...] | None:
        """Run a statement; its first row."""
        return self._cursor().execute(checked(statement, self._connection), params).fetchone()

    def fetch_all(self, statement: Any, params: Any = None) -> list[tuple[Any, ...]]:
        """Run a statement; its rows."""
        return self._cursor().execute(checked(statement, self._connection), params).fetchall()

    def table(self, name: str) -> sql.Identifier:
        """The qualified name of a declared table."""
        if name not in self._tables:
            raise DefinitionError(f"target.table({name!r}): the projection does not declare that table.",
                                  hint=f"declared: {', '.join(sorted(self._tables))}")
        return self._tables[name]

    def _cursor(self) -> psycopg.Cursor[tuple[Any, ...]]:
        # The caller's connection may have a row factory of its own; handlers get tuples, as in a rebuild.
        return self._connection.cursor(row_factory=psycopg.rows.tuple_row)


def project(connection: Any, events: Iterable[Event], registry: Registry, books: Bookkeeping, log: TableLog) -> None:
    """Apply events to the live tables of every inline projection that subscribes to them."""
    raw = driver_connection(connection)
    _check_transaction(raw)
    given = list(events)
    for projection in registry.in_order():
        matching = [event for event in given if _subscribes(projection, event)]
        if projection.feeding_name == "inline" and matching:
            tables = hold(raw, projection, books)
            _refuse_quarantined(raw, projection, matching, books)
            _apply(raw, projection, matching, tables, log)


def apply_to_live(connection: Connection, projection: Projection, events: Sequence[Event], each: Iterable[Event],
                  tables: dict[str, sql.Identifier], books: Bookkeeping, log: TableLog) -> None:
    """Apply the events of a follower; it draws them one by one from ``each``. Live is held already."""
    if events:
        _refuse_quarantined(connection, projection, events, books)
        _apply(connection, projection, each, tables, log)


def guard(connection: Any, projections: Sequence[Projection], books: Bookkeeping) -> None:
    """Hold the live tables of projections that the application writes itself, and check version and snapshot."""
    raw = driver_connection(connection)
    _check_transaction(raw)
    for projection in projections:
        hold(raw, projection, books)


def hold(connection: Connection, projection: Projection, books: Bookkeeping) -> dict[str, sql.Identifier]:
    """Lock the live tables against a cut-over, then check version and snapshot; the tables' qualified names."""
    cursor = connection.cursor(row_factory=psycopg.rows.tuple_row)
    tables = {name: _identifier(cursor, name) for name in projection.tables}
    for identifier in sorted(tables.values(), key=lambda i: i.as_string(connection)):
        cursor.execute(sql.SQL("LOCK TABLE {} IN ROW EXCLUSIVE MODE").format(identifier))
    state = cursor.execute(books.query("read_state"),
                           {"scope": books.settings.scope, "projection": projection.name}).fetchone()
    for identifier in tables.values():
        known = cursor.execute(_QUERIES["snapshot_knows"], {"name": identifier.as_string(connection)}).fetchone()
        if known != (True,):
            raise CutOverDuringTransaction(
                f"{identifier.as_string(connection)} was put in place after this transaction's snapshot was taken, so "
                "its writes would be lost without an error. Nothing was written.",
                hint="repeat the transaction, as after SQLSTATE 40001", projection=projection.name)
    if state is not None and state[1] is not None and state[1] > projection.version:
        raise RecipeOutdated(
            f"Live of {projection.name!r} was built with version {state[1]}; this process has version "
            f"{projection.version} and must not write it. Nothing was written.",
            hint="deploy the later code to this process", projection=projection.name, built_with=state[1],
            version=projection.version)
    return tables


def driver_connection(connection: Any) -> Connection:
    """The psycopg connection behind what the caller has."""
    if isinstance(connection, psycopg.Connection):
        return connection
    if callable(getattr(connection, "connection", None)):  # a SQLAlchemy Session
        connection = connection.connection()
    if hasattr(connection, "in_transaction") and not connection.in_transaction():
        raise _outside()
    fairy = getattr(connection, "connection", None)
    driver = getattr(fairy, "driver_connection", None)
    if isinstance(driver, psycopg.Connection):
        return driver
    raise DefinitionError(
        f"project() takes a psycopg connection or a SQLAlchemy connection or session over psycopg, not a "
        f"{type(driver if driver is not None else connection).__module__}.{type(driver or connection).__name__}.",
        hint='make the engine with "postgresql+psycopg://"')


def _check_transaction(connection: Connection) -> None:
    if connection.autocommit and connection.info.transaction_status == TransactionStatus.IDLE:
        raise _outside()


def _outside() -> DefinitionError:
    return DefinitionError("The connection is in no transaction, so the event and its effect on live could be "
                           "committed apart.",
                           hint="append and project in one transaction: with connection.transaction(): ...")


def _identifier(cursor: psycopg.Cursor[tuple[Any, ...]], name: str) -> sql.Identifier:
    row = cursor.execute("SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
                         " WHERE c.oid = to_regclass(%s)", (name,)).fetchone()
    if row is None:
        # Above READ COMMITTED the catalog query is answered by the old snapshot, to_regclass by today's catalog.
        found = cursor.execute("SELECT to_regclass(%s) IS NOT NULL", (name,)).fetchone()
        if found == (True,):
            raise CutOverDuringTransaction(
                f"{name} was put in place after this transaction's snapshot was taken. Nothing was written.",
                hint="repeat the transaction, as after SQLSTATE 40001")
        raise DefinitionError(f"Table {name} does not exist.", hint="create it, or correct tables=[...]", table=name)
    return sql.Identifier(*row)


def _subscribes(projection: Projection, event: Event) -> bool:
    wanted = not projection.categories or event.category in projection.categories
    return wanted and event.type in projection.types


def _refuse_quarantined(connection: Connection, projection: Projection, events: Sequence[Event],
                        books: Bookkeeping) -> None:
    rows = connection.cursor(row_factory=psycopg.rows.tuple_row).execute(
        books.query("quarantined_streams"), {"scope": books.settings.scope, "projection": projection.name,
                                             "streams": [event.stream for event in events]}).fetchall()
    held = set(rows) & {event.stream_id for event in events}
    if held:
        tenant, category, stream = min(held)
        name = "/".join(part for part in (tenant, category, stream) if part)
        raise RefusedError(f"Stream {name} of {projection.name!r} is under quarantine: an earlier event of it is a "
                           "dead letter, so later ones would be applied to a state with a hole. Nothing was written.",
                           hint="see `rebuilder dead-letters list`; mend the handler and rebuild",
                           projection=projection.name, stream=stream)


def _apply(connection: Connection, projection: Projection, events: Iterable[Event],
           tables: dict[str, sql.Identifier], log: TableLog) -> None:
    target = LiveTarget(connection, tables)
    folds = fold_tables(connection, projection, tables)
    for event in events:
        lifted = event
        if projection.upcasters is not None:
            lifted = projection.upcasters.lift(event, UpcastContext(event.tenant, target.fetch_one))
        if isinstance(projection.handlers, BatchSql):
            execute_live(connection, projection.handlers, log, [event])
        elif isinstance(projection.handlers, SqlHandlers):
            projection.handlers.handler(lifted.type)(lifted, target)
        else:
            fold_live(connection, lifted, folds)
