"""The status as JSON text with a version: written canonically, read strictly. What is not exactly it is refused."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any
from uuid import UUID

from rebuilder.domain.lifecycle import Checkpoint, SourcePosition, StoredStatus
from rebuilder.domain.ticket import Health
from rebuilder.errors import InvalidValue, RecordCorrupt

VERSION = 1
_STATUS = {"format", "projection", "generation", "version", "health", "checkpoint", "active_rebuild",
           "pending_requests", "source_generation"}
_CHECKPOINT = {"source", "events", "rows", "version", "updated_at"}


def encode_status(status: StoredStatus) -> bytes:
    """The status as JSON: sorted names, no spaces, so that equal statuses are equal bytes."""
    at = status.checkpoint
    value: dict[str, Any] = {
        "format": VERSION, "projection": status.projection, "generation": status.generation, "version": status.version,
        "health": str(status.health), "active_rebuild": _text(status.active_rebuild),
        "pending_requests": status.pending_requests, "source_generation": _text(status.source_generation),
        "checkpoint": None if at is None else {
            "source": None if at.source is None else [str(at.source.generation), at.source.position],
            "events": at.events, "rows": at.rows, "version": at.version,
            "updated_at": at.updated_at.isoformat() if at.updated_at else None},
    }
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def decode_status(text: bytes) -> StoredStatus:
    """The status that :func:`encode_status` wrote; :class:`~rebuilder.errors.RecordCorrupt` for anything else.

    Another version, a field too many, too few or twice, text before or after it: all are refused.
    """
    try:
        value = _exactly(json.loads(text.decode(), object_pairs_hook=_once, parse_constant=_refuse), _STATUS)
        if value["format"] != VERSION or isinstance(value["format"], bool):
            raise ValueError(f"format {value['format']!r}")  # noqa: TRY301  # told by the one place below
        at, checkpoint = value["checkpoint"], None
        if at is not None:
            at = _exactly(at, _CHECKPOINT)
            checkpoint = Checkpoint(
                value["projection"], value["generation"], _position(at["source"]), at["events"], at["rows"],
                version=at["version"],
                updated_at=datetime.fromisoformat(at["updated_at"]) if at["updated_at"] is not None else None)
        status = StoredStatus(
            projection=value["projection"], generation=value["generation"], version=value["version"],
            health=Health(value["health"]), checkpoint=checkpoint, active_rebuild=_uuid(value["active_rebuild"]),
            pending_requests=value["pending_requests"], source_generation=_uuid(value["source_generation"]))
        if encode_status(status) != text:
            raise ValueError("not as it is written")  # noqa: TRY301
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, InvalidValue) as error:
        raise RecordCorrupt("A status in JSON is not one of this version.", hint="read the status again") from error
    return status


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name twice")
    return found


def _refuse(constant: str) -> Any:
    raise ValueError(constant)


def _exactly(value: Any, names: set[str]) -> dict[str, Any]:
    if not isinstance(value, dict) or set(value) != names:
        raise ValueError("not these names")
    return value


def _position(value: Any) -> SourcePosition | None:
    if value is None:
        return None
    generation, position = value
    return SourcePosition(UUID(generation), position)


def _uuid(value: Any) -> UUID | None:
    return None if value is None else UUID(value)


def _text(value: UUID | None) -> str | None:
    return None if value is None else str(value)
