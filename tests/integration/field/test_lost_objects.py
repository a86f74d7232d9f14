"""Field cases about what hangs off a read model and was lost in a swap: it is kept, or the run is refused by name.

The catalog's own matrices drive the swap alone; here everything goes through the whole engine.
"""

import psycopg
import pytest

from rebuilder import SqlHandlers
from rebuilder.errors import PreflightRefused
from tests.bank import (
    append,
    append_many,
    assert_equal_to_replay,
    make_handlers,
    make_projection,
    make_rebuilder,
    make_schema,
    rows_of,
)
from tests.integration.swap_driver import schema_of

NAME = "account_balance"
ODD = '"My Schema"."Weird ""name"""'


@pytest.fixture
def db(connect):
    connection = connect(autocommit=True)
    make_schema(connection)
    append_many(connection, 100)
    return connection


@pytest.fixture
def built(dsn, db):
    """The read model as a first rebuild makes it."""
    make_rebuilder(dsn).rebuild(NAME)
    return db


def spoil(db):
    """Make live wrong, so that a relation that still reads the old table shows it."""
    db.execute("UPDATE account_balance SET owner = 'spoilt', balance = -1")


def constraints(db, table=NAME):
    return db.execute("SELECT c.conname, c.contype::text, c.convalidated, pg_get_constraintdef(c.oid),"
                      " i.indisprimary, i.indisunique, i.indisvalid"
                      " FROM pg_constraint AS c LEFT JOIN pg_index AS i"
                      " ON i.indexrelid = c.conindid AND c.contype <> 'f'"
                      " WHERE c.conrelid = %s::regclass ORDER BY 1", (table,)).fetchall()


# --- views -----------------------------------------------------------------------------------------------------------


def test_views_show_the_new_rows_and_the_old_table_can_be_dropped(dsn, built):
    """A view, and a view over it, show the replayed rows at once; a swap by renaming leaves them on the old table
    (pg-osc#81, field case B33).
    """
    built.execute("CREATE VIEW v AS SELECT * FROM account_balance; CREATE VIEW w AS SELECT * FROM v WHERE changes > 0")
    spoil(built)
    with built.transaction(force_rollback=True):
        built.execute("CREATE TABLE fresh (LIKE account_balance); ALTER TABLE account_balance RENAME TO was;"
                      "ALTER TABLE fresh RENAME TO account_balance")
        assert len(rows_of(built)) == 0 < len(rows_of(built, "v"))
        with pytest.raises(psycopg.errors.DependentObjectsStillExist), built.transaction():
            built.execute("DROP TABLE was")
    before = built.execute("SELECT 'v'::regclass::oid, 'w'::regclass::oid").fetchone()
    report = make_rebuilder(dsn).rebuild(NAME)
    assert assert_equal_to_replay(built) > 5
    assert rows_of(built, "v") == rows_of(built, "w") == rows_of(built)
    assert built.execute("SELECT 'v'::regclass::oid, 'w'::regclass::oid").fetchone() == before
    built.execute(f"DROP TABLE {report.retired[0]}")
    assert_equal_to_replay(built, "w")


@pytest.mark.parametrize("statements, name", [
    ("CREATE MATERIALIZED VIEW kept AS SELECT * FROM account_balance", "kept"),
    ("CREATE VIEW whole AS SELECT b FROM account_balance AS b", "whole"),
    (("CREATE TABLE card (account text CONSTRAINT its_account REFERENCES account_balance);"
      "ALTER TABLE account_balance DISABLE TRIGGER ALL"), "its_account"),
    ("CREATE TABLE taken (was account_balance)", "taken"),
])
def test_what_cannot_be_kept_is_refused_by_name_before_anything_is_replayed(dsn, built, statements, name):
    """Nothing is dropped silently: the refusal comes before the first event and live is as it was
    (gh-ost#153, pg-osc#81, field case B33).
    """
    built.execute(statements)
    called, inner, handlers = [], make_handlers(), SqlHandlers()

    @handlers.on(*inner.types)
    def handler(event, target):
        called.append(event.position)
        inner.handler(event.type)(event, target)

    spoil(built)
    before = rows_of(built), constraints(built)
    with pytest.raises(PreflightRefused, match=name) as caught:
        make_rebuilder(dsn, make_projection(handlers=handlers)).rebuild(NAME)
    assert (caught.value.exit_code, called) == (3, [])
    assert (rows_of(built), constraints(built)) == before


