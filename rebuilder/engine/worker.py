"""What a worker process does: fold its part of the streams, as of an exported snapshot, into rows encoded for COPY.

A job and its result are picklable, so that any executor may carry them: a process of this machine, or of another.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from rebuilder import errors
from rebuilder.domain.event import StreamId
from rebuilder.domain.projection import Projection
from rebuilder.domain.quarantine import Quarantine
from rebuilder.engine.apply_fold import FoldApplier, Rows
from rebuilder.engine.apply_sql import EventFailed, error_text, handler_failed, lifter
from rebuilder.engine.fold_table import ColumnSpec, FoldTable
from rebuilder.eventlog import Part, RawEvent, Selection, TableLog
from rebuilder.store.sessions import Connection, Server, connect, is_transient, prove_same_server, translate, translated

if TYPE_CHECKING:
    from rebuilder.eventlog import Key, OpenLog


@dataclass(frozen=True, slots=True)
class FilledTable:
    """A table that a fold fills, as a worker must know it: it can't see the shadow."""

    oid: int
    label: str
    columns: tuple[ColumnSpec, ...]
    primary_key: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Job:
    """One part of the streams, up to a position."""

    conninfo: str
    ticket: str
    server: Server
    snapshot: str
    log: TableLog
    projection: Projection
    tables: tuple[FilledTable, ...]
    selection: Selection
    part: Part
    upto: int
    page: int
    memory: int
    quarantine: Quarantine | None = None


@dataclass(slots=True)
class SetAside:
    """A poison event that a worker left out, or one that follows it in its stream."""

    raw: RawEvent
    cause: str
    error_class: str
    message: str
    sqlstate: str | None = None
    traceback: str | None = None


@dataclass(slots=True)
class Folded:
    """What a worker made: the rows of each table by its OID, as COPY text, and what of the log it read."""

    events: int = 0
    position: int = 0
    columns: dict[int, tuple[str, ...]] = field(default_factory=dict)
    chunks: dict[int, list[bytes]] = field(default_factory=dict)
    dead: list[SetAside] = field(default_factory=list)


def fold_part(job: Job) -> Folded:
    """Fold one part."""
    connection = connect(job.conninfo, role="worker", ticket=job.ticket)
    try:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        with translated("reading the event log in a worker"):
            connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(job.snapshot)))
            prove_same_server(connection, job.server)
            return _fold(job, connection, job.log.open(connection))
    finally:
        connection.close()


def _fold(job: Job, connection: Connection, log: OpenLog) -> Folded:
    asking: list[Connection] = []

    def fetch_one(statement: Any, params: Any = None) -> tuple[Any, ...] | None:
        if not asking:
            asking.append(connect(job.conninfo, role="upcast", ticket=job.ticket))
            asking[0].read_only = True
        try:
            return asking[0].execute(statement, params).fetchone()
        finally:
            asking[0].rollback()

    filled = [(fold, Rows(FoldTable(connection, sql.Identifier(table.label), table.label, fold, columns=table.columns,
                                    primary_key=table.primary_key), oid=table.oid))
              for fold, table in zip(job.projection.folds, job.tables, strict=True)]
    applier = FoldApplier(connection, filled, lifter(log, job.projection, fetch_one), memory=job.memory,
                          page=job.page, doing="folding")
    folded = Folded()
    try:
        streams: dict[StreamId, int] = {}
        for page in _pages(job, connection, log):
            _check_memory(job, applier)
            _apply(job, applier, page, folded, streams)
            folded.events += len(page)
            folded.position = page[-1].position
        for _, rows in filled:
            if rows.rows:
                folded.columns[rows.oid] = rows.table.columns
                folded.chunks[rows.oid] = list(rows.take(connection))
    finally:
        for one in asking:
            one.close()
    return folded


def _pages(job: Job, connection: Connection, log: OpenLog) -> Iterator[list[RawEvent]]:
    """The part's pages, the next one being read while this one is folded."""

    def load(after: Key | None) -> list[RawEvent]:
        return log.page(connection, job.selection, after=after, upto=job.upto, limit=job.page, part=job.part)

    with ThreadPoolExecutor(1, thread_name_prefix="rebuilder reader") as pool:
        page = load(None)
        while page:
            coming = pool.submit(load, page[-1].key) if len(page) == job.page else None
            yield page
            page = coming.result() if coming is not None else []


def _check_memory(job: Job, applier: FoldApplier) -> None:
    used = sum(rows.size() for rows in applier.rows)
    if used > job.memory:
        raise errors.RebuildError(
            f"The rows of part {job.part.number + 1} of {job.part.of} need {used >> 20} MiB of a worker, which may "
            f"have {job.memory >> 20} MiB. Live is as it was.",
            hint="raise settings.fold_parts, which makes the parts smaller, or settings.fold_memory, or use workers=1, "
                 "which spills to the server")


def _apply(job: Job, applier: FoldApplier, page: Sequence[RawEvent], folded: Folded,
           streams: dict[StreamId, int]) -> None:
    if job.quarantine is None:
        try:
            applier.apply(page)
        except EventFailed as failure:
            raise _told(failure, job.projection) from None
        return
    poison: set[RawEvent] = set()
    while True:
        healthy = [raw for raw in page if raw not in poison and not streams.get(_stream(raw), raw.position)
                   < raw.position]
        applier.save()
        try:
            applier.apply(healthy)
        except EventFailed as failure:
            if is_transient(failure.error):
                raise _told(failure, job.projection) from None
            applier.back()
            poison.add(failure.raw)
            folded.dead.append(_letter(failure))
            if job.quarantine.policy == "stream":
                streams.setdefault(_stream(failure.raw), failure.raw.position)
        else:
            applier.release()
            break
    for raw in page:
        poisoned = streams.get(_stream(raw), raw.position)
        if poisoned < raw.position and raw not in poison:
            folded.dead.append(SetAside(raw, "stream", "StreamQuarantined", f"follows position {poisoned} of its "
                                        "stream, which was set aside"))


def _letter(failure: EventFailed) -> SetAside:
    error = failure.error
    return SetAside(failure.raw, failure.cause, type(error).__name__, error_text(error),
                    error.sqlstate if isinstance(error, psycopg.Error) else None,
                    "".join(traceback.format_exception(error, limit=-5))[-8000:])


def _told(failure: EventFailed, projection: Projection) -> errors.RebuilderError:
    """An error that can cross to another process."""
    if is_transient(failure.error):
        return translate(failure.error, "folding in a worker")
    return handler_failed(failure, projection)


def _stream(raw: RawEvent) -> StreamId:
    return StreamId(raw.tenant or "", raw.category or "", raw.stream or "")


