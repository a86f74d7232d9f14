"""The lifecycle as SQLAlchemy metadata: requests, log incarnations, documents, snapshots, archive manifests."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    DateTime,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from rebuilder.domain.ticket import Reason
from rebuilder.store.words import one_of

_Time = DateTime(timezone=True)
_Bytewise = Text(collation="C")
_CONTENT = "coalesce(bytes, convert_to(body::text, 'UTF8'))"
_SIZE = "coalesce(octet_length(bytes), octet_length(body::text), 0) BETWEEN 1 AND 16777216"


def bound(column: str) -> str:
    """The digest of a value and its place (projection, generation, ``column``): swapped rows do not verify."""
    return (f"sha256(convert_to(octet_length(projection) || ':' || projection || generation || ':' || "
            f"octet_length({column}) || ':' || {column}, 'UTF8') || {_CONTENT})")


def add_lifecycle(meta: MetaData, schema: str) -> None:
    """Add the tables to the metadata."""
    _sources(meta, schema)
    _requests(meta, schema)
    _documents(meta, schema)
    _archives(meta, schema)


def _sources(meta: MetaData, schema: str) -> None:
    Table(
        "source_generation", meta,
        Column("generation", Uuid, primary_key=True, server_default=text("gen_random_uuid()")),
        Column("log", Text, nullable=False),
        Column("reason", Text),
        Column("created_at", _Time, nullable=False, server_default=func.clock_timestamp()),
        Column("retired_at", _Time),
        CheckConstraint("octet_length(log) >= 1", name="source_generation_log"),
        CheckConstraint("retired_at IS NULL OR retired_at >= created_at", name="source_generation_retired"),
        Index("source_generation_one_active", "log", unique=True, postgresql_where=text("retired_at IS NULL")),
    )
    Table(
        "log_segment", meta,
        Column("source_generation", Uuid, primary_key=True),
        Column("first_position", BigInteger, primary_key=True, autoincrement=False),
        Column("last_position", BigInteger, nullable=False),
        Column("events", BigInteger, nullable=False),
        Column("digest", LargeBinary, nullable=False),
        Column("closed_at", _Time, nullable=False, server_default=func.clock_timestamp()),
        CheckConstraint("first_position >= 1 AND last_position >= first_position AND events >= 0",
                        name="log_segment_range"),
        CheckConstraint("octet_length(digest) = 32", name="log_segment_digest"),
        ForeignKeyConstraint(["source_generation"], [f"{schema}.source_generation.generation"],
                             name="log_segment_source"),
    )


def _requests(meta: MetaData, schema: str) -> None:
    Table(
        "invalidation", meta,
        Column("invalidation", Uuid, primary_key=True),
        Column("scope", Text, nullable=False, server_default=text("''")),
        Column("projection", Text, nullable=False),
        # The live generation that it declares stale; 0 where nothing was built.
        Column("generation", BigInteger, nullable=False),
        Column("reason", Text, nullable=False),
        Column("note", Text),
        Column("actor", Text, nullable=False, server_default=text("current_user")),
        Column("requested_at", _Time, nullable=False, server_default=func.clock_timestamp()),
        Column("answered_by", Uuid),
        Column("answered_at", _Time),
        CheckConstraint(one_of("reason", Reason), name="invalidation_reason"),
        CheckConstraint("generation >= 0", name="invalidation_generation"),
        CheckConstraint("note IS NULL OR octet_length(note) BETWEEN 1 AND 2000", name="invalidation_note"),
        CheckConstraint("num_nonnulls(answered_by, answered_at) IN (0, 2)", name="invalidation_answer"),
        # KEY SHARE goes beside a run's lock of the state row: a request never waits for a rebuild.
        ForeignKeyConstraint(["scope", "projection"],
                             [f"{schema}.projection_state.scope", f"{schema}.projection_state.projection"],
                             name="invalidation_projection"),
        ForeignKeyConstraint(["answered_by"], [f"{schema}.rebuild_ticket.ticket"], name="invalidation_ticket"),
        Index("invalidation_pending", "scope", "projection", postgresql_where=text("answered_by IS NULL")),
    )


def _documents(meta: MetaData, schema: str) -> None:
    owner = (["scope", "projection"], [f"{schema}.projection_state.scope", f"{schema}.projection_state.projection"])
    Table(
        "document", meta,
        Column("scope", Text, primary_key=True, server_default=text("''")),
        Column("projection", Text, primary_key=True),
        Column("generation", BigInteger, primary_key=True, autoincrement=False),
        Column("key", _Bytewise, primary_key=True),
        Column("body", JSONB),
        Column("bytes", LargeBinary),
        Column("digest", LargeBinary, nullable=False),
        Column("updated_at", _Time, nullable=False, server_default=func.clock_timestamp()),
        ForeignKeyConstraint(*owner, name="document_projection"),
        CheckConstraint("generation >= 1", name="document_generation"),
        CheckConstraint("octet_length(key) BETWEEN 1 AND 512", name="document_key"),
        CheckConstraint("num_nonnulls(body, bytes) = 1", name="document_kind"),
        CheckConstraint(_SIZE, name="document_size"),
        CheckConstraint(f"coalesce(digest = {bound('key')}, false)", name="document_digest"),
    )
    Table(
        "snapshot", meta,
        Column("scope", Text, primary_key=True, server_default=text("''")),
        Column("projection", Text, primary_key=True),
        Column("snapshot", Uuid, primary_key=True),
        Column("generation", BigInteger, nullable=False),
        Column("body", JSONB),
        Column("bytes", LargeBinary),
        Column("digest", LargeBinary, nullable=False),
        Column("created_at", _Time, nullable=False, server_default=func.clock_timestamp()),
        ForeignKeyConstraint(*owner, name="snapshot_projection"),
        CheckConstraint("generation >= 1", name="snapshot_generation"),
        CheckConstraint("num_nonnulls(body, bytes) = 1", name="snapshot_kind"),
        CheckConstraint(_SIZE, name="snapshot_size"),
        CheckConstraint(f"coalesce(digest = {bound('snapshot::text')}, false)", name="snapshot_digest"),
        Index("snapshot_age", "scope", "projection", "created_at"),
    )


def _archives(meta: MetaData, schema: str) -> None:
    Table(
        "event_index_manifest", meta,
        Column("manifest", Uuid, primary_key=True),
        Column("source_generation", Uuid, nullable=False),
        Column("total_events", BigInteger, nullable=False),
        Column("target_shard_size", Integer, nullable=False),
        Column("first_position", BigInteger, nullable=False),
        Column("last_position", BigInteger, nullable=False),
        Column("created_at", _Time, nullable=False, server_default=func.clock_timestamp()),
        CheckConstraint("total_events >= 1 AND target_shard_size >= 1", name="event_index_manifest_numbers"),
        CheckConstraint("first_position >= 1 AND last_position >= first_position", name="event_index_manifest_range"),
        ForeignKeyConstraint(["source_generation"], [f"{schema}.source_generation.generation"],
                             name="event_index_manifest_source"),
    )
    Table(
        "event_index_shard", meta,
        Column("manifest", Uuid, primary_key=True),
        Column("shard", _Bytewise, primary_key=True),
        Column("ordinal", Integer, nullable=False),
        Column("path", _Bytewise, nullable=False),
        Column("events", BigInteger, nullable=False),
        Column("first_position", BigInteger, nullable=False),
        Column("last_position", BigInteger, nullable=False),
        Column("first_recorded_at", _Time),
        Column("last_recorded_at", _Time),
        Column("digest", LargeBinary, nullable=False),
        ForeignKeyConstraint(["manifest"], [f"{schema}.event_index_manifest.manifest"], ondelete="CASCADE",
                             name="event_index_shard_manifest"),
        UniqueConstraint("manifest", "ordinal", name="event_index_shard_ordinal"),
        UniqueConstraint("manifest", "path", name="event_index_shard_path"),
        CheckConstraint("octet_length(shard) BETWEEN 1 AND 128 AND octet_length(path) BETWEEN 1 AND 512",
                        name="event_index_shard_name"),
        CheckConstraint("ordinal >= 0 AND events >= 1", name="event_index_shard_numbers"),
        CheckConstraint("first_position >= 1 AND last_position >= first_position", name="event_index_shard_range"),
        CheckConstraint("num_nonnulls(first_recorded_at, last_recorded_at) IN (0, 2)", name="event_index_shard_times"),
        CheckConstraint("octet_length(digest) = 32", name="event_index_shard_digest"),
    )
    Table(
        "event_index_checkpoint", meta,
        Column("ticket", Uuid, primary_key=True),
        Column("manifest", Uuid, primary_key=True),
        Column("shard", _Bytewise, primary_key=True),
        Column("position", BigInteger, nullable=False),
        Column("events", BigInteger, nullable=False),
        Column("updated_at", _Time, nullable=False, server_default=func.clock_timestamp()),
        ForeignKeyConstraint(["ticket"], [f"{schema}.rebuild_ticket.ticket"], ondelete="CASCADE",
                             name="event_index_checkpoint_ticket"),
        ForeignKeyConstraint(["manifest", "shard"],
                             [f"{schema}.event_index_shard.manifest", f"{schema}.event_index_shard.shard"],
                             ondelete="CASCADE", name="event_index_checkpoint_shard"),
        CheckConstraint("position >= 1 AND events >= 0", name="event_index_checkpoint_numbers"),
    )
