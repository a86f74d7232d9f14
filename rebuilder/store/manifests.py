"""Manifests of archives, and how far rebuilds have read them."""

from __future__ import annotations

from uuid import UUID

from rebuilder.domain.archive import IndexCheckpoint, Manifest, Shard, ShardCheckpoint
from rebuilder.domain.invalid import InvalidIndexCheckpoint
from rebuilder.errors import InvalidValue, RecordConflict, RecordCorrupt
from rebuilder.store.documents import Snapshots
from rebuilder.store.sessions import Connection


class Manifests(Snapshots):
    """What an archive of the log holds, by which its files are verified."""

    def put_event_index_manifest(self, manifest: Manifest) -> Manifest:
        """Keep a manifest; the same again is fine, another under its number is a conflict."""
        with self._writing("keeping a manifest") as connection:
            written = self._run(
                connection, "put_manifest", manifest=manifest.id, source=manifest.source, events=manifest.total_events,
                target=manifest.target_shard_size, first=manifest.shards[0].first_position,
                last=manifest.last_position).rowcount
            if written:
                for ordinal, shard in enumerate(manifest.shards):
                    self._run(connection, "put_shard", manifest=manifest.id, shard=shard.id, ordinal=ordinal,
                              path=shard.path, events=shard.events, first=shard.first_position,
                              last=shard.last_position, first_at=shard.first_recorded_at,
                              last_at=shard.last_recorded_at, digest=shard.digest)
            elif self._manifest(connection, manifest.id) != manifest:
                raise RecordConflict(f"Manifest {manifest.id} is another one.", hint="take a fresh number")
        return manifest

    def event_index_manifest(self, manifest: UUID) -> Manifest | None:
        """A manifest, checked whole; None if there is none."""
        with self._using("reading a manifest") as connection:
            return self._manifest(connection, manifest)

    def last_event_index_manifest(self, source: UUID) -> Manifest | None:
        """The manifest of an incarnation of the log that reaches furthest."""
        with self._using("reading a manifest") as connection:
            row = self._run(connection, "last_manifest", source=source).fetchone()
            return None if row is None else self._manifest(connection, row[0])

    def put_event_index_checkpoint(self, checkpoint: IndexCheckpoint) -> None:
        """Record how far a ticket's rebuild has read shards; one that goes back is refused, and all of it."""
        with self._writing("writing a checkpoint of an archive") as connection:
            for each in checkpoint.shards:
                written = self._run(connection, "put_index_checkpoint", ticket=checkpoint.ticket,
                                    manifest=checkpoint.manifest, shard=each.shard, position=each.position,
                                    events=each.events).fetchone()
                if written is None:
                    raise InvalidIndexCheckpoint(f"The checkpoint of shard {each.shard} runs backwards.")

    def event_index_checkpoint(self, ticket: UUID, manifest: UUID) -> IndexCheckpoint:
        """How far a ticket's rebuild has read the shards of a manifest."""
        with self._using("reading a checkpoint of an archive") as connection:
            rows = self._run(connection, "read_index_checkpoint", ticket=ticket, manifest=manifest).fetchall()
        return IndexCheckpoint(ticket, manifest, tuple(ShardCheckpoint(*row) for row in rows))

    def _manifest(self, connection: Connection, id: UUID) -> Manifest | None:
        row = self._run(connection, "read_manifest", manifest=id).fetchone()
        if row is None:
            return None
        rows = self._run(connection, "read_shards", manifest=id).fetchall()
        try:
            shards = tuple(Shard(id=r[1], path=r[2], events=r[3], first_position=r[4], last_position=r[5],
                                 digest=bytes(r[6]), first_recorded_at=r[7], last_recorded_at=r[8]) for r in rows)
            found = Manifest(row[0], row[1], row[2], shards)
        except InvalidValue as error:
            raise RecordCorrupt(f"Manifest {id} can't be: {error.message}", hint="archive anew") from error
        if [r[0] for r in rows] != list(range(len(rows))) or found.total_events != row[3]:
            raise RecordCorrupt(f"Shards of manifest {id} are missing.", hint="archive anew")
        return found
