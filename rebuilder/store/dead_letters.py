"""Dead letters as they are kept: what was set aside, when, by which ticket, and why."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from rebuilder.store.ledger import Bookkeeping
from rebuilder.store.sessions import Connection


@dataclass(frozen=True, slots=True)
class DeadLetterRecord:
    """One event that was set aside. ``in_live`` says that live lacks it: the run that set it aside cut over."""

    id: int
    position: int
    tenant: str
    category: str
    stream: str
    stream_version: int | None
    type: str
    cause: str
    policy: str
    error_class: str
    sqlstate: str | None
    message: str
    ticket: UUID
    attempts: int
    in_live: bool
    created_at: datetime
    projection: str
    traceback: str | None = None
    data: Any = None
    resolved_at: datetime | None = None
    resolution: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The fields as strings, numbers and objects."""
        return {**asdict(self), "ticket": str(self.ticket), "created_at": self.created_at.isoformat(),
                "resolved_at": self.resolved_at.isoformat() if self.resolved_at else None}


def open_dead_letters(connection: Connection, books: Bookkeeping, projection: str | None, *,
                      limit: int) -> list[DeadLetterRecord]:
    """The unresolved ones, of one projection or all, in the order of the log."""
    rows = books.run(connection, "dead_letters", projection=projection, limit=limit).fetchall()
    return [DeadLetterRecord(*row) for row in rows]


def find_dead_letter(connection: Connection, books: Bookkeeping, id_: int) -> DeadLetterRecord | None:
    """One, resolved or not."""
    row = books.run(connection, "dead_letter", id=id_).fetchone()
    return DeadLetterRecord(*row) if row else None
