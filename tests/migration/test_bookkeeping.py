"""The bookkeeping's revisions: run, printed, repeated, taken back, and compared with the metadata in the code."""

import itertools
import os
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
import sqlalchemy
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from psycopg import sql

from rebuilder import Settings
from rebuilder.errors import MissingPrivilege
from rebuilder.store.install import _config, install, install_sql
from rebuilder.store.schema import metadata
from tests import servers
from tests.bank import append_many, assert_equal_to_replay, make_rebuilder, make_schema
from tests.fix_db import url
from tests.fix_threads import wait_until

ROOT = Path(__file__).resolve().parents[2]
ODD = 'books "of" the :100% bank'

COLUMNS = """
SELECT c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity,
       pg_get_expr(d.adbin, d.adrelid)
FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
LEFT JOIN pg_attrdef d ON (d.adrelid, d.adnum) = (c.oid, a.attnum)
WHERE c.relnamespace = %(schema)s::regnamespace AND c.relkind = 'r' AND a.attnum > 0 AND NOT a.attisdropped
"""
CONSTRAINTS = """
SELECT conrelid::regclass::text, conname, contype, pg_get_constraintdef(oid) FROM pg_constraint
WHERE connamespace = %(schema)s::regnamespace
"""
CHECKS = """
SELECT c.conname, pg_get_expr(c.conbin, c.conrelid), array_agg(a.attname::text),
       array_agg(format_type(a.atttypid, a.atttypmod)), array_agg(a.attnotnull)
FROM pg_constraint c JOIN pg_attribute a ON a.attrelid = c.conrelid AND a.attnum = ANY (c.conkey)
WHERE c.contype = 'c' AND c.connamespace = 'rebuilder'::regnamespace GROUP BY c.oid
"""
INDEXES = "SELECT tablename, indexname, indexdef FROM pg_indexes WHERE schemaname = %(name)s"


def engine(dsn):
    return sqlalchemy.create_engine(
        url(dsn).replace("postgresql:", "postgresql+psycopg:", 1), poolclass=sqlalchemy.pool.NullPool)


def definition(connect, dsn, schema="rebuilder"):
    """All that the bookkeeping is made of, but for Alembic's own table and the schema's name."""
    connection = connect(dsn, autocommit=True)
    (quoted,) = connection.execute("SELECT quote_ident(%s)", (schema,)).fetchone()
    parts = [connection.execute(query, {"schema": quoted, "name": schema}).fetchall()
             for query in (COLUMNS, CONSTRAINTS, INDEXES)]
    plain = [sorted(tuple(str(cell).replace(f"{quoted}.", "") for cell in row) for row in part) for part in parts]
    return [[row for row in part if "alembic_version" not in row[0]] for part in plain]


# --- the metadata and the revisions ----------------------------------------------------------------------------------


def test_the_metadata_is_what_the_revisions_make(dsn):
    """Alembic finds nothing to do between the migrated database and `store/schema.py`: tables, columns, types,
    defaults, indexes, keys.
    """
    with engine(dsn).connect() as connection:
        context = MigrationContext.configure(connection, opts={
            "include_schemas": True, "compare_type": True, "compare_server_default": True,
            "version_table_schema": "rebuilder",
            "include_name": lambda name, kind, parents: kind != "schema" or name == "rebuilder"})
        assert compare_metadata(context, metadata()) == []


def test_a_database_made_from_the_metadata_is_the_same(dsn, bare_dsn, connect):
    """What Alembic does not compare is the same too: the text of every constraint, index and default."""
    with engine(bare_dsn).begin() as connection:
        connection.execute(sqlalchemy.schema.CreateSchema("rebuilder"))
        metadata().create_all(connection)
    made, migrated = definition(connect, bare_dsn), definition(connect, dsn)
    assert made == migrated
    assert sum(kind == "c" for _, _, kind, _ in migrated[1]) > 15


# --- install ---------------------------------------------------------------------------------------------------------


def test_installing_again_changes_nothing(dsn, connect):
    """A deploy may call it every time; what is recorded stays."""
    db = connect(autocommit=True)
    db.execute("INSERT INTO rebuilder.projection_state (projection) VALUES ('account_balance')")
    before = definition(connect, dsn)
    install(dsn)
    assert definition(connect, dsn) == before
    assert db.execute("SELECT count(*) FROM rebuilder.projection_state").fetchone() == (1,)


