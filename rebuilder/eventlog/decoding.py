"""From stored bytes to an event's data, with numbers that keep their value."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any, Literal, NamedTuple

import msgspec
from psycopg.types.json import Json, Jsonb

from rebuilder.domain.event import SET, Event
from rebuilder.errors import DefinitionError, HandlerFailed, LogDefinitionError
from rebuilder.eventlog.raw_event import RawEvent

Decode = Literal["json", "json-decimal"] | Callable[[bytes], Any]


class DecodeError(HandlerFailed):
    """An event could not be decoded."""

    code = "decode"


# msgspec reads integers of any size exactly, where other fast decoders turn those beyond 64 bits into floats.
_JSON = msgspec.json.Decoder()
_DECIMAL = msgspec.json.Decoder(float_hook=Decimal)
_ENCODER = msgspec.json.Encoder(decimal_format="number")


def decoder_for(decode: Decode) -> Callable[[bytes], Any]:
    """The function that turns a payload's bytes into data."""
    if decode == "json":
        return _JSON.decode
    if decode == "json-decimal":
        return _DECIMAL.decode
    if callable(decode):
        return decode
    raise LogDefinitionError(f"TableLog(decode={decode!r}) is not a decoder.",
                             hint='use "json", "json-decimal", or a function that takes bytes')


def payload_bytes(value: Any) -> bytes | None:
    """A payload as an application holds it, as the bytes that the log would give back.

    Text and bytes are the payload as it is stored. Anything else (``Json`` and ``Jsonb`` are taken off) goes through
    JSON once, so that a handler in ``project`` gets the same values as in a rebuild: lists for tuples, text for dates.
    """
    match value:
        case None:
            return None
        case bytes():
            return value
        case bytearray() | memoryview():
            return bytes(value)
        case str():
            return value.encode()
        case Json() | Jsonb():
            return _encoded(value.obj)
        case _:
            return _encoded(value)


def _encoded(value: Any) -> bytes:
    try:
        return _ENCODER.encode(value)
    except (TypeError, msgspec.MsgspecError) as error:
        raise DefinitionError(f"An event's payload can't be written as JSON: {error}.",
                              hint="give it as JSON text, as it goes into the log") from error


class Decoders(NamedTuple):
    """The functions that turn bytes into data and metadata."""

    data: Callable[[bytes], Any]
    metadata: Callable[[bytes], Any]


def decode_event(decoders: Decoders, raw: RawEvent, *, replaying: bool) -> Event:
    """The event that a row stands for. Whatever its decoder raises becomes a :class:`DecodeError` that names it."""
    if raw.stream is None:
        raise _failed(raw, "it has no stream")
    part = "data"
    try:
        data = None if raw.data is None else decoders.data(raw.data)
        part = "metadata"
        metadata = None if raw.metadata is None else decoders.metadata(raw.metadata)
    except Exception as error:
        raise _failed(raw, f"its {part} is not what the log's decoder expects: {_explain(error)}") from error
    return Event(position=raw.position, stream=raw.stream, type=raw.type, data=data, category=raw.category,
                 tenant=raw.tenant, stream_version=raw.stream_version, schema_version=raw.schema_version,
                 metadata=metadata, recorded_at=raw.recorded_at, replaying=replaying)


def lazily(decoders: Decoders) -> Callable[[RawEvent], Event]:
    """The function that makes an event of a replay from its row; its data is decoded when somebody looks at it.

    What can't be decoded raises :class:`DecodeError` then, out of the handler. What a handler has looked at is filled
    in at once for the next event of that type, which is cheaper than to be called for it.
    """
    decode, new, set_source, set_data = decoders.data, object.__new__, SET["_source"], SET["data"]
    wanted: dict[str, tuple[tuple[Callable[[Event, Any], None], int], ...]] = {}
    decoded: set[str] = set()

    def load(raw: RawEvent, name: str) -> Any:
        if name == "replaying":
            return True
        if name in {"data", "metadata"}:
            if name == "data":
                decoded.add(raw.type)
            return _decoded(decoders, raw, name)
        if name not in SET:
            raise AttributeError(f"'Event' object has no attribute {name!r}")
        wanted[raw.type] = (*wanted.get(raw.type, ()), (SET[name], _FIELDS.index(name)))
        return getattr(raw, name)

    def event(raw: RawEvent) -> Event:
        if raw[1] is None:
            raise _failed(raw, "it has no stream")
        made = new(Event)
        set_source(made, (raw, load))
        type_ = raw[2]  # faster than by name
        if type_ in wanted:
            for fill, place in wanted[type_]:
                fill(made, raw[place])
        if type_ in decoded:
            try:
                set_data(made, decode(raw[7]))  # type: ignore[arg-type]
            except Exception:
                return made  # it is raised when the handler looks
        return made

    return event


_FIELDS = RawEvent._fields


def _decoded(decoders: Decoders, raw: RawEvent, name: str) -> Any:
    stored = getattr(raw, name)
    if stored is None:
        return None
    try:
        return getattr(decoders, name)(stored)
    except Exception as error:
        raise _failed(raw, f"its {name} is not what the log's decoder expects: {_explain(error)}") from error


def _failed(raw: RawEvent, why: str) -> DecodeError:
    return DecodeError(f"The event at position {raw.position} ({raw.type}, stream {raw.stream}) can't be read: {why}.",
                       hint="mend the event, mend TableLog(decode=…), or rebuild with quarantine, which sets it aside",
                       position=raw.position, type=raw.type, stream=raw.stream)


def _explain(error: Exception) -> str:
    """What went wrong, in words that can't carry the event's data into a log."""
    if isinstance(error, msgspec.MsgspecError):
        return str(error)
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return f"the decoder raised {type(error).__name__}"
