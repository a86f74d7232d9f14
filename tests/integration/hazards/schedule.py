"""Schedules: who does what at which moment of a run, and what can be seen of it from outside."""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import psycopg
from psycopg.rows import dict_row, tuple_row
from psycopg.types.json import Jsonb

from rebuilder import Event, Rebuilder, SqlHandlers, Target
from rebuilder.engine.run import Run
from tests.bank import append, make_log
from tests.fix_threads import wait_until

Connection = psycopg.Connection[Any]
Action = Callable[[Run], Any]
NAME = "account_balance"
PATIENT = {"fence_hold": 30.0}
"""For schedules that do things under the fence: its cap must not end them on a busy machine."""


class Moments:
    """``at("drain", action)`` calls the action, with the Run, when the point is reached for the nth time.

    Points are the phases' names and "before commit". ``nth=0``: each time. ``fenced`` is whether main holds the fence.
    """

    def __init__(self, rebuilder: Rebuilder) -> None:
        self._points = rebuilder._seam.points
        self._actions: dict[str, list[tuple[int, Action]]] = defaultdict(list)
        self._counts: dict[str, int] = defaultdict(int)

    def at(self, point: str, action: Action, *, nth: int = 1) -> None:
        self._actions[point].append((nth, action))
        self._points[point] = lambda run: self._reach(point, run)

    def count(self, point: str) -> int:
        """How often a point was reached; it must have an action."""
        return self._counts[point]

    def _reach(self, point: str, run: Run) -> None:
        self._counts[point] += 1
        for nth, action in self._actions[point]:
            if nth in (0, self._counts[point]):
                action(run)


class Heard:
    """An observer that keeps what it is told, by kind."""

    def __init__(self) -> None:
        self.all: list[Any] = []

    def __call__(self, seen: Any) -> None:
        self.all.append(seen)

    def of(self, kind: str) -> list[Any]:
        return [seen for seen in self.all if seen.kind == kind]


def plain_handlers() -> SqlHandlers:
    """As most applications write them: an INSERT and an UPDATE that may meet no row and says nothing then."""
    handlers = SqlHandlers()

    @handlers.on("AccountOpened")
    def opened(event: Event, target: Target) -> None:
        target.execute("INSERT INTO account_balance VALUES (%s, %s, 0, 1)", (event.stream, event.data["owner"]))

    @handlers.on("Deposited")
    def deposited(event: Event, target: Target) -> None:
        target.execute("UPDATE account_balance SET balance = balance + %s, changes = changes + 1 WHERE id = %s",
                       (event.data["amount"], event.stream))

    return handlers


def insert_event(connection: Connection, stream: str, type_: str = "Deposited", **data: Any) -> Event:
    """Append in the connection's transaction, which stays open; the event as ``project`` wants it."""
    row = connection.cursor(row_factory=dict_row).execute(
        "INSERT INTO events (stream, type, data) VALUES (%s, %s, %s) RETURNING *",
        (stream, type_, Jsonb(data))).fetchone()
    assert row is not None
    return make_log().event(row)


def open_accounts(connection: Connection, rebuilder: Rebuilder | None, accounts: int = 3, deposits: int = 2) -> None:
    """Accounts a1, a2 … with a few deposits, in the log and in live."""
    for n in range(1, accounts + 1):
        append(connection, f"a{n}", "AccountOpened", {"owner": f"owner {n}"}, live=rebuilder)
    for n in range(accounts * deposits):
        append(connection, f"a{n % accounts + 1}", "Deposited", {"amount": 10 + n}, live=rebuilder)


def deposit(connection: Connection, rebuilder: Rebuilder | None, stream: str = "a1", amount: int = 1) -> int:
    """Append and project a deposit, committed (on a connection without an open transaction); its position."""
    return append(connection, stream, "Deposited", {"amount": amount}, live=rebuilder)


def deadlocks(connection: Connection) -> int:
    """Deadlocks that this database has seen: somebody was killed in each."""
    row = connection.execute("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()").fetchone()
    assert row is not None
    return int(row[0])


def main_pid(run: Run) -> int:
    return run.main.info.backend_pid


def modes(watcher: Connection, pid: int, *, granted: bool = True) -> set[tuple[str, str]]:
    """(relation, mode) of a backend's locks on relations that others can see, but for the catalog and bookkeeping."""
    rows = watcher.cursor(row_factory=tuple_row).execute(
        "SELECT c.oid::regclass::text, l.mode FROM pg_locks l JOIN pg_class c ON c.oid = l.relation"
        " JOIN pg_namespace n ON n.oid = c.relnamespace WHERE l.pid = %s AND l.granted = %s"
        " AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        " AND n.nspname NOT IN ('pg_catalog', 'rebuilder')", (pid, granted)).fetchall()
    return set(rows)


def wait_for_wait(watcher: Connection, pid: int) -> str:
    """Wait until a backend waits for a lock; on what (relation, transactionid, tuple …)."""
    def event() -> str:
        row = watcher.execute("SELECT wait_event FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'",
                              (pid,)).fetchone()
        return row[0] if row else ""

    return wait_until(event, what=f"backend {pid} to wait for a lock")


def pid_of(connection: Connection) -> int:
    return connection.info.backend_pid


def subtransactions(watcher: Connection, pid: int) -> tuple[int, bool]:
    """(cached subtransactions, whether the cache has overflowed) of a backend; from PostgreSQL 16 on."""
    row = watcher.execute(
        "SELECT s.subxact_count, s.subxact_overflowed FROM pg_stat_get_backend_idset() AS b,"
        " pg_stat_get_backend_subxact(b) AS s WHERE pg_stat_get_backend_pid(b) = %s", (pid,)).fetchone()
    assert row is not None
    return int(row[0]), bool(row[1])
