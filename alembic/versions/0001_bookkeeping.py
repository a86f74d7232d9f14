"""The bookkeeping of rebuilds: states, tickets and their progress, dead letters, owed work, followers' checkpoints."""

from __future__ import annotations

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

TABLES = """
CREATE TABLE {schema}.follower_checkpoint (
    scope TEXT DEFAULT '' NOT NULL,
    projection TEXT NOT NULL,
    position BIGINT DEFAULT 0 NOT NULL,
    updated_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    PRIMARY KEY (scope, projection),
    CONSTRAINT follower_checkpoint_position CHECK (position >= 0)
);

CREATE TABLE {schema}.projection_state (
    scope TEXT DEFAULT '' NOT NULL,
    projection TEXT NOT NULL,
    health TEXT DEFAULT 'never_built' NOT NULL,
    generation BIGINT DEFAULT 0 NOT NULL,
    next_generation BIGINT DEFAULT 1 NOT NULL,
    version INTEGER,
    position BIGINT,
    fingerprint TEXT,
    rebuilt_at TIMESTAMP WITH TIME ZONE,
    last_failure TEXT,
    updated_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    PRIMARY KEY (scope, projection),
    CONSTRAINT projection_state_health CHECK (health IS NOT NULL AND health IN ('never_built', 'ready', 'invalidated', 'rebuilding', 'failed')),
    CONSTRAINT projection_state_name CHECK (octet_length(projection) BETWEEN 1 AND 128),
    CONSTRAINT projection_state_generation CHECK (generation >= 0 AND next_generation > generation),
    CONSTRAINT projection_state_version CHECK (version IS NULL OR version >= 1),
    CONSTRAINT projection_state_built CHECK (num_nulls(version, position, rebuilt_at) = CASE WHEN generation = 0 THEN 3 ELSE 0 END)
);

CREATE TABLE {schema}.rebuild_ticket (
    ticket UUID NOT NULL,
    scope TEXT DEFAULT '' NOT NULL,
    projection TEXT NOT NULL,
    generation BIGINT NOT NULL,
    version INTEGER NOT NULL,
    revision BIGINT DEFAULT 1 NOT NULL,
    stage TEXT DEFAULT 'requested' NOT NULL,
    reason TEXT DEFAULT 'operator_requested' NOT NULL,
    note TEXT,
    actor TEXT DEFAULT current_user NOT NULL,
    host TEXT NOT NULL,
    pid INTEGER NOT NULL,
    backend_pid INTEGER,
    requested_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    started_at TIMESTAMP WITH TIME ZONE,
    finished_at TIMESTAMP WITH TIME ZONE,
    updated_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    failure_code TEXT,
    failure JSONB,
    report JSONB,
    PRIMARY KEY (ticket),
    CONSTRAINT rebuild_ticket_stage CHECK (stage IS NOT NULL AND stage IN ('requested', 'running', 'completed', 'failed', 'cancelled')),
    CONSTRAINT rebuild_ticket_numbers CHECK (generation >= 1 AND version >= 1 AND revision >= 1),
    CONSTRAINT rebuild_ticket_finished CHECK ((finished_at IS NOT NULL) = (stage IN ('completed', 'failed', 'cancelled'))),
    CONSTRAINT rebuild_ticket_failure CHECK ((failure_code IS NOT NULL) = (stage IN ('failed', 'cancelled'))),
    CONSTRAINT rebuild_ticket_report CHECK ((report IS NOT NULL) = (stage = 'completed')),
    CONSTRAINT rebuild_ticket_generation UNIQUE (scope, projection, generation)
);

CREATE UNIQUE INDEX rebuild_ticket_one_open ON {schema}.rebuild_ticket (scope, projection) WHERE stage IN ('requested', 'running');

CREATE TABLE {schema}.dead_letter (
    id BIGINT GENERATED ALWAYS AS IDENTITY,
    scope TEXT DEFAULT '' NOT NULL,
    projection TEXT NOT NULL,
    position BIGINT NOT NULL,
    tenant TEXT DEFAULT '' NOT NULL,
    category TEXT DEFAULT '' NOT NULL,
    stream TEXT NOT NULL,
    stream_version BIGINT,
    type TEXT NOT NULL,
    cause TEXT NOT NULL,
    policy TEXT NOT NULL,
    error_class TEXT NOT NULL,
    sqlstate TEXT,
    message TEXT NOT NULL,
    traceback TEXT,
    data JSONB,
    ticket UUID NOT NULL,
    attempts INTEGER DEFAULT 1 NOT NULL,
    in_live BOOLEAN DEFAULT false NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    updated_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    resolved_at TIMESTAMP WITH TIME ZONE,
    resolution TEXT,
    PRIMARY KEY (id),
    CONSTRAINT dead_letter_cause CHECK (cause IS NOT NULL AND cause IN ('handler', 'upcaster', 'decode', 'stream')),
    CONSTRAINT dead_letter_policy CHECK (policy IS NOT NULL AND policy IN ('stream', 'event')),
    CONSTRAINT dead_letter_resolved CHECK ((resolved_at IS NULL) = (resolution IS NULL)),
    CONSTRAINT dead_letter_resolution CHECK (resolution IS NULL OR resolution IN ('rebuilt', 'requeued', 'discarded')),
    CONSTRAINT dead_letter_ticket FOREIGN KEY(ticket) REFERENCES {schema}.rebuild_ticket (ticket)
);

CREATE UNIQUE INDEX dead_letter_open ON {schema}.dead_letter (scope, projection, tenant, position) WHERE resolved_at IS NULL;

CREATE INDEX dead_letter_stream ON {schema}.dead_letter (scope, projection, tenant, category, stream) WHERE resolved_at IS NULL;

CREATE TABLE {schema}.owed (
    id BIGINT GENERATED ALWAYS AS IDENTITY,
    ticket UUID NOT NULL,
    kind TEXT NOT NULL,
    label TEXT NOT NULL,
    statement TEXT NOT NULL,
    due_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    done_at TIMESTAMP WITH TIME ZONE,
    last_error TEXT,
    PRIMARY KEY (id),
    CONSTRAINT owed_kind CHECK (kind IS NOT NULL AND kind IN ('validate-constraint', 'add-constraint', 'drop-retired-constraint', 'drop-retired')),
    CONSTRAINT owed_ticket FOREIGN KEY(ticket) REFERENCES {schema}.rebuild_ticket (ticket)
);

CREATE INDEX owed_open ON {schema}.owed (due_at) WHERE done_at IS NULL;

CREATE TABLE {schema}.ticket_progress (
    ticket UUID NOT NULL,
    phase TEXT NOT NULL,
    events_done BIGINT DEFAULT 0 NOT NULL,
    events_total BIGINT,
    position BIGINT,
    rate DOUBLE PRECISION,
    eta DOUBLE PRECISION,
    attempts INTEGER DEFAULT 0 NOT NULL,
    blockers JSONB DEFAULT '[]' NOT NULL,
    heartbeat_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
    cancel_requested_at TIMESTAMP WITH TIME ZONE,
    cancel_requested_by TEXT,
    PRIMARY KEY (ticket),
    CONSTRAINT ticket_progress_phase CHECK (phase IS NOT NULL AND phase IN ('lock state', 'build shadow', 'catch up', 'freeze', 'fence', 'drain', 'recheck', 'swap', 'finalize')),
    CONSTRAINT ticket_progress_numbers CHECK (events_done >= 0 AND attempts >= 0),
    CONSTRAINT ticket_progress_ticket FOREIGN KEY(ticket) REFERENCES {schema}.rebuild_ticket (ticket) ON DELETE CASCADE
);
"""


def quoted(schema: str) -> str:
    # A colon would begin a parameter of SQLAlchemy's.
    return '"' + schema.replace('"', '""').replace(":", r"\:") + '"'


def upgrade(schema: str) -> None:
    for statement in TABLES.replace("{schema}", quoted(schema)).split(";\n"):
        if statement.strip():
            op.execute(statement.strip().rstrip(";"))


def downgrade(schema: str) -> None:
    for table in ("follower_checkpoint", "owed", "dead_letter", "ticket_progress", "rebuild_ticket",
                  "projection_state"):
        op.execute(f"DROP TABLE {quoted(schema)}.{table}")
