"""What the steps need of a kind of handlers, whichever it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import psycopg

from rebuilder.store.sessions import roll_back_to

if TYPE_CHECKING:
    from rebuilder.catalog.blueprint import LiveTable
    from rebuilder.eventlog import RawEvent
    from rebuilder.store.sessions import Connection

_SAVEPOINT = "SAVEPOINT rebuilder_batch"
_RELEASE = "RELEASE SAVEPOINT rebuilder_batch"


@dataclass(frozen=True, slots=True)
class Bulk:
    """The rows of a table that wait to be written, in COPY's text format, and the columns they have."""

    columns: tuple[str, ...]
    chunks: Iterator[bytes]


class Applier(Protocol):
    """Applies events to the shadow through the handlers of a projection."""

    page: int
    """Events that it likes to be given at once."""
    savepoints_write: bool
    """Whether :meth:`save` costs the server a subtransaction that writes."""

    def apply(self, events: Sequence[RawEvent]) -> None:
        """Apply events in order. Raises ``EventFailed``; what it left half done is for :meth:`back`."""

    def save(self) -> None:
        """A place to come back to."""

    def back(self) -> None:
        """Back to where it was saved, which stays saved."""

    def release(self) -> None:
        """The place is not needed any more."""

    def violation(self) -> psycopg.Error | None:
        """What deferred constraints would say to the rows as they are."""

    def settle(self, *, but_bulk: bool = False) -> None:
        """Write what is only in memory into the shadow; ``but_bulk`` leaves what :meth:`bulk` would give."""

    def forget(self) -> None:
        """The shadow was rolled back to where it was settled: drop what is in memory."""

    def bulk(self, table: LiveTable) -> Bulk | None:
        """The rows of a table of which none is in the shadow yet, to be copied into it, once; else None."""


class InShadow:
    """The part of handlers whose rows are nowhere but in the shadow: ``apply`` is left to the kind."""

    savepoints_write = True

    def __init__(self, connection: Connection, page: int) -> None:
        self.connection = connection
        self.page = page

    def save(self) -> None:
        """A savepoint."""
        self.connection.execute(_SAVEPOINT)

    def back(self) -> None:
        """Back to the savepoint."""
        roll_back_to(self.connection, "rebuilder_batch")

    def release(self) -> None:
        """Release the savepoint."""
        self.connection.execute(_RELEASE)

    def violation(self) -> psycopg.Error | None:
        """The error that deferred constraints would raise now."""
        return deferred_violation(self.connection)

    def settle(self, *, but_bulk: bool = False) -> None:
        """Nothing is only in memory."""

    def forget(self) -> None:
        """Nothing is in memory."""

    def bulk(self, _table: LiveTable) -> Bulk | None:
        """All rows are in the shadow."""
        return None


def deferred_violation(connection: Connection) -> psycopg.Error | None:
    """The error that deferred constraints would raise now; the savepoint inside leaves them deferred."""
    connection.execute("SAVEPOINT rebuilder_constraints")
    found: psycopg.Error | None = None
    try:
        connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
    except psycopg.IntegrityError as error:
        found = error
    connection.execute("ROLLBACK TO SAVEPOINT rebuilder_constraints")
    connection.execute("RELEASE SAVEPOINT rebuilder_constraints")
    return found
