"""Documents, pages of their inventory, and snapshots, as values that check themselves."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from rebuilder.domain.invalid import InvalidDocument, InvalidSnapshot
from rebuilder.domain.lifecycle import check_id, check_name, is_count, is_trimmed
from rebuilder.errors import InvalidValue

KEY_BYTES = 512
VALUE_BYTES = 16 * 1024 * 1024
PAGE_ROWS = 256

Value = bytes | dict[str, Any] | list[Any]
"""A document's content: bytes, or what JSON makes objects and lists of."""


def check_key(key: str) -> None:
    """Text of 1 to 512 bytes, without control characters and without space at its ends."""
    if not 1 <= len(key.encode("utf-8", "surrogatepass")) <= KEY_BYTES or not is_trimmed(key):
        raise InvalidDocument(f"A document's key is {key!r:.80}; it must be 1 to {KEY_BYTES} bytes, without control "
                              "characters and without space at its ends.")


def check_value(value: Value, error: type[InvalidValue]) -> None:
    """1 byte to 16 MiB, as bytes or as JSON."""
    if isinstance(value, bytes):
        size = len(value)
    else:
        try:
            size = len(json.dumps(value, ensure_ascii=False, allow_nan=False).encode())
        except (TypeError, ValueError) as problem:
            raise error(f"A value is not JSON: {problem}.") from problem
        if not isinstance(value, dict | list):
            raise error(f"A value is a {type(value).__name__}; it must be bytes, a dict or a list.")
    if not 1 <= size <= VALUE_BYTES:
        raise error(f"A value has {size} bytes; it may have 1 to {VALUE_BYTES}.")


def digest_of(projection: str, generation: int, place: str, content: bytes) -> bytes:
    """As the table's CHECK computes it: the value and its place, so that swapped rows do not verify."""
    where = f"{len(projection.encode())}:{projection}{generation}:{len(place.encode())}:{place}"
    return hashlib.sha256(where.encode() + content).digest()


@dataclass(frozen=True, slots=True)
class Document:
    """A key and its value. The value does not show in a repr: it is the application's data."""

    key: str
    value: Value = field(repr=False)

    def __post_init__(self) -> None:
        check_key(self.key)
        check_value(self.value, InvalidDocument)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a page ended: pages of the same projection and generations may go on from here."""

    projection: str
    generations: int | None
    generation: int
    key: str


@dataclass(frozen=True, slots=True)
class InventoryQuery:
    """A page of documents: of one generation or (None) of all, so many rows, after a place."""

    projection: str
    generation: int | None = None
    limit: int = PAGE_ROWS
    after: Place | None = None

    def __post_init__(self) -> None:
        check_name(self.projection)
        if not is_count(self.limit, 1) or self.limit > PAGE_ROWS:
            raise InvalidDocument(f"A page has {self.limit!r} rows; it may have 1 to {PAGE_ROWS}.")
        if self.generation is not None and not is_count(self.generation, 1):
            raise InvalidDocument(f"A page is of generation {self.generation!r}.")
        if self.after is not None and (self.after.projection, self.after.generations) != (
                self.projection, self.generation):
            raise InvalidDocument("The place is of a page over another projection or other generations.",
                                  hint="begin anew, without after=")


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a page. Without a document it is there and damaged, for ``why``."""

    generation: int
    key: str
    document: Document | None
    size: int = 0
    why: str | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """Rows in order of generation and key, byte by byte; ``next`` is where to go on, None at the end."""

    query: InventoryQuery
    rows: tuple[Row, ...]
    next: Place | None = None

    def __post_init__(self) -> None:
        after = self.query.after
        last = (after.generation, after.key.encode()) if after else (0, b"")
        for row in self.rows:
            here = (row.generation, row.key.encode())
            if here <= last or self.query.generation not in {None, row.generation}:
                raise InvalidDocument("A page's rows are out of order or out of its scope.")
            last = here
        if len(self.rows) > self.query.limit or sum(row.size for row in self.rows) > VALUE_BYTES:
            raise InvalidDocument("A page has more than its limit.")
        if self.next is not None and (not self.rows or (self.next.generation, self.next.key.encode()) != last):
            raise InvalidDocument("A page goes on from a place that is not its last row.")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A frozen value under a number of the caller's: it never changes, and outlives the generation it was made of."""

    projection: str
    id: UUID
    generation: int
    value: Value = field(repr=False)
    created_at: datetime | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        check_name(self.projection)
        check_id(self.id, InvalidSnapshot, "A snapshot")
        if not is_count(self.generation, 1):
            raise InvalidSnapshot(f"A snapshot is of generation {self.generation!r}.")
        check_value(self.value, InvalidSnapshot)
