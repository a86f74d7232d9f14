"""The lifecycle: requests, log incarnations and their segments, documents, snapshots, archive manifests."""

from __future__ import annotations

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

STATEMENTS = [
    """CREATE TABLE {schema}.source_generation (
    generation UUID DEFAULT gen_random_uuid() NOT NULL,
    log TEXT NOT NULL,
    reason TEXT,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
    retired_at TIMESTAMP WITH TIME ZONE,
    PRIMARY KEY (generation),
    CONSTRAINT source_generation_log CHECK (octet_length(log) >= 1),
    CONSTRAINT source_generation_retired CHECK (retired_at IS NULL OR retired_at >= created_at)
)""",
    """CREATE UNIQUE INDEX source_generation_one_active ON {schema}.source_generation (log) WHERE retired_at IS NULL""",
    """CREATE TABLE {schema}.log_segment (
    source_generation UUID NOT NULL,
    first_position BIGINT NOT NULL,
    last_position BIGINT NOT NULL,
    events BIGINT NOT NULL,
    digest BYTEA NOT NULL,
    closed_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
    PRIMARY KEY (source_generation, first_position),
    CONSTRAINT log_segment_range CHECK (first_position >= 1 AND last_position >= first_position AND events >= 0),
    CONSTRAINT log_segment_digest CHECK (octet_length(digest) = 32),
    CONSTRAINT log_segment_source FOREIGN KEY(source_generation) REFERENCES {schema}.source_generation (generation)
)""",
    """CREATE TABLE {schema}.invalidation (
    invalidation UUID NOT NULL,
    scope TEXT DEFAULT '' NOT NULL,
    projection TEXT NOT NULL,
    generation BIGINT NOT NULL,
    reason TEXT NOT NULL,
    note TEXT,
    actor TEXT DEFAULT current_user NOT NULL,
    requested_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
    answered_by UUID,
    answered_at TIMESTAMP WITH TIME ZONE,
    PRIMARY KEY (invalidation),
    CONSTRAINT invalidation_reason CHECK ({reasons}),
    CONSTRAINT invalidation_generation CHECK (generation >= 0),
    CONSTRAINT invalidation_note CHECK (note IS NULL OR octet_length(note) BETWEEN 1 AND 2000),
    CONSTRAINT invalidation_answer CHECK (num_nonnulls(answered_by, answered_at) IN (0, 2)),
    CONSTRAINT invalidation_projection FOREIGN KEY(scope, projection) REFERENCES {schema}.projection_state (scope, projection),
    CONSTRAINT invalidation_ticket FOREIGN KEY(answered_by) REFERENCES {schema}.rebuild_ticket (ticket)
)""",
    """CREATE INDEX invalidation_pending ON {schema}.invalidation (scope, projection) WHERE answered_by IS NULL""",
    """CREATE FUNCTION {schema}.invalidation_stays() RETURNS trigger LANGUAGE plpgsql AS $body$
BEGIN
    IF TG_OP = 'UPDATE' AND OLD.answered_by IS NULL AND NEW.answered_by IS NOT NULL
       AND (NEW.invalidation, NEW.scope, NEW.projection, NEW.generation, NEW.reason, NEW.actor, NEW.requested_at)
           = (OLD.invalidation, OLD.scope, OLD.projection, OLD.generation, OLD.reason, OLD.actor, OLD.requested_at)
       AND NEW.note IS NOT DISTINCT FROM OLD.note THEN
        RETURN NEW;
    END IF;
    RAISE EXCEPTION 'requests are append-only' USING ERRCODE = 'integrity_constraint_violation';
END
$body$""",
    """CREATE TRIGGER invalidation_stays BEFORE UPDATE OR DELETE ON {schema}.invalidation
    FOR EACH ROW EXECUTE FUNCTION {schema}.invalidation_stays()""",
    """CREATE TRIGGER invalidation_stays_whole BEFORE TRUNCATE ON {schema}.invalidation
    FOR EACH STATEMENT EXECUTE FUNCTION {schema}.invalidation_stays()""",
    """ALTER TABLE {schema}.projection_state ADD COLUMN source_generation UUID, ADD COLUMN recipe TEXT""",
    """ALTER TABLE {schema}.projection_state ADD CONSTRAINT projection_state_source
    FOREIGN KEY(source_generation) REFERENCES {schema}.source_generation (generation)""",
    """ALTER TABLE {schema}.rebuild_ticket
    ADD COLUMN driver TEXT DEFAULT 'engine' NOT NULL,
    ADD COLUMN invalidation UUID,
    ADD COLUMN source_generation UUID,
    ADD COLUMN source_position BIGINT,
    ADD COLUMN source_events BIGINT,
    ADD COLUMN source_tier TEXT,
    ADD COLUMN source_digest TEXT,
    ADD COLUMN checkpoint_position BIGINT,
    ADD COLUMN checkpoint_events BIGINT,
    ADD COLUMN checkpoint_rows BIGINT,
    ADD COLUMN checkpoint_at TIMESTAMP WITH TIME ZONE""",
    """ALTER TABLE {schema}.rebuild_ticket
    ADD CONSTRAINT rebuild_ticket_driver CHECK (driver IN ('engine', 'store')),
    ADD CONSTRAINT rebuild_ticket_source CHECK (num_nonnulls(source_generation, source_position, source_events, source_tier) IN (0, 4) AND (source_digest IS NULL OR source_tier IS NOT NULL)),
    ADD CONSTRAINT rebuild_ticket_source_tier CHECK (source_tier IS NULL OR source_tier IN ('count', 'sum64', 'sha256')),
    ADD CONSTRAINT rebuild_ticket_source_numbers CHECK (coalesce(source_position, 0) >= 0 AND coalesce(source_events, 0) >= 0),
    ADD CONSTRAINT rebuild_ticket_checkpoint CHECK (num_nonnulls(checkpoint_position, checkpoint_events, checkpoint_at) IN (0, 3) AND (checkpoint_rows IS NULL OR checkpoint_at IS NOT NULL)),
    ADD CONSTRAINT rebuild_ticket_checkpoint_numbers CHECK (coalesce(checkpoint_position, 0) >= 0 AND coalesce(checkpoint_events, 0) >= 0 AND coalesce(checkpoint_rows, 0) >= 0),
    ADD CONSTRAINT rebuild_ticket_invalidation FOREIGN KEY(invalidation) REFERENCES {schema}.invalidation (invalidation),
    ADD CONSTRAINT rebuild_ticket_source_generation FOREIGN KEY(source_generation) REFERENCES {schema}.source_generation (generation)""",
    """ALTER TABLE {schema}.follower_checkpoint
    ADD COLUMN generation BIGINT,
    ADD COLUMN source_generation UUID,
    ADD COLUMN events_applied BIGINT DEFAULT 0 NOT NULL,
    ADD COLUMN rows BIGINT""",
    """ALTER TABLE {schema}.follower_checkpoint
    ADD CONSTRAINT follower_checkpoint_numbers CHECK (events_applied >= 0 AND coalesce(rows, 0) >= 0 AND coalesce(generation, 1) >= 1),
    ADD CONSTRAINT follower_checkpoint_source FOREIGN KEY(source_generation) REFERENCES {schema}.source_generation (generation)""",
    """CREATE TABLE {schema}.document (
    scope TEXT DEFAULT '' NOT NULL,
    projection TEXT NOT NULL,
    generation BIGINT NOT NULL,
    key TEXT COLLATE "C" NOT NULL,
    body JSONB,
    bytes BYTEA,
    digest BYTEA NOT NULL,
    updated_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
    PRIMARY KEY (scope, projection, generation, key),
    CONSTRAINT document_projection FOREIGN KEY(scope, projection) REFERENCES {schema}.projection_state (scope, projection),
    CONSTRAINT document_generation CHECK (generation >= 1),
    CONSTRAINT document_key CHECK (octet_length(key) BETWEEN 1 AND 512),
    CONSTRAINT document_kind CHECK (num_nonnulls(body, bytes) = 1),
    CONSTRAINT document_size CHECK (coalesce(octet_length(bytes), octet_length(body::text), 0) BETWEEN 1 AND 16777216),
    CONSTRAINT document_digest CHECK (coalesce(digest = {document}, false))
)""",
    """CREATE TABLE {schema}.snapshot (
    scope TEXT DEFAULT '' NOT NULL,
    projection TEXT NOT NULL,
    snapshot UUID NOT NULL,
    generation BIGINT NOT NULL,
    body JSONB,
    bytes BYTEA,
    digest BYTEA NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
    PRIMARY KEY (scope, projection, snapshot),
    CONSTRAINT snapshot_projection FOREIGN KEY(scope, projection) REFERENCES {schema}.projection_state (scope, projection),
    CONSTRAINT snapshot_generation CHECK (generation >= 1),
    CONSTRAINT snapshot_kind CHECK (num_nonnulls(body, bytes) = 1),
    CONSTRAINT snapshot_size CHECK (coalesce(octet_length(bytes), octet_length(body::text), 0) BETWEEN 1 AND 16777216),
    CONSTRAINT snapshot_digest CHECK (coalesce(digest = {snapshot}, false))
)""",
    """CREATE INDEX snapshot_age ON {schema}.snapshot (scope, projection, created_at)""",
    """CREATE FUNCTION {schema}.snapshot_stays() RETURNS trigger LANGUAGE plpgsql AS $body$
BEGIN
    RAISE EXCEPTION 'snapshots are immutable' USING ERRCODE = 'integrity_constraint_violation';
END
$body$""",
    """CREATE TRIGGER snapshot_stays BEFORE UPDATE ON {schema}.snapshot
    FOR EACH ROW EXECUTE FUNCTION {schema}.snapshot_stays()""",
    """CREATE TRIGGER snapshot_stays_whole BEFORE TRUNCATE ON {schema}.snapshot
    FOR EACH STATEMENT EXECUTE FUNCTION {schema}.snapshot_stays()""",
    """CREATE TABLE {schema}.event_index_manifest (
    manifest UUID NOT NULL,
    source_generation UUID NOT NULL,
    total_events BIGINT NOT NULL,
    target_shard_size INTEGER NOT NULL,
    first_position BIGINT NOT NULL,
    last_position BIGINT NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
    PRIMARY KEY (manifest),
    CONSTRAINT event_index_manifest_numbers CHECK (total_events >= 1 AND target_shard_size >= 1),
    CONSTRAINT event_index_manifest_range CHECK (first_position >= 1 AND last_position >= first_position),
    CONSTRAINT event_index_manifest_source FOREIGN KEY(source_generation) REFERENCES {schema}.source_generation (generation)
)""",
    """CREATE TABLE {schema}.event_index_shard (
    manifest UUID NOT NULL,
    shard TEXT COLLATE "C" NOT NULL,
    ordinal INTEGER NOT NULL,
    path TEXT COLLATE "C" NOT NULL,
    events BIGINT NOT NULL,
    first_position BIGINT NOT NULL,
    last_position BIGINT NOT NULL,
    first_recorded_at TIMESTAMP WITH TIME ZONE,
    last_recorded_at TIMESTAMP WITH TIME ZONE,
    digest BYTEA NOT NULL,
    PRIMARY KEY (manifest, shard),
    CONSTRAINT event_index_shard_manifest FOREIGN KEY(manifest) REFERENCES {schema}.event_index_manifest (manifest) ON DELETE CASCADE,
    CONSTRAINT event_index_shard_ordinal UNIQUE (manifest, ordinal),
    CONSTRAINT event_index_shard_path UNIQUE (manifest, path),
    CONSTRAINT event_index_shard_name CHECK (octet_length(shard) BETWEEN 1 AND 128 AND octet_length(path) BETWEEN 1 AND 512),
    CONSTRAINT event_index_shard_numbers CHECK (ordinal >= 0 AND events >= 1),
    CONSTRAINT event_index_shard_range CHECK (first_position >= 1 AND last_position >= first_position),
    CONSTRAINT event_index_shard_times CHECK (num_nonnulls(first_recorded_at, last_recorded_at) IN (0, 2)),
    CONSTRAINT event_index_shard_digest CHECK (octet_length(digest) = 32)
)""",
    """CREATE TABLE {schema}.event_index_checkpoint (
    ticket UUID NOT NULL,
    manifest UUID NOT NULL,
    shard TEXT COLLATE "C" NOT NULL,
    position BIGINT NOT NULL,
    events BIGINT NOT NULL,
    updated_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
    PRIMARY KEY (ticket, manifest, shard),
    CONSTRAINT event_index_checkpoint_ticket FOREIGN KEY(ticket) REFERENCES {schema}.rebuild_ticket (ticket) ON DELETE CASCADE,
    CONSTRAINT event_index_checkpoint_shard FOREIGN KEY(manifest, shard) REFERENCES {schema}.event_index_shard (manifest, shard) ON DELETE CASCADE,
    CONSTRAINT event_index_checkpoint_numbers CHECK (position >= 1 AND events >= 0)
)""",
    """CREATE VIEW {schema}.projection_status AS
SELECT s.scope, s.projection, s.generation, s.version, s.source_generation,
       CASE WHEN t.ticket IS NOT NULL THEN 'rebuilding'
            WHEN s.generation > 0 AND p.requests > 0 THEN 'invalidated' ELSE s.health END AS health,
       t.ticket AS active_ticket,
       CASE WHEN c.generation = s.generation THEN c.position ELSE s.position END AS checkpoint_position,
       CASE WHEN c.generation = s.generation THEN c.source_generation ELSE s.source_generation END AS checkpoint_source,
       CASE WHEN c.generation = s.generation THEN c.events_applied END AS checkpoint_events,
       CASE WHEN c.generation = s.generation THEN c.rows END AS checkpoint_rows,
       CASE WHEN c.generation = s.generation THEN c.updated_at ELSE s.rebuilt_at END AS checkpoint_at,
       p.requests AS pending_requests, s.last_failure, s.rebuilt_at
FROM {schema}.projection_state s
LEFT JOIN {schema}.rebuild_ticket t
    ON t.scope = s.scope AND t.projection = s.projection AND t.stage IN ('requested', 'running')
LEFT JOIN {schema}.follower_checkpoint c ON c.scope = s.scope AND c.projection = s.projection
CROSS JOIN LATERAL (SELECT count(*) AS requests FROM {schema}.invalidation i
                    WHERE i.scope = s.scope AND i.projection = s.projection AND i.answered_by IS NULL) p""",
]
REASONS = ("reason IS NOT NULL AND reason IN ('operator_requested', 'recipe_changed', 'shape_changed', "
           "'source_changed', 'integrity_failure')")
