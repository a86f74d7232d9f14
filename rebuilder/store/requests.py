"""Requests: why and by whom a read model is declared stale. Appended, and answered by the rebuild that began after."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from rebuilder.domain.lifecycle import Invalidation, check_request
from rebuilder.domain.ticket import Reason
from rebuilder.store.ledger import Bookkeeping
from rebuilder.store.sessions import Connection


def invalidate(connection: Connection, books: Bookkeeping, projection: str, reason: Reason | str, *,
               note: str | None = None, actor: str | None = None) -> Invalidation:
    """Append a request, for a projection that was never built too. A fresh one for each call.

    It writes no state row, so it waits for no rebuild; a run that has its state lock already does not answer it.
    """
    known = check_request(projection, reason, note)
    books.run(connection, "insert_state", projection=projection)
    row = books.run(connection, "insert_request", id=uuid4(), projection=projection, reason=str(known), note=note,
                    actor=actor).fetchone()
    assert row is not None
    return request_of(row)


def pending_requests(connection: Connection, books: Bookkeeping, projection: str | None = None) -> list[Invalidation]:
    """What no rebuild has answered yet, oldest first."""
    return [request_of(row) for row in books.run(connection, "pending_requests", projection=projection).fetchall()]


def request_of(row: tuple[Any, ...]) -> Invalidation:
    """A row as a value."""
    return Invalidation(row[0], row[1], row[2], Reason(row[3]), *row[4:])
