"""A connection of the lifecycle store, and what the driver's errors mean there."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol, Self
from uuid import UUID

import psycopg
from psycopg import errors as pg

from rebuilder import errors
from rebuilder.domain.lifecycle import LogFingerprint, Tier
from rebuilder.settings import Settings
from rebuilder.store.ledger import Bookkeeping
from rebuilder.store.sessions import Connection, connect, first_line, translate


class SourceLog(Protocol):
    """What the store asks of an event log, to prove that a rebuild saw it."""

    @property
    def label(self) -> str:
        """The log's name in the bookkeeping."""

    def head(self, connection: Connection) -> int:
        """The highest visible position, 0 if it is empty."""

    def fence(self, connection: Connection) -> None:
        """Keep appenders out until the transaction ends."""

    def fingerprint(self, connection: Connection, generation: UUID, tier: Tier) -> LogFingerprint:
        """What is visible now."""


@contextmanager
def store_errors(doing: str) -> Iterator[None]:
    """Turn driver errors into the store's, keyed on SQLSTATE. Neither SQL nor a path is in their text."""
    try:
        yield
    except psycopg.Error as error:
        raise _meaning(error, doing) from error


def _meaning(error: psycopg.Error, doing: str) -> errors.RebuilderError:
    match error:
        case pg.LockNotAvailable() | pg.QueryCanceled() | pg.DeadlockDetected() | pg.SerializationFailure():
            return errors.RecordBusy(f"While {doing}: somebody else holds the record.", hint="repeat",
                                     sqlstate=error.sqlstate)
        case pg.DiskFull() | pg.OutOfMemory() | pg.InsufficientResources() | pg.ConfigurationLimitExceeded():
            return errors.SpaceInsufficient(f"While {doing}: the server has no room left.",
                                            hint="make room on the server, then repeat", sqlstate=error.sqlstate)
        case pg.UniqueViolation() | pg.ForeignKeyViolation() | pg.IntegrityConstraintViolation():
            return errors.RecordConflict(f"While {doing}: the record does not fit what is stored.",
                                         hint="read it again", sqlstate=error.sqlstate)
        case psycopg.IntegrityError():
            return errors.RecordCorrupt(f"While {doing}: {first_line(error)}.", sqlstate=error.sqlstate)
    return translate(error, doing)


class Access:
    """One connection of the store's own: each operation is a transaction, or a part of an open :meth:`transaction`.

    Thread-safe: operations of several threads take turns.
    """

    def __init__(self, conninfo: str, settings: Settings | None = None, *, log: SourceLog | None = None,
                 read_only: bool = False) -> None:
        self.settings = settings or Settings()
        self.log = log
        self.read_only = read_only
        self._conninfo = conninfo
        self._books = Bookkeeping(self.settings)
        self._lock = threading.RLock()
        self._connection: Connection | None = None
        self._closed = False
        self._depth = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; the store is not used again."""
        with self._lock:
            self._closed = True
            if self._connection is not None:
                self._connection.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Operations inside are one transaction: all of them, or none."""
        with self._writing("writing the store"):
            yield

    @contextmanager
    def _writing(self, doing: str) -> Iterator[Connection]:
        """A transaction, or a savepoint of the one that is open; refused when the store is read-only."""
        if self.read_only:
            raise errors.ReadOnlyStore(f"While {doing}: the store was opened read-only.",
                                       hint="open it without read_only=True")
        with self._using(doing) as connection:
            if self._depth == 1:
                connection.execute(
                    "SELECT set_config('lock_timeout', %s, true), set_config('statement_timeout', '0', true)",
                    (f"{self.settings.lock_timeout_ms}ms",))
            yield connection

    @contextmanager
    def _using(self, doing: str) -> Iterator[Connection]:
        with self._lock:
            if self._closed:
                raise errors.StoreClosed("The store is closed.", hint="open another")
            connection = self._opened()
            self._depth += 1
            try:
                with store_errors(doing), connection.transaction():
                    yield connection
            finally:
                self._depth -= 1

    def _opened(self) -> Connection:
        if self._connection is None or (self._connection.closed and not self._depth):
            self._connection = connect(self._conninfo, role="store", autocommit=True)
            self._connection.read_only = self.read_only
            self._books.check_installed(self._connection)
        return self._connection

    def _run(self, connection: Connection, name: str, **parameters: Any) -> psycopg.Cursor[tuple[Any, ...]]:
        return connection.execute(self._books.query(name), {"scope": self.settings.scope, **parameters})

    def _active_source(self, connection: Connection) -> UUID | None:
        """The log's incarnation now; None without a log, which cannot be asked."""
        if self.log is None:
            return None
        row = self._run(connection, "active_source", log=self.log.label).fetchone()
        if row is None:
            self._run(connection, "insert_source", log=self.log.label, reason=None)
            row = self._run(connection, "active_source", log=self.log.label).fetchone()
        return None if row is None else row[0]
