"""An event as it is read: its payload not yet decoded."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

Key = tuple[int] | tuple[int, str]
"""An event's place in the reading order: (position,), or (position, tenant) where tenants count for themselves."""


class RawEvent(NamedTuple):
    """One row of the log, as it is selected. A named tuple, since a million of them are made."""

    position: int
    stream: str | None
    type: str
    category: str | None
    tenant: str | None
    stream_version: int | None
    schema_version: int | None
    data: bytes | None
    metadata: bytes | None
    recorded_at: datetime | None

    @property
    def key(self) -> Key:
        """The event's place in the reading order."""
        return (self.position,)


class TenantEvent(RawEvent):
    """One row of a log whose tenants count for themselves."""

    __slots__ = ()

    @property
    def key(self) -> Key:
        """The event's place in the reading order."""
        return self.position, self.tenant or ""
