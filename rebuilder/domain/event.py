"""An event as handlers see it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple


class StreamId(NamedTuple):
    """A stream is one aggregate's events: identified by tenant and category as well as by its own key."""

    tenant: str
    category: str
    stream: str


@dataclass(frozen=True, slots=True)
class Event:
    """One event of the log, decoded and lifted to its current schema version.

    ``position`` is its place in the whole log, ``stream`` always text; ``category``, ``tenant`` and the versions are
    what the log's columns give, or None where the log has no such column. ``data`` and ``metadata`` are what the
    log's decoder makes of the payload. ``recorded_at`` is the time column, if the log has one. ``replaying`` is True
    in a rebuild and False in ``project``, for handlers that must not act on the outside world twice.
    """

    position: int
    stream: str
    type: str
    data: Any = None
    category: str | None = None
    tenant: str | None = None
    stream_version: int | None = None
    schema_version: int | None = None
    metadata: Any = None
    recorded_at: datetime | None = None
    replaying: bool = False

    @property
    def stream_id(self) -> StreamId:
        """(tenant, category, stream), which together identify the stream."""
        return StreamId(self.tenant or "", self.category or "", self.stream)
