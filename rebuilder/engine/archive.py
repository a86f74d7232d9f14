"""Writes closed ranges of the log as immutable shards, and finds the manifest by which a folder of them is verified."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

from rebuilder.domain.archive import Manifest, Shard
from rebuilder.domain.batch_sql import BatchSql
from rebuilder.engine.source import Source, active_source
from rebuilder.engine.stop import StopToken
from rebuilder.errors import ArchiveRefused, DefinitionError, HorizonBlocked, RebuildCancelled
from rebuilder.eventlog import OpenLog, TableLog
from rebuilder.eventlog.archived_log import ArchivedTableLog
from rebuilder.eventlog.shards import check_present, everything, parquet, write_shard
from rebuilder.settings import Settings
from rebuilder.store.ledger import Bookkeeping
from rebuilder.store.projection_store import ProjectionStore
from rebuilder.store.sessions import Connection, connect, translated

if TYPE_CHECKING:
    from rebuilder.engine.run import Run

_INDEX = "manifest.json"
_PATIENCE = 60.0


@dataclass(frozen=True, slots=True)
class ArchiveReport:
    """What an archive holds now, and how many shards were added."""

    manifest: UUID | None
    added: int
    shards: int
    events: int
    position: int

    def to_json(self) -> dict[str, Any]:
        """As text and numbers."""
        return {"manifest": str(self.manifest) if self.manifest else None, "added": self.added, "shards": self.shards,
                "events": self.events, "position": self.position}


def write_archive(conninfo: str, definition: TableLog, settings: Settings, folder: Path, *, shard_events: int,
                  stop: StopToken) -> ArchiveReport:
    """Add the full shards that a settled horizon has closed; shards are never written again.

    The manifest is kept in the bookkeeping, which is what a rebuild trusts; the folder names it.
    """
    if shard_events < 1:
        raise DefinitionError(f"shard_events is {shard_events}; it must be at least 1.")
    parquet()
    folder.mkdir(parents=True, exist_ok=True)
    books = Bookkeeping(settings)
    with connect(conninfo, role="archive", autocommit=True) as connection:
        books.check_installed(connection)
        with translated("reading the event log"):
            log = definition.open(connection)
        if log.statements.by_tenant:
            raise ArchiveRefused("A log whose tenants count for themselves can't be archived by ranges of positions.")
        generation = active_source(connection, books, log.label)
        with ProjectionStore(conninfo, settings, log=Source(log, books)) as store:
            before = _previous(store, folder, generation)
            shards = list(before.shards) if before else []
            horizon = _settled(log, connection, stop)
            while True:
                if stop.requested:
                    raise RebuildCancelled(f"The archive was cancelled ({stop.why}); repeat it for the rest.")
                above = shards[-1].last_position if shards else 0
                with translated("reading the event log"):
                    events = everything(log, connection, above=above, upto=horizon, limit=shard_events)
                if len(events) < shard_events:
                    break
                name = f"{str(generation)[:8]}-{events[0].position:019}"
                shards.append(write_shard(folder, name, events))
            added = len(shards) - (len(before.shards) if before else 0)
            if added:
                size = max(shard_events, *(shard.events for shard in shards))
                before = store.put_event_index_manifest(Manifest(uuid4(), generation, size, tuple(shards)))
                _name(folder, before)
    if before is None:
        return ArchiveReport(None, 0, 0, 0, 0)
    return ArchiveReport(before.id, added, len(before.shards), before.total_events, before.last_position)


def find_manifest(store: ProjectionStore, folder: Path, source: UUID) -> Manifest:
    """The manifest of a folder, from the bookkeeping; refused if it is of another incarnation of the log."""
    found = _previous(store, folder, source)
    if found is None:
        raise ArchiveRefused(f"There is no archive in {folder.name!r}.", hint="write one: rebuilder archive FOLDER")
    check_present(folder, found.shards)
    return found


def read_archive(run: Run, store: ProjectionStore, folder: Path) -> None:
    """Have a run read the archived part of the log from a folder; its checkpoints say how far it has come."""
    if isinstance(run.projection.handlers, BatchSql) or run.options.workers != 1:
        raise DefinitionError("BatchSql and workers read the log on the server, so there is nothing to read from an "
                              "archive.", hint="leave from_archive out")
    with connect(run.conninfo, role="archive", autocommit=True) as connection:
        with translated("reading the event log"):
            log = run.definition.open(connection)
        source = active_source(connection, run.books, log.label)
    manifest = find_manifest(store, folder, source)

    def done(shard: Shard, events: int) -> None:
        run.ledger.shard_read(run.ticket, manifest.id, shard, events)

    run.definition = replace(ArchivedTableLog.of(run.definition, folder, manifest), done=done)


def _previous(store: ProjectionStore, folder: Path, source: UUID) -> Manifest | None:
    index = folder / _INDEX
    if not index.exists():
        return None
    try:
        id_ = UUID(json.loads(index.read_text(encoding="utf-8"))["manifest"])
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise ArchiveRefused(f"{_INDEX} of the archive can't be read.", hint="bring it back from a copy") from error
    found = store.event_index_manifest(id_)
    if found is None:
        raise ArchiveRefused(f"The archive's manifest {id_} is not known to this database.",
                             hint="archive into an empty folder")
    if found.source != source:
        raise ArchiveRefused(f"The archive is of incarnation {found.source} of the log, which is over.",
                             hint="archive the log as it is now, into an empty folder")
    return found


def _name(folder: Path, manifest: Manifest) -> None:
    def row(shard: Shard) -> dict[str, Any]:
        return {"shard": shard.id, "path": shard.path, "events": shard.events, "first": shard.first_position,
                "last": shard.last_position, "sha256": shard.digest.hex()}

    partial = folder / f"{_INDEX}.partial"
    partial.write_text(json.dumps({"manifest": str(manifest.id), "source": str(manifest.source),
                                   "events": manifest.total_events, "shards": [row(each) for each in manifest.shards]},
                                  indent=1), encoding="utf-8")
    partial.replace(folder / _INDEX)


def _settled(log: OpenLog, connection: Connection, stop: StopToken) -> int:
    with translated("taking the horizon of the log"):
        horizon = log.horizon(connection, own_pids=())
        end = time.monotonic() + _PATIENCE
        while not horizon.settled(connection):
            if stop.wait(0.05):
                raise RebuildCancelled(f"The archive was cancelled ({stop.why}).")
            if time.monotonic() > end:
                raise HorizonBlocked(f"An open transaction holds the horizon of {log.label}.",
                                     hint="end it, then repeat",
                                     blockers=[each.to_json() for each in horizon.blockers(connection)])
    return horizon.position
