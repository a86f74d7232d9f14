"""Looks for what would stop a rebuild, and says how to mend it, with the exact GRANTs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import psycopg
from psycopg import sql

from rebuilder import errors
from rebuilder.catalog import read_blueprint
from rebuilder.catalog.blueprint import Outcome
from rebuilder.domain.registry import Registry
from rebuilder.domain.ticket import Stage
from rebuilder.engine.schemas import WORK
from rebuilder.eventlog import TableLog
from rebuilder.settings import Settings
from rebuilder.sql import load
from rebuilder.store.install import READY
from rebuilder.store.ledger import Bookkeeping
from rebuilder.store.sessions import Connection, Server, connect, translate

_QUERIES = load("queries")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing looked at; ``command`` mends it."""

    level: Literal["ok", "warning", "problem"]
    subject: str
    message: str
    command: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The fields as an object."""
        return {"level": self.level, "subject": self.subject, "message": self.message, "command": self.command}


def examine(conninfo: str, settings: Settings, log: TableLog | None, registry: Registry | None) -> list[Finding]:
    """All findings; without an application only server, role and bookkeeping are looked at."""
    with connect(conninfo, role="doctor", autocommit=True) as connection:
        server = Server.of(connection)
        findings = [*_server(server), *_role(connection, server, settings)]
        findings += _bookkeeping(connection, settings)
        if log is not None:
            findings += _log(connection, log)
        if registry is not None:
            findings += _tables(connection, registry)
        return findings


def _server(server: Server) -> Iterator[Finding]:
    try:
        server.check()
    except errors.UnsupportedServer as error:
        yield _problem("server", error)
    else:
        yield Finding(level="ok", subject="server", message=f"PostgreSQL {server.version // 10000}, a primary")
    if server.deadlock_timeout.total_seconds() < 0.3:
        yield Finding(level="warning", subject="server", message="deadlock_timeout is below 300 ms, which leaves the "
                      "fence's queued attempts little time", command="ALTER SYSTEM SET deadlock_timeout = '1s'")


def _role(connection: Connection, server: Server, settings: Settings) -> Iterator[Finding]:
    quoted = {"user": sql.Identifier(server.user), "database": sql.Identifier(server.database),
              "schema": sql.Identifier(settings.schema)}

    def grant(text: Any) -> str:
        return str(sql.SQL(text).format(**quoted).as_string(connection))

    row = connection.execute(_QUERIES["privileges"], {"schema": settings.schema}).fetchone()
    assert row is not None
    create, exists, usage, write, stats = row
    ready = len(connection.execute(_QUERIES["ready_schemas"], {"prefix": WORK + READY}).fetchall())
    if create:
        yield Finding(level="ok", subject="role", message=f"{server.user} may create schemas in {server.database}")
    elif ready:
        yield Finding(level="ok", subject="role", message=f"{server.user} may use {ready} ready-made work schemas")
    else:
        yield Finding(level="problem", subject="role", message=f"{server.user} may not create schemas in "
                      f"{server.database}: there is no place for the shadow",
                      command=grant("GRANT CREATE ON DATABASE {database} TO {user}"))
    if exists and not usage:
        yield Finding(level="problem", subject="role", message=f"{server.user} may not use the bookkeeping schema",
                      command=grant("GRANT USAGE ON SCHEMA {schema} TO {user}"))
    if exists and usage and not write:
        yield Finding(level="problem", subject="role", message=f"{server.user} may not write the bookkeeping",
                      command=grant("GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA {schema} TO {user}"))
    if not stats:
        yield Finding(level="warning", subject="role", message="queries of other roles' sessions are not visible, so a "
                      "blocker is named by pid, user and application only",
                      command=grant("GRANT pg_read_all_stats TO {user}"))


def _bookkeeping(connection: Connection, settings: Settings) -> Iterator[Finding]:
    books = Bookkeeping(settings)
    try:
        books.check_installed(connection)
        tickets = books.tickets(connection, None, limit=1000)
        owed = books.run(connection, "owed", projection=None).fetchall()
    except errors.RebuilderError as error:
        yield _problem("bookkeeping", error)
        return
    yield Finding(level="ok", subject="bookkeeping", message=f"schema {settings.schema} is installed")
    for ticket in tickets:
        name = f"rebuilder:{str(ticket.id)[:8]}:main"
        if ticket.stage is Stage.RUNNING and connection.execute(
                "SELECT FROM pg_stat_activity WHERE application_name = %s", (name,)).fetchone() is None:
            yield Finding(level="warning", subject=ticket.projection, command="rebuilder cleanup",
                          message=f"ticket {ticket.id} says running, but its connection is gone")
    for _, kind, label, _, due, projection, failed, *_ in owed:
        if due:
            why = f" (last try: {failed})" if failed else ""
            yield Finding(level="warning", subject=projection, message=f"owed: {kind} {label}{why}",
                          command="rebuilder cleanup")


def _log(connection: Connection, log: TableLog) -> Iterator[Finding]:
    try:
        opened = log.open(connection)
    except errors.RebuilderError as error:
        yield _problem(f"event log {log.relation}", error)
    except psycopg.Error as error:
        yield _problem(f"event log {log.relation}", translate(error, "reading the event log's definition"))
    else:
        yield Finding(level="ok", subject=f"event log {opened.label}",
                      message="readable, and complete below its horizon")


def _tables(connection: Connection, registry: Registry) -> Iterator[Finding]:
    for projection in registry:
        try:
            blueprint = read_blueprint(connection, projection.tables, shape=projection.shape or None, run_id="doctor")
        except errors.RebuilderError as error:
            yield _problem(projection.name, error)
            continue
        except psycopg.Error as error:
            yield _problem(projection.name, translate(error, "reading the live tables' definition"))
            continue
        bad = [v for v in blueprint.verdicts if v.outcome in {Outcome.REFUSE, Outcome.LOSS}]
        for verdict in bad:
            yield Finding(level="problem", subject=projection.name, command=verdict.hint or None,
                          message=f"{verdict.kind} {verdict.name}: {verdict.reason}")
        if not bad:
            yield Finding(level="ok", subject=projection.name, message=f"{len(blueprint.verdicts)} objects can be kept")


def _problem(subject: str, error: errors.RebuilderError) -> Finding:
    return Finding(level="problem", subject=subject, message=error.message, command=error.hint)
