"""Roles that may not create schemas: the shadow stands in schemas that `install --work-schemas` has made."""

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from rebuilder import errors
from rebuilder.store.install import install
from tests.bank import append, assert_equal_to_replay, make_rebuilder, make_schema

NAME = "account_balance"


@pytest.fixture
def clerk(dsn, connect, role):
    """The bank belongs to a role that may not create schemas in the database."""
    clerk = role()
    with connect(autocommit=True) as admin:
        make_schema(admin)
        append(admin, "a", "AccountOpened", {"owner": "ada"})
        append(admin, "a", "Deposited", {"amount": 5})
        for (table,) in admin.execute("SELECT oid::regclass::text FROM pg_class WHERE relkind = 'r'"
                                      " AND relnamespace = 'public'::regnamespace").fetchall():
            admin.execute(f"ALTER TABLE {table} OWNER TO {clerk.name}")
        admin.execute(f"GRANT USAGE, CREATE ON SCHEMA public TO {clerk.name}")
        admin.execute(f"GRANT USAGE ON SCHEMA rebuilder TO {clerk.name}")
        admin.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA rebuilder TO {clerk.name}")
        admin.execute(f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA rebuilder TO {clerk.name}")
        admin.execute(f"REVOKE CREATE ON DATABASE {conninfo_to_dict(dsn)['dbname']} FROM PUBLIC")
    return clerk


def schemas(connection):
    return {name for (name,) in connection.execute(
        "SELECT nspname FROM pg_namespace WHERE nspname LIKE 'rebuilder\\_%'").fetchall()}


def test_a_role_without_create_on_the_database_is_told_both_ways_out(dsn, clerk, connect):
    """Without the right and without a ready-made schema the run is refused before the replay, with both remedies."""
    with pytest.raises(errors.MissingPrivilege) as refused:
        make_rebuilder(clerk.dsn(dsn)).rebuild(NAME)
    assert "GRANT CREATE ON DATABASE" in refused.value.hint
    assert "--work-schemas" in refused.value.hint


def test_with_ready_made_schemas_it_rebuilds_again_and_again(dsn, clerk, connect):
    """The shadow stands in one, the retired table in another; neither schema is dropped, and both serve again."""
    install(dsn, work_schemas=2, to=clerk.name)
    with connect(autocommit=True) as admin:
        before = schemas(admin)
        rebuilder = make_rebuilder(clerk.dsn(dsn))
        for _ in range(3):
            report = rebuilder.rebuild(NAME)
            assert report.retired[0].startswith("rebuilder_retired_ready_")
            assert_equal_to_replay(admin)
        rebuilder.cleanup(all_kept=True)
        assert schemas(admin) == before
        left = admin.execute("SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
                             " WHERE n.nspname LIKE 'rebuilder\\_%\\_ready\\_%'").fetchone()
        assert left == (0,)


def test_a_kept_retired_table_keeps_its_schema_from_the_next_run(dsn, clerk, connect):
    """With one pair the second rebuild is refused while the first one's retired table is kept, not mixed with it."""
    install(dsn, work_schemas=1, to=clerk.name)
    rebuilder = make_rebuilder(clerk.dsn(dsn))
    rebuilder.rebuild(NAME)
    with pytest.raises(errors.MissingPrivilege, match="rebuilder_retired_ready_"):
        rebuilder.rebuild(NAME)
    rebuilder.cleanup(all_kept=True)
    rebuilder.rebuild(NAME)
    with psycopg.connect(dsn) as admin:
        assert_equal_to_replay(admin)