def test_a_low_privilege_reader_sees_exactly_the_rows_it_saw(dsn, built, role, connect, server_version):
    """Through the table, a view, a view of the reader's own rights and another table's policy: a foreign tenant's row
    stays out of sight, and row security stays enabled and forced (pg-clone-schema#76 and #66).
    """
    reader = role(hint="reader")
    invoker = "WITH (security_invoker) " if server_version >= 150_000 else ""
    built.execute(
        "CREATE TABLE member (account text, who text); CREATE TABLE other (account text);"
        "INSERT INTO other SELECT id FROM account_balance;"
        f"INSERT INTO member SELECT id, '{reader.name}' FROM account_balance ORDER BY id LIMIT 3;"
        "ALTER TABLE account_balance ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;"
        "ALTER TABLE other ENABLE ROW LEVEL SECURITY;"
        "CREATE POLICY mine ON account_balance USING (id IN (SELECT account FROM member WHERE who = current_user));"
        "CREATE POLICY its ON other USING (account IN (SELECT b.id FROM account_balance AS b));"
        "CREATE VIEW v WITH (security_barrier) AS SELECT id, balance FROM account_balance WHERE id <> 'account-1';"
        f"CREATE VIEW i {invoker}AS SELECT id, balance FROM account_balance;"
        f"GRANT SELECT (id, balance) ON account_balance TO {reader.name};"
        f"GRANT SELECT ON member, other, v, i TO {reader.name}")
    mine = connect(reader.dsn(dsn), autocommit=True)
    questions = ["SELECT id, balance FROM account_balance ORDER BY 1", "SELECT * FROM v ORDER BY 1",
                 "SELECT * FROM i ORDER BY 1", "SELECT * FROM other ORDER BY 1"]
    before = [mine.execute(question).fetchall() for question in questions]
    total = len(rows_of(built))
    assert [len(found) for found in before] == [3, total - 1, 3 if invoker else total, 3]
    facts = ("SELECT relname, relrowsecurity, relforcerowsecurity, relacl::text, reloptions FROM pg_class"
             " WHERE relname IN ('account_balance', 'v', 'i', 'other') AND relnamespace = 'public'::regnamespace"
             " ORDER BY 1")
    was = built.execute(facts).fetchall()
    make_rebuilder(dsn).rebuild(NAME)
    assert [mine.execute(question).fetchall() for question in questions] == before
    assert built.execute(facts).fetchall() == was
    for forbidden in ("SELECT owner FROM account_balance", "DELETE FROM account_balance"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            mine.execute(forbidden)


# --- triggers, constraints, indexes ----------------------------------------------------------------------------------


def test_triggers_are_there_as_enabled_as_they_were(dsn, built):
    """Of all four states, by name; none fires in the replay and those that should fire for the next writer
    (pg-osc#70).
    """
    built.execute("CREATE TABLE fired (by text);"
                  "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql"
                  " AS 'BEGIN INSERT INTO fired VALUES (TG_NAME); RETURN NEW; END'")
    states = {"origin": None, "disabled": "DISABLE", "replica": "ENABLE REPLICA", "always": "ENABLE ALWAYS"}
    for name, state in states.items():
        built.execute(f"CREATE TRIGGER {name} AFTER INSERT OR UPDATE ON account_balance FOR EACH ROW"
                      " EXECUTE FUNCTION note()")
        if state:
            built.execute(f"ALTER TABLE account_balance {state} TRIGGER {name}")
    make_rebuilder(dsn).rebuild(NAME)
    assert built.execute("SELECT tgname, tgenabled::text FROM pg_trigger WHERE tgrelid = 'account_balance'::regclass"
                         " AND NOT tgisinternal ORDER BY 1").fetchall() == [
        ("always", "A"), ("disabled", "D"), ("origin", "O"), ("replica", "R")]
    assert rows_of(built, "fired") == []
    append(built, "account-2", "Deposited", {"amount": 1}, live=make_rebuilder(dsn))
    assert rows_of(built, "fired") == [("always",), ("origin",)]
    assert_equal_to_replay(built)


def test_constraints_stay_constraints(dsn, built):
    """The primary key is one and no plain unique index; unique, check and foreign keys both ways are enforced under
    their names (pgroll#888, pgroll#273, gh-ost#153).
    """
    built.execute(
        "CREATE TABLE size (changes int PRIMARY KEY); INSERT INTO size SELECT generate_series(0, 200);"
        "ALTER TABLE account_balance ADD CONSTRAINT one_owner UNIQUE (owner, id),"
        " ADD CONSTRAINT counted CHECK (changes > 0), ADD CONSTRAINT its_size FOREIGN KEY (changes) REFERENCES size;"
        "CREATE TABLE card (account text CONSTRAINT its_account REFERENCES account_balance ON DELETE CASCADE);"
        "INSERT INTO card SELECT id FROM account_balance")
    before = constraints(built), constraints(built, "card")
    cards = rows_of(built, "card")
    spoil(built)
    make_rebuilder(dsn).rebuild(NAME)
    assert_equal_to_replay(built)
    assert (constraints(built), constraints(built, "card")) == before
    assert ("account_balance_pkey", "p", True, "PRIMARY KEY (id)", True, True, True) in before[0]
    assert rows_of(built, "card") == cards
    for statement, constraint in [
        ("INSERT INTO account_balance SELECT * FROM account_balance", "account_balance_pkey"),
        ("UPDATE account_balance SET changes = 0", "counted"), ("UPDATE account_balance SET changes = 201", "its_size"),
        ("INSERT INTO card VALUES ('nobody')", "its_account"),
    ]:
        with pytest.raises(psycopg.errors.IntegrityError) as caught:
            built.execute(statement)
        assert caught.value.diag.constraint_name == constraint
    built.execute("DELETE FROM account_balance WHERE id = 'account-1'")
    assert len(rows_of(built, "card")) == len(cards) - 1


def test_an_index_that_an_application_makes_if_it_does_not_exist_is_there(dsn, built):
    """`IF NOT EXISTS` right after the swap finds the index on the live table, valid, and not the old table's that owns
    the name (dbt-risingwave#152 and #153).
    """
    ensure = "CREATE INDEX IF NOT EXISTS by_owner ON account_balance (lower(owner)) INCLUDE (balance) WHERE changes > 1"
    built.execute(ensure)
    indexes = ("SELECT indexrelid::regclass::text, pg_get_indexdef(indexrelid), indisvalid, indisready FROM pg_index"
               " WHERE indrelid = 'account_balance'::regclass ORDER BY 1")
    before = built.execute(indexes).fetchall()
    for _ in range(2):
        report = make_rebuilder(dsn).rebuild(NAME)
        assert report.retired, "the old table, with its own index, is kept beside it"
        built.execute(ensure)
        assert built.execute(indexes).fetchall() == before
    assert [name for name, *_ in before] == ["account_balance_pkey", "by_owner"]


def test_storage_is_set_before_the_rows_come(dsn, built):
    """A column that must not be compressed is not compressed after the rebuild either (pg_repack#94)."""
    built.execute("ALTER TABLE account_balance ALTER owner SET STORAGE EXTERNAL")
    for account in ("plain-1", "plain-2"):
        append(built, account, "AccountOpened", {"owner": "x" * 20_000}, live=make_rebuilder(dsn))
    stored = "SELECT id, pg_column_size(owner), pg_column_compression(owner) FROM account_balance WHERE id ~ '^plain'"
    before = built.execute(stored + " ORDER BY 1").fetchall()
    assert before == [("plain-1", 20_000, None), ("plain-2", 20_000, None)]
    make_rebuilder(dsn).rebuild(NAME)
    assert_equal_to_replay(built)
    assert built.execute(stored + " ORDER BY 1").fetchall() == before
    with built.transaction(force_rollback=True):
        built.execute("CREATE TABLE late AS SELECT id, owner || '' AS owner FROM account_balance;"
                      "ALTER TABLE late ALTER owner SET STORAGE EXTERNAL")
        assert built.execute("SELECT max(pg_column_size(owner)) < 2000 FROM late").fetchone() == (True,)


# --- names -----------------------------------------------------------------------------------------------------------


def odd_handlers():
    """The bank's, into a table whose name needs quoting."""
    handlers = SqlHandlers()

    @handlers.on("Deposited")
    def moved(event, target):
        target.execute(psycopg.sql.SQL(
            'INSERT INTO {} AS b (id, "Bal ""ance") VALUES (%s, %s)'
            ' ON CONFLICT (id) DO UPDATE SET "Bal ""ance" = b."Bal ""ance" + excluded."Bal ""ance"'
        ).format(target.table(ODD)), (event.stream, event.data["amount"]))

    return handlers


def test_three_rebuilds_of_a_table_of_odd_names_change_no_name(dsn, db, pg_dump):
    """Indexes, constraints, sequences, triggers and views of a table in a schema other than `public`, all with names
    that need quoting: the dump of the schema is the same three times (pg-osc#20, pgroll#273).
    """
    db.execute(
        f'CREATE SCHEMA "My Schema"; CREATE TABLE {ODD} (id text PRIMARY KEY, "Bal ""ance" bigint NOT NULL,'
        ' "No." bigserial CONSTRAINT "The %s ""only"" one" UNIQUE, n int GENERATED ALWAYS AS IDENTITY,'
        ' CONSTRAINT "it\'s > 0" CHECK ("Bal ""ance" > 0));'
        f'CREATE INDEX "Ix ""1""" ON {ODD} ("Bal ""ance" DESC);'
        f'CREATE VIEW "My Schema"."V ""1""" AS SELECT * FROM {ODD};'
        'CREATE FUNCTION "My Schema"."F ()"() RETURNS trigger LANGUAGE plpgsql AS \'BEGIN RETURN NEW; END\';'
        f'CREATE TRIGGER "T ""1""" BEFORE INSERT ON {ODD} FOR EACH ROW EXECUTE FUNCTION "My Schema"."F ()"();'
        f'COMMENT ON TABLE {ODD} IS \'of "odd" names\'')
    truth = db.execute("SELECT stream, sum((data ->> 'amount')::bigint)::bigint FROM events WHERE type = 'Deposited'"
                       " GROUP BY 1 ORDER BY 1").fetchall()
    assert len(truth) > 5
    projection = make_projection('odd "one"', tables=[ODD], handlers=odd_handlers(), not_compared=["No.", "n"])

    def dump():
        return schema_of(pg_dump(dsn, "--schema-only", "--schema=public", '--schema="My Schema"'))

    before = dump()
    assert 'CREATE INDEX "Ix ""1"""' in str(before).replace("\\'", "'")
    for _ in range(3):
        report = make_rebuilder(dsn, projection).rebuild(projection.name)
        assert dump() == before
        for relation in (ODD, '"My Schema"."V ""1"""'):
            assert db.execute(f'SELECT id, "Bal ""ance" FROM {relation} ORDER BY 1').fetchall() == truth
    assert report.drift.total == 0
    with pytest.raises(psycopg.errors.UniqueViolation, match='The %s "only" one'):
        db.execute(f'UPDATE {ODD} SET "No." = 7')
