"""Which events of a log a projection reads."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Part:
    """One of several parts of the streams, by a hash of the stream's key."""

    number: int
    of: int


@dataclass(frozen=True, slots=True)
class Selection:
    """Events of these types (none: nothing matches) in these categories (none: all of them)."""

    types: tuple[str, ...]
    categories: tuple[str, ...] = ()
