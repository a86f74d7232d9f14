"""Logs whose completeness can't be proven are refused before anything is replayed: hazards M11, M12."""

import pytest

from rebuilder.domain.ticket import Stage
from rebuilder.errors import LogChanged, LogDefinitionError, RebuilderError, RefusedError
from tests.bank import assert_equal_to_replay, differences, make_log, make_rebuilder, rows_of
from tests.integration.hazards.schedule import NAME, Moments, deposit

SETUPS = {
    "CACHE above 1": ("ALTER SEQUENCE events_id_seq CACHE 20", "has CACHE 20", "CACHE 1"),
    "an increment other than 1": ("ALTER SEQUENCE events_id_seq INCREMENT 10", "has INCREMENT 10", "INCREMENT 1"),
    "a sequence that descends": ("ALTER SEQUENCE events_id_seq INCREMENT -1 MINVALUE -1000 MAXVALUE 1000 ", "descends",
                                 "INCREMENT 1"),
    "a sequence with CYCLE": ("ALTER SEQUENCE events_id_seq CYCLE", "has CYCLE", "NO CYCLE"),
    "no sequence": ("ALTER TABLE events ALTER id DROP DEFAULT; ALTER SEQUENCE events_id_seq OWNED BY NONE",
                    "No sequence gives the positions", "completeness"),
    "a sequence behind the log": ("INSERT INTO events (id, stream, type) VALUES (1000, 'a1', 'NobodyWantsIt')",
                                  "has given 9 only", "setval"),
    "a position that is not unique": ("ALTER TABLE events DROP CONSTRAINT events_pkey; CREATE INDEX ON events (id)",
                                      "unique", ""),
    "a position unique with more": ("ALTER TABLE events DROP CONSTRAINT events_pkey, ADD PRIMARY KEY (id, stream)",
                                    "unique", ""),
}


@pytest.mark.parametrize("what", SETUPS)
def test_a_log_that_can_lose_events_is_refused_with_the_way_out(dsn, watcher, what):
    """Nothing has been replayed, live is as it was, and the ticket says why (hazards M11, M12)."""
    statement, message, hint = SETUPS[what]
    watcher.execute(statement)
    rebuilder, before = make_rebuilder(dsn), rows_of(watcher)
    moments = Moments(rebuilder)
    moments.at("catch up", lambda run: None, nth=0)
    with pytest.raises(RebuilderError, match=message) as caught:
        rebuilder.rebuild(NAME)
    assert isinstance(caught.value, RefusedError | LogDefinitionError)
    assert hint in (caught.value.hint or "")
    assert moments.count("catch up") == 0
    assert rows_of(watcher) == before
    (ticket,) = rebuilder.tickets()
    assert (ticket.stage, ticket.failure_code) == (Stage.FAILED, caught.value.code)


def test_the_sequence_that_gets_a_cache_during_the_run_ends_it(dsn, watcher):
    """A horizon from it would be worth nothing from then on (hazard M12)."""
    rebuilder, before = make_rebuilder(dsn), rows_of(watcher)
    Moments(rebuilder).at("freeze", lambda run: watcher.execute("ALTER SEQUENCE events_id_seq CACHE 20"))
    with pytest.raises(RefusedError, match="has CACHE 20"):
        rebuilder.rebuild(NAME)
    assert rows_of(watcher) == before


def test_keyset_pages_over_a_position_that_is_not_unique_lose_its_ties(watcher):
    """The naive version: of 30 events of three tenants 20 are read (hazard M11)."""
    watcher.execute("CREATE TABLE per_tenant (tenant int, position int, PRIMARY KEY (tenant, position));"
                    "INSERT INTO per_tenant SELECT t, p FROM generate_series(1, 3) t, generate_series(1, 10) p")
    read, last = 0, 0
    while rows := watcher.execute("SELECT position FROM per_tenant WHERE position > %s ORDER BY position LIMIT 4",
                                  (last,)).fetchall():
        read, last = read + len(rows), rows[-1][0]
    assert read == 20


def test_positions_that_tenants_give_themselves_are_paged_by_position_and_tenant(dsn, watcher):
    """With a unique index on both no tie is lost, at any size of page (hazard M11)."""
    watcher.execute("DELETE FROM events; DELETE FROM account_balance; ALTER TABLE events DROP CONSTRAINT events_pkey,"
                    " ADD tenant text NOT NULL DEFAULT 't1', ADD PRIMARY KEY (id, tenant)")
    watcher.execute("INSERT INTO events (id, tenant, stream, type, data) SELECT p, 't' || t, 'a' || t, 'Deposited',"
                    " '{\"amount\": 1}' FROM generate_series(1, 10) p, generate_series(1, 3) t")
    log = make_log(columns={"tenant": "tenant"}, completeness="count")
    report = make_rebuilder(dsn, log=log, settings={"batch": 4}).rebuild(NAME)
    assert report.events_applied == 30
    assert differences(watcher) == []


def test_what_is_refused_by_default_is_compared_in_full_where_that_was_accepted(dsn, watcher):
    """completeness="count": no horizon can be known, so the whole log is compared under the fence (hazard M12)."""
    watcher.execute("ALTER SEQUENCE events_id_seq CACHE 20")
    rebuilder = make_rebuilder(dsn, log=make_log(completeness="count"))
    Moments(rebuilder).at("fence", lambda run: deposit(watcher, rebuilder))
    rebuilder.rebuild(NAME)
    assert_equal_to_replay(watcher)


def test_and_an_event_below_what_was_read_ends_the_run_there(dsn, connect, watcher):
    """A cached position that is used late lies below the highest that was read: no tail would show it (M12)."""
    early, late = connect(autocommit=True), connect(autocommit=True)
    watcher.execute("ALTER SEQUENCE events_id_seq CACHE 20")
    early.execute("SELECT nextval('events_id_seq')")
    rebuilder = make_rebuilder(dsn, log=make_log(completeness="count"))
    highest, used = deposit(late, rebuilder), []
    moments = Moments(rebuilder)
    moments.at("fence", lambda run: used.append(deposit(early, rebuilder, "a2")))
    with pytest.raises(LogChanged, match="The log has 11 events"):
        rebuilder.rebuild(NAME)
    assert used[0] < highest
    assert_equal_to_replay(watcher)
    rebuilder.rebuild(NAME)
    assert_equal_to_replay(watcher)
