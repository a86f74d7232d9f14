"""An event as handlers see it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple


class StreamId(NamedTuple):
    """A stream is one aggregate's events: identified by tenant and category as well as by its own key."""

    tenant: str
    category: str
    stream: str


class _Lazy:
    """Where an event that was read keeps its source, ``(raw, load)``: an empty field is what ``load(raw, name)`` gives.

    It is not a field, so it takes no part in what an event is.
    """

    __slots__ = ("_source",)


@dataclass(frozen=True, slots=True)
class Event(_Lazy):
    """One event of the log, decoded and lifted to its current schema version.

    ``position`` is its place in the whole log, ``stream`` always text; ``category``, ``tenant`` and the versions are
    what the log's columns give, or None where the log has no such column. ``data`` and ``metadata`` are what the
    log's decoder makes of the payload. ``recorded_at`` is the time column, if the log has one. ``replaying`` is True
    in a rebuild and False in ``project``, for handlers that must not act on the outside world twice.

    An event that a rebuild reads fills its fields when they are first looked at: data that no handler looks at is
    never decoded.
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

    def __getattr__(self, name: str) -> Any:
        # Called for a slot that is empty: its source gives the value, and raises AttributeError for what is no field.
        raw, load = _get_source(self)
        value = load(raw, name)
        object.__setattr__(self, name, value)
        return value


SET: Mapping[str, Callable[[Event, Any], None]] = {
    "_source": vars(_Lazy)["_source"].__set__,
    **{name: slot.__set__ for name, slot in vars(Event).items() if name in Event.__slots__}}
"""Fills a field of an event that was made empty: for who makes a million of them."""
_get_source = _Lazy._source.__get__  # type: ignore[attr-defined]  # noqa: SLF001
