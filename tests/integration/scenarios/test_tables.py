"""What may be rebuilt: tables, whole; anything else is named before the replay."""

import pytest
from psycopg import sql

from rebuilder import SqlHandlers
from rebuilder.errors import DefinitionError, GuardTripped, PreflightRefused
from tests.bank import append_many, assert_equal_to_replay, make_log, make_projection, make_rebuilder, make_schema

INDEXES = "SELECT pg_get_indexdef(indexrelid) FROM pg_index WHERE indrelid = 'account_balance'::regclass ORDER BY 1"


@pytest.fixture
def db(connect):
    connection = connect(autocommit=True)
    make_schema(connection)
    append_many(connection, 50)
    return connection


def test_a_plain_table_comes_back_as_it_was(dsn, db, pg_dump):
    """A table with nothing special about it passes the preflight and is defined the same afterwards (scenario 37)."""
    before = definition(pg_dump, dsn)
    assert make_rebuilder(dsn).plan("account_balance").refused == ()
    make_rebuilder(dsn).rebuild("account_balance", retire="drop")
    assert_equal_to_replay(db)
    assert definition(pg_dump, dsn) == before


def definition(pg_dump, dsn):
    text = pg_dump(dsn, "--schema-only", "--schema", "public")
    # Newer versions of pg_dump fence their scripts with a random word.
    return [line for line in text.splitlines() if not line.startswith(("\\restrict", "\\unrestrict"))]


@pytest.mark.parametrize("made, kind", [
    ("CREATE VIEW thing AS SELECT * FROM account_balance", "view"),
    ("CREATE MATERIALIZED VIEW thing AS SELECT * FROM account_balance", "materialized view"),
    ("CREATE SEQUENCE thing", "sequence"),
    ("CREATE INDEX thing ON account_balance (owner)", "index"),
    ("CREATE TABLE thing (id text, PRIMARY KEY (id)) PARTITION BY LIST (id)", "partitioned table"),
])
def test_what_is_no_table_is_refused_by_its_kind(dsn, db, made, kind):
    """A projection into something else than a table is refused, with what it is (scenario 38)."""
    db.execute(made)
    rebuilder = make_rebuilder(dsn, make_projection(tables=["thing"]))
    with pytest.raises(PreflightRefused, match=kind) as caught:
        rebuilder.rebuild("account_balance")
    assert caught.value.exit_code == 3
    assert caught.value.objects[0]["hint"]


def test_a_table_that_does_not_exist_is_named(dsn, db):
    """A misspelt table is an error of the definition (scenario 38)."""
    with pytest.raises(DefinitionError, match="acount_balance, which does not exist") as caught:
        make_rebuilder(dsn, make_projection(tables=["acount_balance"])).rebuild("account_balance")
    assert caught.value.exit_code == 2
    assert caught.value.table == "acount_balance"


def test_a_table_without_a_primary_key_is_refused(dsn, db):
    """Rows are copied and compared by their primary key (scenario 38)."""
    db.execute("ALTER TABLE account_balance DROP CONSTRAINT account_balance_pkey")
    with pytest.raises(PreflightRefused, match="no primary key"):
        make_rebuilder(dsn).rebuild("account_balance")


def test_partial_and_expression_indexes_are_carried_whole(dsn, db):
    """An index that code metadata could not express is not dropped: condition, order, expression and operator class
    are the same afterwards (scenario 39).
    """
    db.execute("CREATE UNIQUE INDEX one_rich_owner ON account_balance (owner) WHERE balance > 1000000;"
               "CREATE INDEX by_lower_owner ON account_balance (lower(owner) text_pattern_ops DESC NULLS LAST)"
               " INCLUDE (balance) WITH (fillfactor = 70) WHERE changes > 1 AND owner IS NOT NULL")
    before = db.execute(INDEXES).fetchall()
    make_rebuilder(dsn).rebuild("account_balance")
    assert db.execute(INDEXES).fetchall() == before
    assert len(before) == 3
    assert_equal_to_replay(db)


def test_names_may_hold_anything(dsn, db):
    """Quotes, percent signs, colons, braces and blanks in the names of schema, table, columns and log: all are carried,
    compared and looked at again under the fence.
    """
    db.execute("""
        CREATE SCHEMA "the 100% {shop}";
        CREATE TABLE "the 100% {shop}"."a ""b"": {0}" ("no. %s" text, ":key%" int, "rate {0} %" bigint NOT NULL,
            PRIMARY KEY ("no. %s", ":key%"));
        CREATE INDEX "i %d" ON "the 100% {shop}"."a ""b"": {0}" ("rate {0} %") WHERE "no. %s" LIKE '%x%';
        INSERT INTO "the 100% {shop}"."a ""b"": {0}" VALUES ('account-3', 1, 5), ('by % hand', 1, 5);
        ALTER TABLE events RENAME COLUMN stream TO "the %s";
        ALTER TABLE events RENAME TO "ev%ents";
    """)
    name = '"the 100% {shop}"."a ""b"": {0}"'
    handlers = SqlHandlers()

    @handlers.on("AccountOpened", "Deposited")
    def seen(event, target):
        target.execute(sql.SQL('INSERT INTO {} VALUES (%s, 1, 1) ON CONFLICT ("no. %%s", ":key%%")'
                               ' DO UPDATE SET "rate {{0}} %%" = 2').format(target.table(name)), (event.stream,))

    log = make_log(relation='"ev%ents"', columns={"stream": "\"the %s\" || '%' || ''"})
    rebuilder = make_rebuilder(dsn, make_projection(
        tables=[name], handlers=handlers, stream_columns={name: "no. %s"}), log=log)
    with pytest.raises(GuardTripped, match="by % hand"):
        rebuilder.rebuild("account_balance")
    report = rebuilder.rebuild("account_balance", allow=["ghost-rows"])
    assert report.drift.total == 12
    assert rebuilder.verify("account_balance").drift.total == 0
