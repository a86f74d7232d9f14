"""Manifests of an archived log, their shards, and how far a rebuild has read them, as values that check themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from uuid import UUID

from rebuilder.domain.invalid import InvalidIndexCheckpoint, InvalidManifest, InvalidName, InvalidShard
from rebuilder.domain.lifecycle import check_id, check_name, is_count, is_trimmed

SHARDS = 4096
PATH_BYTES = 512


def check_path(path: str) -> None:
    """A relative path without ``.`` and ``..``, backslashes, empty parts and control characters."""
    parts = path.split("/")
    if (not 1 <= len(path.encode()) <= PATH_BYTES or "\\" in path or not is_trimmed(path)
            or any(part in {"", ".", ".."} for part in parts)):
        raise InvalidShard(f"A shard's path is {path!r:.80}; it must be relative, 1 to {PATH_BYTES} bytes, without "
                           "empty parts, '.', '..', backslashes and control characters.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """A file of the archive: which positions, how many events, when they were recorded, and the file's SHA-256."""

    id: str
    path: str
    events: int
    first_position: int
    last_position: int
    digest: bytes
    first_recorded_at: datetime | None = None
    last_recorded_at: datetime | None = None

    def __post_init__(self) -> None:
        check_name(self.id, "A shard's name")
        check_path(self.path)
        if not is_count(self.events, 1):
            raise InvalidShard(f"Shard {self.id} has {self.events!r} events; it must have some.")
        if not is_count(self.first_position, 1) or not is_count(self.last_position, self.first_position):
            raise InvalidShard(f"Shard {self.id} goes from position {self.first_position!r} to {self.last_position!r}.")
        if len(self.digest) != 32:
            raise InvalidShard(f"Shard {self.id} has a digest of {len(self.digest)} bytes; SHA-256 has 32.")
        first, last = self.first_recorded_at, self.last_recorded_at
        if (first is None) != (last is None) or (first is not None and last is not None and last < first):
            raise InvalidShard(f"Shard {self.id} was recorded from {first} to {last}.")


@dataclass(frozen=True, slots=True)
class Manifest:
    """The shards of one incarnation of a log, in the order of their positions, which do not overlap."""

    id: UUID
    source: UUID
    target_shard_size: int
    shards: tuple[Shard, ...]

    def __post_init__(self) -> None:
        check_id(self.id, InvalidManifest, "A manifest")
        check_id(self.source, InvalidManifest, "A log's incarnation")
        object.__setattr__(self, "shards", tuple(self.shards))
        if not 1 <= len(self.shards) <= SHARDS:
            raise InvalidManifest(f"A manifest has {len(self.shards)} shards; it may have 1 to {SHARDS}.")
        if not is_count(self.target_shard_size, 1):
            raise InvalidManifest(f"A manifest's shards are to have {self.target_shard_size!r} events.")
        for what in ("id", "path"):
            if len({getattr(shard, what) for shard in self.shards}) != len(self.shards):
                raise InvalidManifest(f"Two shards of a manifest have one {what}.")
        for shard in self.shards:
            if shard.events > self.target_shard_size:
                raise InvalidManifest(f"Shard {shard.id} has {shard.events} events; shards are to have up to "
                                      f"{self.target_shard_size}.")
        for before, after in pairwise(self.shards):
            if after.first_position <= before.last_position or after.id.encode() <= before.id.encode():
                raise InvalidManifest(f"Shard {after.id} does not come after shard {before.id}.")

    @property
    def total_events(self) -> int:
        """All events of the shards."""
        return sum(shard.events for shard in self.shards)

    @property
    def last_position(self) -> int:
        """Where the archive ends and the table goes on."""
        return self.shards[-1].last_position


@dataclass(frozen=True, slots=True)
class ShardCheckpoint:
    """How far a rebuild has read a shard."""

    shard: str
    position: int
    events: int

    def __post_init__(self) -> None:
        try:
            check_name(self.shard, "A shard's name")
        except InvalidName as error:
            raise InvalidIndexCheckpoint(error.message) from error
        if not is_count(self.position, 1) or not is_count(self.events):
            raise InvalidIndexCheckpoint(f"Shard {self.shard} was read up to position {self.position!r}, "
                                         f"{self.events!r} events.")


@dataclass(frozen=True, slots=True)
class IndexCheckpoint:
    """How far a ticket's rebuild has read the shards of a manifest; kept sorted by shard."""

    ticket: UUID
    manifest: UUID
    shards: Sequence[ShardCheckpoint] = ()

    def __post_init__(self) -> None:
        check_id(self.ticket, InvalidIndexCheckpoint, "A ticket")
        check_id(self.manifest, InvalidIndexCheckpoint, "A manifest")
        object.__setattr__(self, "shards", tuple(sorted(self.shards, key=lambda each: each.shard)))
        if len(self.shards) > SHARDS or len({each.shard for each in self.shards}) != len(self.shards):
            raise InvalidIndexCheckpoint("A checkpoint names a shard twice, or more shards than a manifest may have.")

    def of(self, shard: str) -> ShardCheckpoint | None:
        """How far a shard was read; None if it was not begun."""
        return next((each for each in self.shards if each.shard == shard), None)
