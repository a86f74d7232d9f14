"""Connections of our own, and the one seam where the driver's errors become ours."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import count
from typing import Any

import psycopg
from psycopg import conninfo as libpq
from psycopg import errors as pg

from rebuilder import errors
from rebuilder.sql import load

Connection = psycopg.Connection[tuple[Any, ...]]

_QUERIES = load("queries")

# The operating system's keepalive begins after two hours; a cut connection is to be noticed within a minute.
_DEFAULTS = {"connect_timeout": "10", "keepalives_idle": "30", "keepalives_interval": "10",
             "keepalives_count": "3"}

# What a role's or a database's own settings must not change on a connection in autocommit, where nothing is LOCAL: a
# timeout would end a read or an idle connection, a deferrable snapshot waits for every open serializable transaction,
# psycopg reads times and intervals in these styles only.
_PINNED = {
    "statement_timeout": "0", "lock_timeout": "0", "transaction_timeout": "0", "idle_session_timeout": "0",
    "idle_in_transaction_session_timeout": "0", "default_transaction_isolation": "read committed",
    "default_transaction_read_only": "off", "default_transaction_deferrable": "off", "IntervalStyle": "postgres",
    "DateStyle": "ISO, MDY", "extra_float_digits": "1",
}

_NUMBERS = count()

TRANSIENT_CLASSES = ("08", "40", "53", "57", "58")
RETRY_IN_FENCE = ("55P03", "57014", "40P01", "XX000")


def connect(conninfo: str, *, role: str, ticket: str = "", autocommit: bool = False) -> Connection:
    """Open a connection that says what it is for (``application_name``) and whose text is UTF-8.

    Raises :class:`~rebuilder.errors.ConnectionLost` or :class:`~rebuilder.errors.MissingPrivilege`.
    """
    name = ":".join(part for part in ("rebuilder", ticket, role) if part)
    with translated("connecting"):
        parts = {**_DEFAULTS, **libpq.conninfo_to_dict(conninfo), "application_name": name[:63],
                 "client_encoding": "utf8"}
        connection = _pinned(psycopg.connect(libpq.make_conninfo("", **parts), autocommit=True), parts)
    # A role's defaults must not reach us: each transaction says what it is.
    connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
    connection.autocommit = autocommit
    return connection


def _pinned(connection: Connection, parts: Mapping[str, Any]) -> Connection:
    """The connection, or another whose session begins with the settings that a role's defaults would have changed."""
    connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
    with connection.transaction():
        found = connection.execute(_QUERIES["changed_settings"], {"names": list(_PINNED),
                                                                  "values": list(_PINNED.values())}).fetchall()
    if not found:
        return connection
    pins = " ".join(f"-c {name}={_PINNED[name].replace(' ', chr(92) + ' ')}" for name, in found)
    given = f"{parts.get('options') or ''} {pins}".strip()
    # No SET: behind a pooler it would stay with whoever gets the session next. A pooler may refuse startup options;
    # what is LOCAL to a transaction must do then.
    try:
        pinned = psycopg.connect(libpq.make_conninfo("", **{**parts, "options": given}), autocommit=True)
    except psycopg.OperationalError:
        connection.read_only = False  # not always: a standby refuses it, and can be asked for a status
        return connection
    connection.close()
    return pinned


@dataclass(frozen=True, slots=True)
class Server:
    """What a connection says of the server it is on."""

    standby: bool
    system_identifier: int
    started: datetime
    backend_pid: int
    version: int
    database: str
    database_oid: int
    deadlock_timeout: timedelta
    user: str

    @classmethod
    def of(cls, connection: Connection) -> Server:
        """Ask."""
        row = connection.execute(_QUERIES["server_identity"]).fetchone()
        assert row is not None
        return cls(*row)

    @property
    def identity(self) -> tuple[int, datetime, int]:
        """Equal on two connections only if both are on one running server and in one database."""
        return self.system_identifier, self.started, self.database_oid

    def check(self) -> None:
        """Raise :class:`~rebuilder.errors.UnsupportedServer` unless a rebuild can work here."""
        if self.standby:
            raise errors.UnsupportedServer("The server is a read-only standby.",
                                           hint="connect to the primary (target_session_attrs=read-write)")
        if self.version < 140000:
            raise errors.UnsupportedServer(
                f"The server is PostgreSQL {self.version // 10000}; rebuilder works on 14 to 18.",
                hint="upgrade the server", version=self.version)


def prove_same_server(connection: Connection, main: Server) -> None:
    """Raise :class:`~rebuilder.errors.UnsupportedServer` unless ``connection`` is on main's server.

    ``load_balance_hosts`` or a proxy may send it to a lagging standby, whose log pages would look complete.
    """
    reached = Server.of(connection)
    if reached.identity != main.identity or reached.standby:
        connection.close()
        raise errors.UnsupportedServer(
            "A second connection reached another server than the first, so its reads could miss events.",
            hint="give one host in the DSN, without load_balance_hosts, or the primary's own address")


