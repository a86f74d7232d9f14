"""What a role or a database sets by default must not reach a run: not the first statement, not the last."""

import psycopg
import pytest

from rebuilder import Projection, SqlHandlers, Stage
from tests import bank
from tests.integration.control.watch import last_ticket, nothing_left

SLOW = bank.make_log(only="pg_sleep(0.002) IS NOT NULL")
"""A page of 60 events takes 120 ms."""

TIMEOUTS = {"statement_timeout": "60ms", "lock_timeout": "1ms", "idle_in_transaction_session_timeout": "150ms",
            "idle_session_timeout": "150ms"}
DEFAULTS = {"default_transaction_isolation": "serializable", "default_transaction_read_only": "on",
            "default_transaction_deferrable": "on"}
TEXTS = {"client_encoding": "LATIN1", "DateStyle": "German, DMY", "IntervalStyle": "sql_standard",
         "extra_float_digits": "-15", "bytea_output": "escape", "TimeZone": "Asia/Kathmandu", "row_security": "off"}


@pytest.fixture
def with_settings(admin, dsn, role):
    """A superuser whose role has these settings: `with_settings(statement_timeout="50ms") -> dsn`."""

    def make(**settings):
        owner = role("SUPERUSER")
        for name, value in settings.items():
            admin.execute(f"ALTER ROLE {owner.name} SET {name} = {value if name == 'search_path' else repr(value)}")
        return owner.dsn(dsn)

    return make


def rebuilt(db, rebuilder, report):
    """The rebuild is right, and whoever looks with the same role can."""
    assert bank.assert_equal_to_replay(db) == 5
    assert report.events_applied == 60
    assert last_ticket(rebuilder).stage == Stage.COMPLETED
    [status] = rebuilder.status()
    assert (status.health, status.position) == ("ready", report.position)
    nothing_left(db)


def idle(db):
    """A time in which a run does nothing on any of its connections."""
    return lambda run: db.execute("SELECT pg_sleep(0.4)")


@pytest.mark.parametrize("name,value", TIMEOUTS.items())
def test_a_timeout_of_the_role_does_not_end_a_run(db, with_settings, name, value):
    """Statements, reads and pauses that take longer than the role allows go through, on all connections."""
    rebuilder = bank.make_rebuilder(with_settings(**{name: value}), log=SLOW)
    for point in ("catch up", "fence", "before commit"):
        rebuilder._seam.points[point] = idle(db)
    rebuilt(db, rebuilder, rebuilder.rebuild("account_balance"))


@pytest.mark.pg(">= 17")
def test_a_transaction_timeout_of_the_role_does_not_end_a_run(db, with_settings):
    """The one transaction of a rebuild is longer than any role may be thought to want."""
    rebuilder = bank.make_rebuilder(with_settings(transaction_timeout="100ms"), log=SLOW)
    rebuilder._seam.points["fence"] = idle(db)
    rebuilt(db, rebuilder, rebuilder.rebuild("account_balance"))


def test_transaction_defaults_of_the_role_do_not_reach_a_run(db, connect, with_settings):
    """Not serializable, not read only; and not deferrable, which would wait for every open serializable transaction."""
    other = connect()
    other.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
    other.execute("SELECT count(*) FROM pg_class")
    rebuilder = bank.make_rebuilder(with_settings(**DEFAULTS))
    rebuilt(db, rebuilder, rebuilder.rebuild("account_balance"))
    [kept] = rebuilder.cleanup(all_kept=True)
    assert kept.done
    assert rebuilder.verify("account_balance").drift.total == 0


def test_a_role_that_is_read_only_by_default_can_cancel_and_clean_up(db, with_settings):
    """What writes a little says itself that it writes."""
    rebuilder, answers = bank.make_rebuilder(with_settings(**DEFAULTS)), []
    rebuilder._seam.points["freeze"] = lambda run: answers.append(rebuilder.cancel(run.ticket))
    with pytest.raises(Exception, match="was cancelled"):
        rebuilder.rebuild("account_balance")
    assert answers == [True]
    schema = f"rebuilder_work_{last_ticket(rebuilder).id.hex[:10]}"
    db.execute(f"CREATE SCHEMA {schema}")
    assert [(cleaned.label, cleaned.done) for cleaned in rebuilder.cleanup()] == [(schema, True)]


def test_how_the_role_writes_and_reads_texts_does_not_change_a_value(db, with_settings):
    """Encoding, dates, intervals, floats: what is read and written is what the log holds."""
    db.execute("UPDATE events SET data = '{\"owner\": \"Žofie €\"}' WHERE type = 'AccountOpened'")
    rebuilder = bank.make_rebuilder(with_settings(**TEXTS))
    rebuilt(db, rebuilder, rebuilder.rebuild("account_balance"))


def test_a_key_of_floats_survives_a_role_that_rounds_them(db, with_settings):
    """The freeze copies in chunks bounded by keys as text: rounded, they would skip rows or repeat them."""
    handlers = SqlHandlers()
    handlers.on("Measured")(lambda event, target: target.execute(
        "INSERT INTO measurement VALUES (%s::float8 / 7, 1)", (event.data["n"],)))
    db.execute("CREATE TABLE measurement (at float8 PRIMARY KEY, seen int);"
               "INSERT INTO measurement VALUES (0.5, 0);"
               "INSERT INTO events (stream, type, data) SELECT 'm', 'Measured', jsonb_build_object('n', n)"
               " FROM generate_series(1, 10500) n")
    projection = Projection("measurement", version=1, tables=["measurement"], handlers=handlers)
    rebuilder = bank.make_rebuilder(with_settings(extra_float_digits="-12"), projection,
                                    settings={"freeze_chunk": 4096})
    rebuilder.rebuild("measurement")
    wrong = db.execute("SELECT count(*) FROM (SELECT n::float8 / 7 AS at, 1 AS seen FROM generate_series(1, 10500) n) t"
                       " FULL JOIN measurement m USING (at) WHERE t.seen IS DISTINCT FROM m.seen").fetchone()
    assert wrong == (0,)


def test_a_search_path_of_the_role_finds_its_tables_and_the_shadow_comes_first(dsn, connect, with_settings):
    """Tables in a schema that only the role's path names are found, and handlers' unqualified names hit the shadow."""
    db = connect(autocommit=True)
    db.execute("CREATE SCHEMA shop; SET search_path = shop")
    bank.make_schema(db)
    bank.append_many(db, 60, accounts=5)
    rebuilder = bank.make_rebuilder(with_settings(search_path="shop, public"))
    rebuilt(db, rebuilder, rebuilder.rebuild("account_balance"))
    assert db.execute("SELECT relnamespace::regnamespace::text FROM pg_class WHERE oid = 'account_balance'::regclass"
                      ).fetchone() == ("shop",)


@pytest.mark.pg(">= 15")
def test_a_default_tablespace_of_the_role_does_not_move_the_table(db, admin, with_settings, afterwards):
    """The new table and its index lie where the old ones lay."""
    name = f"elsewhere_{db.info.backend_pid}"
    admin.execute("SET allow_in_place_tablespaces = on")
    admin.execute(f"CREATE TABLESPACE {name} LOCATION ''")
    target = with_settings(default_tablespace=name)
    afterwards.callback(admin.execute, f"DROP TABLESPACE {name}")
    rebuilder = bank.make_rebuilder(target)
    rebuilt(db, rebuilder, rebuilder.rebuild("account_balance"))
    assert db.execute("SELECT reltablespace::int FROM pg_class WHERE oid IN ('account_balance'::regclass,"
                      " 'account_balance_pkey'::regclass)").fetchall() == [(0,), (0,)]
