"""What a handler may write: hazards M9 and R5."""

import pytest

from rebuilder import SqlHandlers
from rebuilder.errors import WroteOutsideShadow
from tests.bank import append, assert_equal_to_replay, make_handlers, make_projection, make_rebuilder, rows_of
from tests.integration.hazards.schedule import NAME, Moments, deposit

STRAY = {
    "an update of no row of live": "UPDATE public.account_balance SET balance = 0 WHERE false",
    "an update of live": "UPDATE public.account_balance SET balance = 0",
    "a truncate of live": "TRUNCATE public.account_balance",
    "a lock on live": "LOCK TABLE public.account_balance IN ROW SHARE MODE",
    "a row lock in live": "SELECT FROM public.account_balance FOR UPDATE",
    "a draw from live's sequence": "SELECT nextval('public.account_balance_number_seq')",
    "an insert elsewhere": "INSERT INTO audit VALUES (1)",
    "a delete of no row elsewhere": "DELETE FROM audit WHERE false",
}
NO_DELTA = ["an update of no row of live", "a lock on live", "a row lock in live", "a delete of no row elsewhere"]


def straying(statement, only=None):
    """The bank's handlers, with one more statement at deposits (of this stream)."""
    inner, handlers = make_handlers(), SqlHandlers()

    @handlers.on(*inner.types)
    def handler(event, target):
        inner.handler(event.type)(event, target)
        if event.type == "Deposited" and only in (None, event.stream):
            target.execute(statement)

    return handlers


@pytest.fixture
def live(watcher):
    watcher.execute("ALTER TABLE account_balance ADD number bigserial; CREATE TABLE audit (id int)")
    return watcher


@pytest.mark.parametrize("what", STRAY)
def test_a_handler_that_reaches_outside_the_shadow_stops_the_run(dsn, live, what):
    """Rows written show in the statistics; what leaves no delta there shows in our own locks (hazard M9)."""
    before = rows_of(live), live.execute("SELECT last_value FROM account_balance_number_seq").fetchone()
    projection = make_projection(handlers=straying(STRAY[what]), not_compared=["number"])
    with pytest.raises(WroteOutsideShadow) as caught:
        make_rebuilder(dsn, projection).rebuild(NAME)
    (stray,) = caught.value.tables
    assert stray in STRAY[what] or stray == "public.audit"
    assert rows_of(live) == before[0]
    if "nextval" not in STRAY[what]:
        assert live.execute("SELECT last_value FROM account_balance_number_seq").fetchone() == before[1]


@pytest.mark.parametrize("what", NO_DELTA)
def test_the_statistics_alone_are_blind_to_it(live, connect, what):
    """The naive version of the check: the transaction's own deltas show nothing (hazard M9)."""
    handler = connect()  # a new session: these "deltas" hold what earlier transactions have not yet reported, too
    handler.execute(STRAY[what])
    assert handler.execute("SELECT relid::regclass, n_tup_ins + n_tup_upd + n_tup_del FROM pg_stat_xact_user_tables"
                           " WHERE n_tup_ins + n_tup_upd + n_tup_del > 0").fetchall() == []


@pytest.mark.parametrize("what", ["an update of no row of live", "an insert elsewhere"])
def test_a_handler_that_strays_under_the_fence_stops_the_run_too(dsn, live, what):
    """The fence's own lock on live must not hide the handler's write (hazard M9)."""
    statement = STRAY[what].replace("WHERE false", "WHERE id = 'a1'")
    projection = make_projection(handlers=straying(statement, only="a2"), not_compared=["number"])
    rebuilder = make_rebuilder(dsn, projection)
    live.execute("DELETE FROM events WHERE stream = 'a2' AND type = 'Deposited'")
    Moments(rebuilder).at("fence", lambda run: deposit(live, None, "a2"))
    before = rows_of(live)
    with pytest.raises(WroteOutsideShadow):
        rebuilder.rebuild(NAME, allow=["shrink"])
    assert rows_of(live) == before


def test_toasted_values_temporary_tables_and_serial_columns_of_the_shadow_are_nobody_elses(dsn, live):
    """Their locks lie in pg_toast, in our temporary schema and in the work schema: no stray writes (hazard R5)."""
    live.execute("ALTER TABLE account_balance ADD memo text, ADD CHECK (length(memo) > 0)")
    live.execute("ALTER TABLE account_balance ALTER memo SET STORAGE EXTERNAL")
    inner, handlers = make_handlers(), SqlHandlers()

    @handlers.on(*inner.types)
    def handler(event, target):
        inner.handler(event.type)(event, target)
        target.execute("CREATE TEMPORARY TABLE IF NOT EXISTS scratch (stream text)")
        target.execute("INSERT INTO scratch VALUES (%s)", (event.stream,))
        target.execute("UPDATE account_balance SET memo = repeat('x', 10000), number = default"
                       " WHERE id = (SELECT stream FROM scratch WHERE stream = %s LIMIT 1)", (event.stream,))

    projection = make_projection(handlers=handlers, not_compared=["number", "memo"])
    make_rebuilder(dsn, projection).rebuild(NAME)
    assert live.execute("SELECT DISTINCT length(memo) FROM account_balance").fetchall() == [(10000,)]
    assert_equal_to_replay(live)


def test_reading_another_table_is_allowed(dsn, live):
    """A handler may look things up: ACCESS SHARE is no write."""
    projection = make_projection(handlers=straying("SELECT count(*) FROM audit"), not_compared=["number"])
    append(live, "a9", "Deposited", {"amount": 1})
    make_rebuilder(dsn, projection).rebuild(NAME)
    assert_equal_to_replay(live)