def test_two_installations_at_once_wait_for_each_other(bare_dsn, connect, spawn):
    """Two deploys that start together both succeed: one at a time looks and creates."""
    gate = connect(bare_dsn)
    gate.execute("SELECT pg_advisory_xact_lock(hashtext('rebuilder install rebuilder')::bigint)")
    watcher = connect(bare_dsn, autocommit=True)
    both = [spawn(install, bare_dsn) for _ in range(2)]
    wait_until(lambda: watcher.execute(
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())").fetchone() == (2,),
        what="both to wait for their turn")
    gate.commit()
    for each in both:
        each.result(30)
    assert watcher.execute("SELECT version_num FROM rebuilder.alembic_version").fetchall() == [("0002",)]


def test_many_installations_at_once_all_succeed(bare_dsn, spawn, connect, dsn):
    """Without a gate as well: nobody meets a schema or a table that another is just making."""
    for each in [spawn(install, bare_dsn) for _ in range(6)]:
        each.result(30)
    assert definition(connect, bare_dsn) == definition(connect, dsn)


def test_the_printed_statements_make_the_same(dsn, bare_dsn, connect):
    """What `install --sql` prints can be run by psql, leaves the same schema, and a later install finds it done."""
    psql(bare_dsn, install_sql())
    assert definition(connect, bare_dsn) == definition(connect, dsn)
    install(bare_dsn)
    assert definition(connect, bare_dsn) == definition(connect, dsn)


def psql(dsn, script):
    installation = servers.embedded()
    done = subprocess.run(
        [installation.root / "bin" / "psql", "--no-psqlrc", "--set=ON_ERROR_STOP=1", "--quiet", "--dbname", dsn],
        input=script, capture_output=True, text=True, check=False, env=installation.environment())
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["books", "Books", ODD])
def test_the_schema_may_have_another_name(bare_dsn, connect, name):
    """Installed or printed, however odd its name: the same tables, and a rebuild that finds them."""
    psql(bare_dsn, install_sql(Settings(schema=name)))
    install(bare_dsn, Settings(schema=name))
    install(bare_dsn, Settings(schema="other"))
    assert definition(connect, bare_dsn, name) == definition(connect, bare_dsn, "other")
    db = connect(bare_dsn, autocommit=True)
    make_schema(db)
    append_many(db, 20)
    make_rebuilder(bare_dsn, settings={"schema": name}).rebuild("account_balance")
    assert_equal_to_replay(db)
    tickets = sql.SQL("SELECT count(*) FROM {}").format
    assert db.execute(tickets(sql.Identifier(name, "rebuild_ticket"))).fetchone() == (1,)
    assert db.execute(tickets(sql.Identifier("other", "rebuild_ticket"))).fetchone() == (0,)


def test_a_role_that_may_not_create_the_schema_is_told_so(bare_dsn, role):
    """An error of ours with a hint, and nothing half made."""
    with pytest.raises(MissingPrivilege) as caught:
        install(role(hint="poor").dsn(bare_dsn))
    assert caught.value.hint


def test_a_schema_that_somebody_made_beforehand_is_used(bare_dsn, connect, role, dsn):
    """A role that owns the schema needs no right to create one in the database."""
    owner = role(hint="owner")
    connect(bare_dsn, autocommit=True).execute(f"CREATE SCHEMA rebuilder AUTHORIZATION {owner.name}")
    install(owner.dsn(bare_dsn))
    assert definition(connect, bare_dsn) == definition(connect, dsn)


def test_the_revisions_can_be_taken_back(dsn, connect, bare_dsn):
    """Down to nothing and up again: nothing is left in between, and the same is there afterwards."""
    before = definition(connect, dsn)
    config = _config("rebuilder")
    with engine(dsn).begin() as connection:
        config.attributes["connection"] = connection
        command.downgrade(config, "base")
    assert definition(connect, dsn) == [[], [], []]
    install(dsn)
    assert definition(connect, dsn) == before


def test_alembic_s_own_command_runs_the_same_revisions(bare_dsn, dsn, connect):
    """Whoever works on the bookkeeping names the database by REBUILDER_DSN, as everywhere else."""
    for given in (bare_dsn, url(bare_dsn)):
        done = subprocess.run(
            [Path(sys.executable).with_name("alembic"), "upgrade", "head"], cwd=ROOT, capture_output=True, text=True,
            check=False, env={**os.environ, "REBUILDER_DSN": given})
        assert done.returncode == 0, done.stderr
    assert definition(connect, bare_dsn) == definition(connect, dsn)