def begin(connection: Connection, server: Server, *, lock_timeout_ms: int = 0) -> None:
    """Begin the main transaction and override what a role's settings would do to it."""
    connection.execute(
        "SELECT set_config('statement_timeout', '0', true),"
        " set_config('idle_in_transaction_session_timeout', '0', true), set_config('lock_timeout', %s, true),"
        " set_config('row_security', 'off', true),"
        " set_config('DateStyle', 'ISO, MDY', true), set_config('IntervalStyle', 'postgres', true),"
        " set_config('extra_float_digits', '1', true),"
        " set_config('default_tablespace', '', true), set_config('default_table_access_method', 'heap', true),"
        # Compiling a catalog query under the fence would cost more than running it.
        " set_config('jit', 'off', true)",
        (f"{lock_timeout_ms}ms",))
    if server.version >= 170000:
        connection.execute("SET LOCAL transaction_timeout = 0")


@contextmanager
def short(connection: Connection, lock_timeout_ms: int) -> Iterator[Connection]:
    """A short transaction on the second connection, which must never wait long for our own main transaction."""
    with translated("writing the bookkeeping"), connection.transaction():
        connection.execute("SELECT set_config('lock_timeout', %s, true), set_config('statement_timeout', '0', true)",
                           (f"{lock_timeout_ms}ms",))
        yield connection


def roll_back_to(connection: Connection, savepoint: str) -> None:
    """Back to a savepoint, after which psycopg prepares its statements anew.

    It takes for prepared what it queued in a pipeline that failed before; the server would not know it (26000), and an
    innocent event be blamed. psycopg forgets at a rollback, but looks only at statements whose text is new to it.
    """
    connection.execute(f"ROLLBACK TO SAVEPOINT {savepoint} -- {next(_NUMBERS)}".encode(), prepare=False)


def sqlstate(error: BaseException) -> str | None:
    """The SQLSTATE of a driver error, or of the driver error that caused ours."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, psycopg.Error):
            return seen.sqlstate
        seen = seen.__cause__
    return None


def is_transient(error: BaseException) -> bool:
    """Whether trying again may help: deadlock, serialization, lock and statement timeout, connection, memory, disk."""
    if isinstance(error, MemoryError):
        return True
    if not isinstance(error, psycopg.Error):
        return False
    state = error.sqlstate
    if state is None:
        return isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError))
    return state.startswith(TRANSIENT_CLASSES) or state == "55P03"


def is_lost(error: BaseException, connection: Connection | None = None) -> bool:
    """Whether a connection is gone."""
    if connection is not None and connection.closed:
        return True
    return isinstance(error, psycopg.OperationalError) and (
        error.sqlstate is None or error.sqlstate.startswith("08") or error.sqlstate in {"57P01", "57P02", "57P03"})


@contextmanager
def translated(doing: str) -> Iterator[None]:
    """Turn driver errors into ours, keyed on SQLSTATE, never on message text."""
    try:
        yield
    except psycopg.Error as error:
        raise translate(error, doing) from error


def translate(error: BaseException, doing: str) -> errors.RebuilderError:
    """The error of ours that a driver error becomes; ``doing`` says what was being done."""
    if not isinstance(error, psycopg.Error):
        return errors.RebuildError(f"While {doing}: {type(error).__name__}: {error}.")
    kind, what, hint = _meaning(error, doing)
    fields: dict[str, Any] = {"sqlstate": error.sqlstate} if error.sqlstate else {}
    return kind(f"While {doing}: {what}{first_line(error)}.", hint=hint, **fields)


def _meaning(error: psycopg.Error, doing: str) -> tuple[type[errors.RebuilderError], str, str | None]:
    """Our class for a driver error, words before the server's own, and what to do next."""
    found: tuple[type[errors.RebuilderError], str, str | None]
    match error:
        case pg.InsufficientPrivilege():
            found = errors.MissingPrivilege, "", "run `rebuilder doctor`, which prints the GRANTs that are missing"
        case pg.ReadOnlySqlTransaction():
            found = errors.UnsupportedServer, "the server takes no writes: ", "connect to the primary"
        case pg.UndefinedTable() if "bookkeeping" in doing:
            found = errors.NotInstalled, "the bookkeeping is not installed: ", "run `rebuilder install`"
        case pg.InvalidPassword() | pg.InvalidAuthorizationSpecification():
            found = errors.MissingPrivilege, "", "check user, password and pg_hba.conf"
        case pg.InvalidCatalogName():
            found = errors.ConnectionLost, "", "check the database's name in the DSN"
        case pg.LockNotAvailable() | pg.DeadlockDetected() | pg.SerializationFailure():
            found = errors.NotNow, "", "repeat; nothing was changed"
        case psycopg.OperationalError() if doing == "connecting" and error.sqlstate is None:
            # libpq has no SQLSTATE for what happens before a session: a closed port looks like a wrong password.
            hint = "check host, port, database, user and password, or repeat when the server answers"
            found = errors.ConnectionLost, "", hint
        case psycopg.OperationalError() if is_lost(error):
            found = (errors.ConnectionLost, "the connection to the server was lost: ",
                     "live is as it was; repeat when the server answers")
        case _:
            found = errors.RebuildError, "", None
    return found


def first_line(error: psycopg.Error) -> str:
    """The server's primary message: DETAIL may hold data, so it stays out, and so does a value that is quoted."""
    primary = error.diag.message_primary
    text = primary or (str(error).strip().splitlines() or [type(error).__name__])[0]
    if isinstance(error, psycopg.DataError):
        text = re.sub(r'".*"', '"…"', text, flags=re.DOTALL)
    return text.rstrip(".")
