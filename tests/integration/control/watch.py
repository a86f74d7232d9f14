"""What a run must not leave behind, and where it is."""

from typing import Any

import psycopg

from rebuilder import Rebuilder, Ticket
from rebuilder.domain.ticket import Phase
from tests.fix_threads import wait_until

Connection = psycopg.Connection[Any]

POINTS = [str(phase) for phase in Phase] + ["before commit"]
"""The points at which a test may put a function; at the first there is no ticket yet."""


def photo(connection: Connection, table: str = "account_balance") -> tuple[Any, ...]:
    """Live, to the byte: the table itself, its file, each row version and where it lies; and who else made schemas."""
    identity = connection.execute("SELECT oid, relfilenode FROM pg_class WHERE oid = %s::regclass", [table]).fetchone()
    rows = connection.execute(f"SELECT ctid::text, xmin::text, t.* FROM {table} t ORDER BY 1").fetchall()
    schemas = connection.execute("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'rebuilder%' ORDER BY 1")
    return identity, rows, schemas.fetchall()


def nothing_left(connection: Connection) -> None:
    """The run's connections are gone, and with them every lock in this database."""
    wait_until(lambda: ours(connection) == [], what="the run's connections to be gone")
    locks = connection.execute(
        "SELECT pid, locktype, relation::regclass, mode FROM pg_locks WHERE pid IN (SELECT pid FROM pg_stat_activity"
        " WHERE datname = current_database() AND application_name LIKE 'rebuilder:%') OR locktype = 'advisory'"
        " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())").fetchall()
    assert locks == []


def ours(connection: Connection) -> list[Any]:
    """Pids of rebuilder's connections in this database."""
    return [row[0] for row in connection.execute(
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'rebuilder:%'")]


def last_ticket(rebuilder: Rebuilder) -> Ticket:
    """The newest ticket."""
    return rebuilder.tickets()[0]
