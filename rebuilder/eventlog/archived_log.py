"""A log of which the older part is read from an archive, and the rest from its table."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import psycopg

from rebuilder.domain.archive import Manifest, Shard
from rebuilder.errors import ArchiveRefused
from rebuilder.eventlog.open_log import OpenLog
from rebuilder.eventlog.raw_event import Key, RawEvent
from rebuilder.eventlog.selection import Part, Selection
from rebuilder.eventlog.shards import check_present, parquet, read_shard
from rebuilder.eventlog.table_log import TableLog

Done = Callable[[Shard, int], None]
"""Told of each shard that was read to its end, with the number of its events that the projection reads."""


@dataclass(frozen=True, kw_only=True)
class ArchivedLog(OpenLog):
    """An open log whose pages come from the shards while they last. All that settles it is asked of the table."""

    folder: Path
    manifest: Manifest
    done: Done | None = None
    loaded: dict[int, list[RawEvent]] = field(default_factory=dict, compare=False)

    def page(self, connection: psycopg.Connection[Any], selection: Selection, *, after: Key | None,
             upto: int | None, limit: int, part: Part | None = None) -> list[RawEvent]:
        """The next matching events behind a key: of the shards, then of the table."""
        last = self.manifest.last_position
        start = after[0] if after is not None else 0
        rows: list[RawEvent] = []
        if start < last and (upto is None or upto >= last) and part is None:
            rows = self._archived(selection, start, limit)
            if len(rows) == limit:
                return rows
            after = (last,)
        return rows + super().page(connection, selection, after=after, upto=upto, limit=limit - len(rows), part=part)

    def _archived(self, selection: Selection, start: int, limit: int) -> list[RawEvent]:
        shards = self.manifest.shards
        number = bisect_right([shard.last_position for shard in shards], start)
        rows: list[RawEvent] = []
        while number < len(shards) and len(rows) < limit:
            events = self._events(number, selection)
            first = bisect_right([event.position for event in events], start) if events else 0
            rows += events[first:first + limit - len(rows)]
            number += 1
        return rows

    def _events(self, number: int, selection: Selection) -> list[RawEvent]:
        if number not in self.loaded:
            shard = self.manifest.shards[number]
            events = read_shard(self.folder, shard, selection)
            # The one before stays: a page may span two, and quarantine reads some again.
            for old in [each for each in self.loaded if each < number - 1]:
                del self.loaded[old]
            self.loaded[number] = events
            if self.done is not None:
                self.done(shard, len(events))
        return self.loaded[number]


@dataclass(frozen=True)
class ArchivedTableLog(TableLog):
    """A ``TableLog`` whose older part is in an archive."""

    folder: Path = field(default=Path(), kw_only=True)
    manifest: Manifest | None = field(default=None, kw_only=True)
    done: Done | None = field(default=None, kw_only=True)

    @classmethod
    def of(cls, log: TableLog, folder: Path, manifest: Manifest) -> ArchivedTableLog:
        """The same log over an archive of it."""
        given = {each.name: getattr(log, each.name) for each in fields(TableLog)}
        return cls(**given, folder=folder, manifest=manifest)

    def open(self, connection: psycopg.Connection[Any]) -> OpenLog:
        """Open the table, and look for the archive's files."""
        opened = super().open(connection)
        if self.manifest is None:
            return opened
        if opened.statements.by_tenant:
            raise ArchiveRefused("A log whose tenants count for themselves can't be read from an archive.",
                                 hint="rebuild from the table")
        parquet()
        check_present(self.folder, self.manifest.shards)
        given = {each.name: getattr(opened, each.name) for each in fields(OpenLog)}
        return ArchivedLog(**given, folder=self.folder, manifest=self.manifest, done=self.done)