CONTENT = "coalesce(bytes, convert_to(body::text, 'UTF8'))"


def bound(column: str) -> str:
    """The digest binds a value to its place, so that swapped rows don't verify."""
    return (f"sha256(convert_to(octet_length(projection) || ':' || projection || generation || ':' || "
            f"octet_length({column}) || ':' || {column}, 'UTF8') || {CONTENT})")


def quoted(schema: str) -> str:
    # A colon would begin a parameter of SQLAlchemy's.
    return '"' + schema.replace('"', '""').replace(":", r"\:") + '"'


def upgrade(schema: str) -> None:
    for statement in STATEMENTS:
        text = statement.replace("{reasons}", REASONS).replace("{document}", bound("key"))
        text = text.replace("{snapshot}", bound("snapshot::text"))
        # Casts and texts hold colons of their own; those of the schema's name are escaped already.
        op.execute(text.replace(":", r"\:").replace("{schema}", quoted(schema)))


def downgrade(schema: str) -> None:
    name = quoted(schema)
    op.execute(f"DROP VIEW {name}.projection_status")
    for table in ("event_index_checkpoint", "event_index_shard", "event_index_manifest", "snapshot", "document"):
        op.execute(f"DROP TABLE {name}.{table}")
    columns = {
        "follower_checkpoint": ("generation", "source_generation", "events_applied", "rows"),
        "rebuild_ticket": ("driver", "invalidation", "source_generation", "source_position", "source_events",
                           "source_tier", "source_digest", "checkpoint_position", "checkpoint_events",
                           "checkpoint_rows", "checkpoint_at"),
        "projection_state": ("source_generation", "recipe"),
    }
    for table, gone in columns.items():
        op.execute(f"ALTER TABLE {name}.{table} " + ", ".join(f"DROP COLUMN {column}" for column in gone))
    for table in ("invalidation", "log_segment", "source_generation"):
        op.execute(f"DROP TABLE {name}.{table}")
    for function in ("invalidation_stays", "snapshot_stays"):
        op.execute(f"DROP FUNCTION {name}.{function}()")
