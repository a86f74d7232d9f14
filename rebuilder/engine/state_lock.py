"""Step 1: the projection's state row is locked by the main transaction, the ticket written by the second connection."""

from __future__ import annotations

import hashlib
import time
import uuid
from typing import Any

from psycopg import sql

from rebuilder import errors
from rebuilder.domain.ticket import Reason
from rebuilder.engine.run import Run
from rebuilder.settings import ADVISORY_CLASS
from rebuilder.sql import load
from rebuilder.store.ledger import Ledger
from rebuilder.store.requests import pending_requests
from rebuilder.store.sessions import Server, begin, translated

ENDING = 1.0
"""Seconds that another run may take to give its advisory locks back once its state row is free."""

_QUERIES = load("queries")


def lock_state(run: Run) -> None:
    """Become the one run of this projection, or raise :class:`~rebuilder.errors.RebuildInProgress`.

    Raises also :class:`~rebuilder.errors.RecipeOutdated` if live was built with a later version.
    """
    connect_run(run, adopting=True)
    _check_books(run)
    projection = run.projection
    run.ledger.insert_state(followed=projection.feeding_name == "async")
    with translated("beginning the main transaction"):
        begin(run.main, run.server)
        state = _lock_row(run)
        with translated("locking the tables against another rebuild"):
            _lock_tables(run)
    for ticket, host, pid, since in run.ledger.close_abandoned():
        run.warn(f"Ticket {ticket} of {host}, process {pid}, running since {since:%Y-%m-%d %H:%M:%S %Z}, was "
                 "abandoned: its process is gone. It is closed as failed.")
    built_with = state[2]
    if built_with is not None and built_with > projection.version and "downgrade" not in run.options.allow:
        raise errors.RecipeOutdated(
            f"Live of {projection.name!r} was built with version {built_with}; this code has version "
            f"{projection.version}. Nothing was changed.",
            hint="deploy the later code, or pass --allow downgrade to go back on purpose",
            projection=projection.name, built_with=built_with, version=projection.version)
    _open_ticket(run)
    _take_requests(run)


def _open_ticket(run: Run) -> None:
    facts: Any = {"version": run.projection.version, "reason": run.options.reason, "note": run.options.note,
                  "backend_pid": run.main.info.backend_pid}
    if run.adopted:
        generation = run.ledger.adopt(run.ticket, **facts)
        if generation is None:
            raise errors.NotNow(f"Ticket {run.ticket} of {run.projection.name!r} was taken up or ended by another.",
                                hint="repeat: the next run looks again")
        run.generation = generation
    elif run.ledger.holder() is not None:
        # Its state row is free: a rebuild that somebody carries out through the store.
        raise _in_progress(run)
    else:
        run.generation = run.ledger.open(run.ticket, **facts)


def _take_requests(run: Run) -> None:
    """What the run answers: the requests that are there now that it has the state lock, and none that comes later."""
    if run.options.reason is Reason.INTEGRITY_FAILURE:
        # Should the run fail, it must still be known that live is damaged.
        run.ledger.request(run.options.reason, run.options.note)
    run.answers = tuple(each.id for each in pending_requests(run.main, run.books, run.projection.name))
    if run.answers:
        run.ledger.link(run.ticket, invalidation=run.answers[-1])


def connect_run(run: Run, *, adopting: bool = False) -> None:
    """Open the run's connections, all proven to be on one writable server, and look for the bookkeeping.

    ``adopting`` takes up the ticket that the store was asked for, and that nobody has started.
    """
    run.ticket = uuid.uuid4()
    with translated("connecting"):
        ledger = run.open("ledger", autocommit=True)
        run.ledger = Ledger(ledger, run.books, run.projection.name)
        run.server = Server.of(ledger)
        run.server.check()
        run.books.check_installed(ledger)
        if adopting and (requested := run.ledger.requested()) is not None:
            # Connections and work schemas carry the ticket's number, so it has to be known before them.
            run.ticket, run.adopted = requested, True
            ledger = run.open("ledger", autocommit=True)
            run.ledger = Ledger(ledger, run.books, run.projection.name)
        run.main = run.open("main", autocommit=False)
        run.reader = run.open("reader", autocommit=True)
        pooled = run.main.info.backend_pid != Server.of(run.main).backend_pid
        run.main.rollback()
    if pooled:
        # A pooler hands out its own number; prepared statements may meet another backend behind it.
        for connection in (run.main, run.reader, ledger):
            connection.prepare_threshold = None
        run.warn("A connection pooler stands between rebuilder and the server: give it a direct DSN, since a pooler's "
                 "own timeouts may end the run.")
    run.defer(run.stop.on_request(run.cancel_statement))


