"""Shards of an archived log: immutable Parquet files, verified by their SHA-256 before an event of them is used.

Parquet by pyarrow, the extra ``archive``.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from rebuilder.domain.archive import Shard
from rebuilder.errors import ArchiveRefused, DefinitionError
from rebuilder.eventlog.columns import ALIAS
from rebuilder.eventlog.looking import reading
from rebuilder.eventlog.open_log import OpenLog
from rebuilder.eventlog.raw_event import RawEvent
from rebuilder.eventlog.selection import Selection

_TEXT = ("stream", "type", "category", "tenant")


def parquet() -> tuple[Any, Any]:
    """The modules pyarrow and pyarrow.parquet; an error that names the extra if they are not installed."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise DefinitionError("Archives need pyarrow, which is not installed.",
                              hint="pip install 'rebuilder[archive]'") from error
    return pa, pq


def everything(log: OpenLog, connection: psycopg.Connection[Any], *, above: int, upto: int,
               limit: int) -> list[RawEvent]:
    """All events between two positions, whatever their type, in order."""
    statements = log.statements
    conditions = [*statements.filters, sql.SQL("{} > {}").format(statements.position, sql.Literal(above)),
                  sql.SQL("{} <= {}").format(statements.position, sql.Literal(upto))]
    statement = sql.SQL("SELECT {} FROM {} AS {} WHERE {} ORDER BY {} LIMIT {}").format(
        statements.output, statements.relation, sql.Identifier(ALIAS), sql.SQL(" AND ").join(conditions),
        statements.order, sql.Literal(limit))
    with reading(connection), connection.cursor(binary=True) as cursor:
        return [RawEvent(*row) for row in cursor.execute(statement, prepare=False).fetchall()]


def write_shard(folder: Path, name: str, events: Sequence[RawEvent]) -> Shard:
    """Write a shard: under another name first, then renamed, so that a crash leaves none by half."""
    arrow, files = parquet()
    kinds = {"position": arrow.int64(), "stream_version": arrow.int64(), "schema_version": arrow.int64(),
             "data": arrow.binary(), "metadata": arrow.binary(), "recorded_at": arrow.timestamp("us", tz="UTC"),
             **dict.fromkeys(_TEXT, arrow.string())}
    columns = dict(zip(RawEvent._fields, zip(*events, strict=True), strict=True))
    table = arrow.table({field: arrow.array(columns[field], type=kinds[field]) for field in RawEvent._fields})
    kept = io.BytesIO()
    files.write_table(table, kept, compression="zstd")
    content = kept.getvalue()
    path = f"{name}.parquet"
    partial = folder / f"{path}.partial"
    with partial.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    partial.chmod(0o444)
    partial.replace(folder / path)
    times = [event.recorded_at for event in events if event.recorded_at is not None]
    whole = len(times) == len(events)
    return Shard(id=name, path=path, events=len(events), first_position=events[0].position,
                 last_position=events[-1].position, digest=hashlib.sha256(content).digest(),
                 first_recorded_at=min(times) if whole else None, last_recorded_at=max(times) if whole else None)


def check_present(folder: Path, shards: Sequence[Shard]) -> None:
    """Refuse an archive in which a file is missing, by its name, before anything is read."""
    for shard in shards:
        if not (folder / shard.path).is_file():
            raise ArchiveRefused(f"Shard {shard.id} of the archive is missing: {shard.path} is not there.",
                                 hint="bring it back from a copy, or rebuild from the table", shard=shard.id)


def read_shard(folder: Path, shard: Shard, selection: Selection) -> list[RawEvent]:
    """The events of a shard that a projection reads, once the file has proven to be what the manifest says."""
    arrow, files = parquet()
    try:
        content = (folder / shard.path).read_bytes()
    except OSError as error:
        raise ArchiveRefused(f"Shard {shard.id} of the archive can't be read: {error.strerror}.",
                             hint="bring it back from a copy, or rebuild from the table", shard=shard.id) from error
    if hashlib.sha256(content).digest() != shard.digest:
        raise ArchiveRefused(f"Shard {shard.id} of the archive was altered: its SHA-256 is not the manifest's.",
                             hint="bring it back from a copy, or rebuild from the table", shard=shard.id)
    table = files.read_table(arrow.BufferReader(content))
    if table.num_rows != shard.events:
        raise ArchiveRefused(f"Shard {shard.id} has {table.num_rows} events; its manifest says {shard.events}.",
                             hint="archive anew", shard=shard.id)
    from pyarrow import compute

    wanted = compute.is_in(table["type"], value_set=arrow.array(list(selection.types), type=arrow.string()))
    if selection.categories:
        wanted = compute.and_(wanted, compute.is_in(
            table["category"], value_set=arrow.array(list(selection.categories), type=arrow.string())))
    chosen = table.filter(wanted)
    return [RawEvent(*row) for row in zip(*(chosen[name].to_pylist() for name in RawEvent._fields), strict=True)]
