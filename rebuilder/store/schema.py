"""The bookkeeping schema as SQLAlchemy metadata. It must equal what the migrations make (a test compares)."""

from __future__ import annotations

from enum import StrEnum

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Identity,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from rebuilder.domain.ticket import Health, Phase, Stage

_Time = DateTime(timezone=True)


def one_of(column: str, words: type[StrEnum]) -> str:
    """A CHECK that a column is one of an enumeration's words, and not NULL (which a plain IN lets through)."""
    return f"{column} IS NOT NULL AND {column} IN ({', '.join(repr(str(word)) for word in words)})"


def metadata(schema: str = "rebuilder") -> MetaData:
    """All tables of the bookkeeping, in a schema of that name."""
    meta = MetaData(schema=schema)

    Table(
        "projection_state", meta,
        Column("scope", Text, primary_key=True, server_default=text("''")),
        Column("projection", Text, primary_key=True),
        Column("health", Text, nullable=False, server_default=text("'never_built'")),
        Column("generation", BigInteger, nullable=False, server_default=text("0")),
        Column("next_generation", BigInteger, nullable=False, server_default=text("1")),
        Column("version", Integer),
        Column("position", BigInteger),
        Column("fingerprint", Text),
        Column("rebuilt_at", _Time),
        Column("last_failure", Text),
        Column("updated_at", _Time, nullable=False, server_default=func.now()),
        CheckConstraint(one_of("health", Health), name="projection_state_health"),
        CheckConstraint("octet_length(projection) BETWEEN 1 AND 128", name="projection_state_name"),
        CheckConstraint("generation >= 0 AND next_generation > generation", name="projection_state_generation"),
        CheckConstraint("version IS NULL OR version >= 1", name="projection_state_version"),
        # Built is built wholly: generation, version, position and time come together.
        CheckConstraint("num_nulls(version, position, rebuilt_at) = CASE WHEN generation = 0 THEN 3 ELSE 0 END",
                        name="projection_state_built"),
    )
    Table(
        "rebuild_ticket", meta,
        Column("ticket", Uuid, primary_key=True),
        Column("scope", Text, nullable=False, server_default=text("''")),
        Column("projection", Text, nullable=False),
        Column("generation", BigInteger, nullable=False),
        Column("version", Integer, nullable=False),
        Column("revision", BigInteger, nullable=False, server_default=text("1")),
        Column("stage", Text, nullable=False, server_default=text("'requested'")),
        Column("reason", Text, nullable=False, server_default=text("'operator_requested'")),
        Column("note", Text),
        Column("actor", Text, nullable=False, server_default=text("current_user")),
        Column("host", Text, nullable=False),
        Column("pid", Integer, nullable=False),
        Column("backend_pid", Integer),
        Column("requested_at", _Time, nullable=False, server_default=func.now()),
        Column("started_at", _Time),
        Column("finished_at", _Time),
        Column("updated_at", _Time, nullable=False, server_default=func.now()),
        Column("failure_code", Text),
        Column("failure", JSONB),
        Column("report", JSONB),
        CheckConstraint(one_of("stage", Stage), name="rebuild_ticket_stage"),
        CheckConstraint("generation >= 1 AND version >= 1 AND revision >= 1", name="rebuild_ticket_numbers"),
        CheckConstraint("(finished_at IS NOT NULL) = (stage IN ('completed', 'failed', 'cancelled'))",
                        name="rebuild_ticket_finished"),
        CheckConstraint("(failure_code IS NOT NULL) = (stage IN ('failed', 'cancelled'))",
                        name="rebuild_ticket_failure"),
        CheckConstraint("(report IS NOT NULL) = (stage = 'completed')", name="rebuild_ticket_report"),
        UniqueConstraint("scope", "projection", "generation", name="rebuild_ticket_generation"),
        Index("rebuild_ticket_one_open", "scope", "projection", unique=True,
              postgresql_where=text("stage IN ('requested', 'running')")),
    )
    Table(
        "ticket_progress", meta,
        Column("ticket", Uuid, ForeignKey(f"{schema}.rebuild_ticket.ticket", ondelete="CASCADE",
                                          name="ticket_progress_ticket"), primary_key=True),
        Column("phase", Text, nullable=False),
        Column("events_done", BigInteger, nullable=False, server_default=text("0")),
        Column("events_total", BigInteger),
        Column("position", BigInteger),
        Column("rate", Double),
        Column("eta", Double),
        Column("attempts", Integer, nullable=False, server_default=text("0")),
        Column("blockers", JSONB, nullable=False, server_default=text("'[]'")),
        Column("heartbeat_at", _Time, nullable=False, server_default=func.clock_timestamp()),
        Column("cancel_requested_at", _Time),
        Column("cancel_requested_by", Text),
        CheckConstraint(one_of("phase", Phase), name="ticket_progress_phase"),
        CheckConstraint("events_done >= 0 AND attempts >= 0", name="ticket_progress_numbers"),
    )
    Table(
        "dead_letter", meta,
        Column("id", BigInteger, Identity(always=True), primary_key=True),
        Column("scope", Text, nullable=False, server_default=text("''")),
        Column("projection", Text, nullable=False),
        Column("position", BigInteger, nullable=False),
        Column("tenant", Text, nullable=False, server_default=text("''")),
        Column("category", Text, nullable=False, server_default=text("''")),
        Column("stream", Text, nullable=False),
        Column("stream_version", BigInteger),
        Column("type", Text, nullable=False),
        Column("cause", Text, nullable=False),
        Column("policy", Text, nullable=False),
        Column("error_class", Text, nullable=False),
        Column("sqlstate", Text),
        Column("message", Text, nullable=False),
        Column("traceback", Text),
        Column("data", JSONB),
        Column("ticket", Uuid, nullable=False),
        Column("attempts", Integer, nullable=False, server_default=text("1")),
        Column("in_live", Boolean, nullable=False, server_default=text("false")),
        Column("created_at", _Time, nullable=False, server_default=func.now()),
        Column("updated_at", _Time, nullable=False, server_default=func.now()),
        Column("resolved_at", _Time),
        Column("resolution", Text),
        CheckConstraint("cause IS NOT NULL AND cause IN ('handler', 'upcaster', 'decode', 'stream')",
                        name="dead_letter_cause"),
        CheckConstraint("policy IS NOT NULL AND policy IN ('stream', 'event')", name="dead_letter_policy"),
        CheckConstraint("(resolved_at IS NULL) = (resolution IS NULL)", name="dead_letter_resolved"),
        CheckConstraint("resolution IS NULL OR resolution IN ('rebuilt', 'requeued', 'discarded')",
                        name="dead_letter_resolution"),
        ForeignKeyConstraint(["ticket"], [f"{schema}.rebuild_ticket.ticket"], name="dead_letter_ticket"),
        # A repeat of a failed run finds the same events poison: one record each, counted, not doubled.
        Index("dead_letter_open", "scope", "projection", "tenant", "position", unique=True,
              postgresql_where=text("resolved_at IS NULL")),
        Index("dead_letter_stream", "scope", "projection", "tenant", "category", "stream",
              postgresql_where=text("resolved_at IS NULL")),
    )
    Table(
        "owed", meta,
        Column("id", BigInteger, Identity(always=True), primary_key=True),
        Column("ticket", Uuid, nullable=False),
        Column("kind", Text, nullable=False),
        Column("label", Text, nullable=False),
        Column("statement", Text, nullable=False),
        Column("due_at", _Time, nullable=False, server_default=func.now()),
        Column("done_at", _Time),
        Column("last_error", Text),
        CheckConstraint("kind IS NOT NULL AND kind IN ('validate-constraint', 'add-constraint', "
                        "'drop-retired-constraint', 'drop-retired')", name="owed_kind"),
        ForeignKeyConstraint(["ticket"], [f"{schema}.rebuild_ticket.ticket"], name="owed_ticket"),
        Index("owed_open", "due_at", postgresql_where=text("done_at IS NULL")),
    )
    Table(
        "follower_checkpoint", meta,
        Column("scope", Text, primary_key=True, server_default=text("''")),
        Column("projection", Text, primary_key=True),
        Column("position", BigInteger, nullable=False, server_default=text("0")),
        Column("updated_at", _Time, nullable=False, server_default=func.now()),
        CheckConstraint("position >= 0", name="follower_checkpoint_position"),
    )
    return meta