def _check_books(run: Run) -> None:
    """All of the bookkeeping may be written: some of it is first touched after the replay, or even the commit."""
    with translated("looking at the bookkeeping"), run.ledger.using() as connection:
        schema = run.settings.schema
        closed = connection.execute(_QUERIES["closed_tables"], {"schema": schema}).fetchall()
        if closed:
            grant = sql.SQL("GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA {} TO {}").format(
                sql.Identifier(schema), sql.Identifier(run.server.user)).as_string(connection)
            missing = ", ".join(f"{schema}.{name}" for name, in closed)
            raise errors.MissingPrivilege(f"Role {run.server.user!r} may not read and write {missing}. Nothing was "
                                          "changed.", hint=grant)


def _lock_row(run: Run) -> tuple[Any, ...]:
    # A lock_timeout of 0 would wait for ever, so "do not wait" is the shortest there is.
    run.main.execute("SELECT set_config('lock_timeout', %s, true)", (f"{max(1, int(run.options.wait * 1000))}ms",))
    try:
        row = run.books.run(run.main, "lock_state", projection=run.projection.name).fetchone()
    except errors.NotNow as error:
        raise _in_progress(run) from error
    run.main.execute("SELECT set_config('lock_timeout', '0', true)")
    if row is None:
        raise errors.StoreError(f"The state row of {run.projection.name!r} disappeared while it was being locked.",
                                hint="look who deletes rows of the bookkeeping, then repeat")
    return row


def _in_progress(run: Run) -> errors.RebuildInProgress:
    name, holder = run.projection.name, run.ledger.holder()
    if holder is None:
        return errors.RebuildInProgress(f"The state row of {name!r} is locked by a run that has not written its ticket "
                                        "yet.", hint="wait, or pass wait=", projection=name)
    ticket, host, pid, since, phase, age = holder
    return errors.RebuildInProgress(
        f"{name!r} is being rebuilt by ticket {ticket} ({host}, process {pid}) since {since:%Y-%m-%d %H:%M:%S %Z}; "
        f"phase {phase}, last heartbeat {age or 0:.0f} s ago.",
        hint=f"wait for it (--wait SECONDS), or end it: rebuilder cancel {ticket}",
        projection=name, ticket=str(ticket), host=host, pid=pid, since=since.isoformat())


def advisory_key(schema: str, table: str) -> int:
    """The key of a live table's advisory lock: a hash of its name, since its OID changes with every swap."""
    return int.from_bytes(hashlib.blake2b(f"{schema}\0{table}".encode(), digest_size=4).digest(), "big", signed=True)


def _lock_tables(run: Run) -> None:
    for name in run.projection.tables:
        with run.ledger.using() as connection:
            row = connection.execute(
                "SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
                " WHERE c.oid = to_regclass(%s)", (name,)).fetchone()
        if row is None:
            raise errors.DefinitionError(
                f"Projection {run.projection.name!r} fills table {name}, which does not exist in database "
                f"{run.server.database!r}.", hint="create it, or correct the name in tables=[...]", table=name)
        if not _lock_table(run, advisory_key(*row)):
            raise errors.RebuildInProgress(f"Table {name} is being rebuilt by a run of another projection.",
                                           hint="see `rebuilder status`; two projections must not fill one table",
                                           table=name)


def _lock_table(run: Run, key: int) -> bool:
    """Try for a table's advisory lock; it is never queued for.

    A transaction gives its locks back one after the other: who has waited for the state row of a run that ends may
    have it a moment before that run's advisory locks are free.
    """
    tried_since = time.monotonic()
    while True:
        held = run.main.execute("SELECT pg_try_advisory_xact_lock(%s, %s)", (ADVISORY_CLASS, key)).fetchone()
        if held == (True,) or time.monotonic() - tried_since > ENDING:
            return held == (True,)
        run.pause(0.01)
