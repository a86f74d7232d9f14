"""An append-only table (or a view of one) as an event log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

import psycopg

from rebuilder.domain.event import Event
from rebuilder.errors import DefinitionError, LogDefinitionError
from rebuilder.eventlog import opening
from rebuilder.eventlog.columns import Columns, is_plain
from rebuilder.eventlog.decoding import Decode, Decoders, decode_event, decoder_for, payload_bytes
from rebuilder.eventlog.open_log import OpenLog
from rebuilder.eventlog.raw_event import RawEvent


@dataclass(frozen=True)
class TableLog:
    """Where the events are and how to read them. ``rebuilder.eventlog.presets`` has those of known event stores.

    Conditions and expressions are SQL over the log's row, which they may call ``event``.
    """

    relation: str
    """The table or view, written as in SQL: ``events``, ``sales.events``, ``"Events"``."""
    columns: Columns = field(kw_only=True)
    only: str | None = field(default=None, kw_only=True)
    """Condition that says which rows are events at all: ``kind = 'E'``."""
    archived: str | None = field(default=None, kw_only=True)
    """Condition that says which rows belong to archived streams, which are left out of reading and counting alike:
    ``is_archived``, or ``EXISTS (SELECT FROM archive a WHERE a.stream = event.stream_id)``."""
    replay_archived: bool = field(default=False, kw_only=True)
    """Read archived streams as well."""
    decode: Decode = field(default="json", kw_only=True)
    """How data is read: ``"json"`` (integers exact at any size), ``"json-decimal"`` (fractions as Decimal too), or a
    function that takes the payload's bytes. What a JSON column holds as a string stays a string."""
    decode_metadata: Decode | None = field(default=None, kw_only=True)
    """How metadata is read. None: as JSON, with the same numbers as data."""
    completeness: Literal["auto", "count"] = field(default="auto", kw_only=True)
    """``"count"`` accepts a log whose horizon can't be known; it is then compared in full under the fence."""
    sequence: str | None = field(default=None, kw_only=True)
    """The sequence that gives positions, where the catalog does not tie it to the column."""

    def __post_init__(self) -> None:
        if not self.relation.strip():
            raise LogDefinitionError("TableLog() takes the name of a table or view.",
                                     hint='write it as TableLog("events", columns=Columns(…))')
        if not isinstance(self.columns, Columns):
            raise LogDefinitionError("TableLog(columns=…) takes a Columns(…).",
                                     hint="Columns(position=…, stream=…, type=…, data=…) names what holds what")
        for name in ("only", "archived"):
            value = getattr(self, name)
            if value is not None and not value.strip():
                raise LogDefinitionError(f"TableLog({name}=…) is empty; it must be an SQL condition or None.")
        if self.completeness not in ("auto", "count"):
            raise LogDefinitionError(f"TableLog(completeness={self.completeness!r}) is neither 'auto' nor 'count'.")
        self.decoders()

    def decoders(self) -> Decoders:
        """The functions that read data and metadata."""
        metadata = self.decode_metadata or ("json" if callable(self.decode) else self.decode)
        return Decoders(decoder_for(self.decode), decoder_for(metadata))

    def open(self, connection: psycopg.Connection[Any]) -> OpenLog:
        """Resolve the names and check everything that can be checked before the first event is read."""
        return opening.open_log(self, connection)

    def event(self, row: Mapping[str, Any]) -> Event:
        """An event for ``project`` from a row by the log's column names, with the values that a rebuild would give.

        Where ``Columns`` has an expression, the row holds its value under the role's name (``category``). Payloads
        may be text or bytes as stored, or values that a driver has decoded (a driver that reads fractions as floats
        has rounded them before ``"json-decimal"`` can keep them: give it the text).
        """
        names = {role: column if is_plain(column) else role for role, column in self.columns.items()}
        values: dict[str, Any] = {role: row.get(name) for role, name in names.items()}
        missing = [name for role, name in names.items()
                   if name not in row or (values[role] is None and role in ("position", "stream", "type"))]
        if missing:
            raise DefinitionError(
                f"The event's row lacks {', '.join(missing)}, which the log {self.relation} is read with.",
                hint="give every column that Columns(…) names, as the append returned it (INSERT … RETURNING *)",
                columns=missing)
        position = int(values["position"])
        return decode_event(self.decoders(), RawEvent(
            position=position, stream=str(values["stream"]), type=str(values["type"]),
            category=_text(values.get("category")), tenant=_text(values.get("tenant")),
            stream_version=_integer(values.get("stream_version")),
            schema_version=_integer(values.get("schema_version")),
            data=payload_bytes(values["data"]), metadata=payload_bytes(values.get("metadata")),
            recorded_at=_time(values.get("recorded_at"))), replaying=False)


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _integer(value: Any) -> int | None:
    return None if value is None else int(value)


def _time(value: Any) -> datetime | None:
    return datetime.fromisoformat(value) if isinstance(value, str) else value