# --- what the tables do not accept -----------------------------------------------------------------------------------


def test_no_check_lets_a_null_through(dsn, connect):
    """A CHECK whose answer is NULL passes: with any of its nullable columns empty each one says true or false."""
    db = connect(autocommit=True)
    values = {"text": "x", "bigint": 1, "integer": 1, "timestamp with time zone": "now", "jsonb": "{}",
              "uuid": None, "bytea": b"x"}
    checks = db.execute(CHECKS).fetchall()
    assert len(checks) > 15
    open_ones = []
    for name, expression, columns, types, not_null in checks:
        nullable = [column for column, never in zip(columns, not_null, strict=True) if not never]
        for size in range(len(nullable) + 1):
            for empty in itertools.combinations(nullable, size):
                row = sql.SQL(", ").join(
                    sql.SQL("{}::{} AS {}").format(sql.Literal(None if column in empty else values[kind]),
                                                   sql.SQL(kind), sql.Identifier(column))
                    for column, kind in zip(columns, types, strict=True))
                answer = db.execute(sql.SQL("SELECT {} FROM (SELECT {}) AS row").format(sql.SQL(expression), row))
                if answer.fetchone() == (None,):
                    open_ones.append((name, empty))
    assert open_ones == []


def ticket(columns, values, generation=1):
    return (f"INSERT INTO rebuilder.rebuild_ticket (ticket, projection, generation, version, host, pid, {columns})"
            f" VALUES (gen_random_uuid(), 'a', {generation}, 1, 'here', 1, {values})")


def state(columns, values):
    return f"INSERT INTO rebuilder.projection_state ({columns}) VALUES ({values})"


BUILT = "projection, generation, next_generation, version, position, rebuilt_at"


@pytest.mark.parametrize("statement, constraint", [
    (ticket("stage, failure_code", "'failed', 'x'"), "rebuild_ticket_finished"),
    (ticket("stage, finished_at", "'failed', now()"), "rebuild_ticket_failure"),
    (ticket("stage, finished_at", "'completed', now()"), "rebuild_ticket_report"),
    (ticket("stage, failure_code", "'running', 'x'"), "rebuild_ticket_failure"),
    (ticket("stage", "'paused'"), "rebuild_ticket_stage"),
    (ticket("stage", "NULL"), None),
    (ticket("stage", "'running'", generation=0), "rebuild_ticket_numbers"),
    (state("projection, health", "'a', 'fine'"), "projection_state_health"),
    (state("projection, health", "'a', NULL"), None),
    (state("projection", "''"), "projection_state_name"),
    (state("projection", "repeat('a', 129)"), "projection_state_name"),
    (state("projection, generation, next_generation", "'a', 1, 2"), "projection_state_built"),
    (state(BUILT, "'a', 1, 2, 1, 5, NULL"), "projection_state_built"),
    (state(BUILT, "'a', 0, 1, 1, 5, now()"), "projection_state_built"),
    (state(BUILT, "'a', 2, 2, 1, 5, now()"), "projection_state_generation"),
    (state(BUILT, "'a', 1, 2, 0, 5, now()"), "projection_state_version"),
    ("INSERT INTO rebuilder.follower_checkpoint (projection, position) VALUES ('a', -1)",
     "follower_checkpoint_position"),
    ("INSERT INTO rebuilder.owed (ticket, kind, label, statement) VALUES (gen_random_uuid(), 'drop-live', 'a', 'b')",
     "owed_kind"),
])
def test_a_state_that_can_not_be_is_refused_by_the_database(dsn, connect, statement, constraint):
    """Whoever writes it: the invariants are constraints, and named."""
    with pytest.raises(psycopg.IntegrityError) as caught:
        connect(autocommit=True).execute(statement)
    assert caught.value.diag.constraint_name == constraint


def test_a_projection_has_one_open_ticket_at_most(dsn, connect):
    """Two runs can't both be the one; a closed ticket stands in nobody's way."""
    db = connect(autocommit=True)
    db.execute(ticket("stage, finished_at, failure_code", "'failed', now(), 'x'", 1))
    db.execute(ticket("stage", "'running'", 2))
    with pytest.raises(psycopg.errors.UniqueViolation) as caught:
        db.execute(ticket("stage", "'requested'", 3))
    assert caught.value.diag.constraint_name == "rebuild_ticket_one_open"
