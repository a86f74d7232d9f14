"""Who is in the way of the fence, and what is done about them: nothing, unless the caller asked for it."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from rebuilder import errors
from rebuilder.catalog.blueprint import LockKind
from rebuilder.domain.backoff import Backoff
from rebuilder.domain.blocker import Blocker
from rebuilder.engine.run import Run
from rebuilder.sql import load
from rebuilder.store.sessions import translated

_QUERIES = load("queries")
REFERRED = "referred"
OLD = 5.0
"""Seconds after which a transaction in the way is not expected to end soon."""


@dataclass(slots=True)
class InWay:
    """Since when nothing but the tables that live refers to has been in the way."""

    since: float
    seen: bool = False

    def saw(self, roles: Iterable[str]) -> None:
        """What an attempt or a look met."""
        found = set(roles)
        if found - {REFERRED}:
            self.since, self.seen = time.monotonic(), False
        elif found:
            self.seen = True

    def only_referred_for(self, seconds: float) -> bool:
        """Whether that has lasted so long."""
        return self.seen and time.monotonic() - self.since > seconds


def holders(run: Run) -> list[Blocker]:
    """Who holds a lock that the fence would meet; asked on the second connection, without queueing."""
    exclusive = {lock.oid: lock.role for lock in run.blueprint.locks
                 if lock.kind is not LockKind.TABLE_SHARE and not (run.keys_owed and lock.role == REFERRED)}
    with translated("looking who is in the way of the fence"), run.ledger.using() as connection:
        rows = connection.execute(
            _QUERIES["holders"], {"oids": list(exclusive), "main": run.main.info.backend_pid}).fetchall()
    seen: dict[Any, Blocker] = {}
    roles = set()
    for oid, pid, user, application, state, age, query, kind, gid, waiting, _ in rows:
        if pid in run.own_pids:
            continue
        roles.add(exclusive[oid])
        name = application or (kind if kind != "client backend" else None)
        hidden = query == "<insufficient privilege>"
        seen[pid or gid] = Blocker(pid=pid, user=user, application=name, state=state, age_seconds=age,
                                   query=None if hidden else query, gid=gid, waiting_on_us=bool(waiting), hidden=hidden)
    run.roles_in_way = frozenset(roles)
    return list(seen.values())


def fail_on_circle(looked: list[Blocker]) -> None:
    circle = [blocker for blocker in looked if blocker.waiting_on_us]
    if circle:
        names = "; ".join(blocker.describe() for blocker in circle)
        raise errors.FenceNotAcquired(
            f"The fence can't be had: {names} holds a lock on it and itself waits for this run. Live is as it was.",
            hint="let it finish (CREATE INDEX CONCURRENTLY waits for every open transaction), then repeat",
            blockers=[blocker.to_json() for blocker in circle])


def act_on_blockers(run: Run, looked: list[Blocker], backoff: Backoff) -> None:
    """Nobody is harmed unless the caller asked for it, and then only after a while."""
    if run.options.blockers == "report" or time.monotonic() - backoff.started < run.options.blockers_after:
        return
    function = "pg_cancel_backend" if run.options.blockers == "cancel" else "pg_terminate_backend"
    for blocker in looked:
        if blocker.pid is None:
            continue
        with translated(f"ending blocker {blocker.pid}"), run.ledger.using() as connection:
            connection.execute(
                sql.SQL("SELECT {}(pid) FROM pg_stat_activity WHERE pid = %s AND backend_type = 'client backend'")
                .format(sql.SQL(function)), (blocker.pid,))
        run.warn(f"As asked, {run.options.blockers} was sent to {blocker.describe()}.")


def worth_queueing(looked: list[Blocker], backoff: Backoff) -> bool:
    """Whether an attempt should queue: everybody who comes later waits behind it, so not for somebody who will stay.

    Whose transaction is old will hardly end within half a second; now and then it is tried all the same.
    """
    if any(blocker.gid for blocker in looked):
        return False
    oldest = max((blocker.age_seconds or 0.0 for blocker in looked), default=0.0)
    return oldest < OLD or backoff.failures % 3 == 2


def evict_autovacuum(run: Run) -> bool:
    """Make an autovacuum leave live by a request that nobody queues behind; False if it will not leave.

    An autovacuum is cancelled when somebody has waited for it for deadlock_timeout; never one that prevents wraparound.
    """
    live = [table.oid for table in run.blueprint.tables]
    with run.ledger.using() as connection:
        rows = connection.execute(_QUERIES["autovacuums"], {"oids": live}).fetchall()
    for pid, label, wraparound in rows:
        if wraparound:
            run.warn(f"Autovacuum (pid {pid}) works on {label} to prevent wraparound; it can't be asked to leave.")
            return False
    if rows:
        wait = int(run.server.deadlock_timeout.total_seconds() * 1000) + 500
        run.main.execute("SAVEPOINT rebuilder_evict")
        try:
            run.main.execute("SELECT set_config('lock_timeout', %s, true)", (f"{wait}ms",))
            for table in run.blueprint.tables:
                run.main.execute(sql.SQL("LOCK TABLE {} IN SHARE UPDATE EXCLUSIVE MODE").format(table.identifier))
        except psycopg.errors.LockNotAvailable:
            run.warn("An autovacuum on live did not leave within deadlock_timeout.")
        run.main.execute("ROLLBACK TO SAVEPOINT rebuilder_evict")
        run.main.execute("RELEASE SAVEPOINT rebuilder_evict")
    return True
