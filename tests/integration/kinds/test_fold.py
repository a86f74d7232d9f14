"""Fold handlers: rows folded in memory equal the ones that SQL computes, in the bulk and afterwards."""

from decimal import Decimal

import psycopg
import pytest

from rebuilder import DefinitionError, Fold, Quarantine, RebuildError, Upcasters
from tests.bank import (
    append,
    append_many,
    assert_equal_to_replay,
    make_projection,
    make_rebuilder,
    make_schema,
    rows_of,
)
from tests.fix_threads import wait_for_lock
from tests.kinds import make_fold

# As they come; written to the shadow and loaded again for every page; spilled once in a while.
MEMORY = {"plenty": {}, "none": {"fold_memory": 0, "fold_page": 50},
          "little": {"fold_memory": 20_000, "fold_page": 100}}


@pytest.fixture
def db(connect, dsn):
    connection = connect(dsn, autocommit=True)
    make_schema(connection)
    return connection


def bank(dsn, fold=None, settings=None, **overrides):
    return make_rebuilder(dsn, make_projection(handlers=fold or make_fold(), **overrides), settings=settings)


@pytest.mark.parametrize("memory", MEMORY)
def test_folded_rows_equal_the_replay_however_little_memory_they_have(db, dsn, memory):
    """Deletes, renames and balances come out as SQL computes them, spilled to the shadow or not."""
    append_many(db, 3000, accounts=100)
    report = bank(dsn, settings=MEMORY[memory]).rebuild("account_balance")
    assert assert_equal_to_replay(db) == report.rows["public.account_balance"]
    assert report.events_applied == 3000


def test_what_comes_after_the_bulk_is_loaded_folded_and_written_back(db, dsn):
    """Appends at the fence and during catch up change, insert and delete rows that the freeze has written already."""
    append_many(db, 500, accounts=20)
    rebuilder = bank(dsn)
    rebuilder.rebuild("account_balance")

    def appends(number):
        def at(_run):
            append(db, "account-3", "Deposited", {"amount": 5}, live=rebuilder)
            append(db, f"new-{number}", "AccountOpened", {"owner": "new"}, live=rebuilder)
            append(db, f"account-{number}", "AccountClosed", live=rebuilder)
        return at

    rebuilder._seam.points["recheck"] = once(appends(10))
    rebuilder._seam.points["fence"] = once(appends(11))
    report = rebuilder.rebuild("account_balance")
    assert report.events_applied == 506
    assert report.drift.missing + report.drift.extra + report.drift.changed == 0
    assert_equal_to_replay(db)


def once(function):
    calls = []

    def at(run):
        if not calls:
            calls.append(run)
            function(run)

    return at


def test_a_fence_given_back_takes_its_rows_back(db, dsn):
    """What the drain folded under a fence that is given back is folded once more, not twice."""
    append_many(db, 300, accounts=10)
    rebuilder = bank(dsn)
    rebuilder.rebuild("account_balance")

    def tail(_run):
        append(db, "account-3", "Deposited", {"amount": 5}, live=rebuilder)

    seen = []

    def give_back(run):
        from rebuilder.engine.fence import GiveBack

        seen.append(run.phase)
        if len(seen) == 1:
            raise GiveBack("for the test")

    rebuilder._seam.points["fence"] = once(tail)
    rebuilder._seam.points["swap"] = give_back
    report = rebuilder.rebuild("account_balance")
    assert (len(seen), report.attempts >= 2) == (2, True)
    assert_equal_to_replay(db)


def test_the_rows_go_straight_into_a_frozen_table(db, dsn):
    """Every row of the bulk is visible to every snapshot: its xmin is the frozen one, and the index is used."""
    append_many(db, 500, accounts=50)
    db.execute("CREATE INDEX by_owner ON account_balance (owner)")
    bank(dsn).rebuild("account_balance")
    db.execute("CREATE EXTENSION IF NOT EXISTS pageinspect")
    unfrozen = db.execute("SELECT count(*) FROM heap_page_items(get_raw_page('account_balance', 0))"
                          " WHERE (t_infomask & 768) <> 768").fetchone()
    assert unfrozen == (0,)
    checked = db.execute("SELECT indcheckxmin FROM pg_index WHERE indexrelid = 'by_owner'::regclass").fetchone()
    assert checked == (False,)


TRANSFERS = """
CREATE TABLE per_day (account text, day date, moved numeric(12, 2), tags jsonb, PRIMARY KEY (day, account));
CREATE TABLE totals (kind text PRIMARY KEY, many bigint);
"""


def transfers():
    """Two tables: one row per account and day, touched by both sides of a transfer, and one per type."""
    per_day, totals = Fold("per_day"), Fold("totals")

    def side(row, event, account, sign):
        row = row or {"account": account, "moved": Decimal(0), "tags": []}
        row["moved"] += sign * Decimal(event.data["amount"])
        row["tags"].append(event.position)
        return row

    @per_day.on("Transferred", key=lambda e: (e.recorded_at.date(), e.data["from"]))
    def debit(row, event):
        return side(row, event, event.data["from"], -1)

    @per_day.on("Transferred", key=lambda e: (e.recorded_at.date(), e.data["to"]))
    def credit(row, event):
        return side(row, event, event.data["to"], 1)

    @totals.on("Transferred", key=lambda e: e.type)
    def count(row, event):
        return {"kind": event.type, "many": (row["many"] if row else 0) + 1}

    return [per_day, totals]


TRANSFERRED = """
SELECT account, day, sum(moved)::numeric(12, 2), jsonb_agg(id ORDER BY id, moved) FROM (
    SELECT id, recorded_at::date AS day, data->>'from' AS account, -(data->>'amount')::numeric AS moved FROM events
    UNION ALL SELECT id, recorded_at::date, data->>'to', (data->>'amount')::numeric FROM events) AS sides
GROUP BY account, day ORDER BY account
"""


@pytest.mark.parametrize("memory", MEMORY)
def test_composite_and_function_keys_several_keys_per_event_and_several_tables(db, dsn, rng, memory):
    """A transfer changes two rows of one table and one of another, each by a key of its own."""
    db.execute(TRANSFERS)
    with db.transaction():
        for _ in range(300):
            append(db, "transfers", "Transferred", {"from": f"a{rng.randrange(20)}", "to": f"a{rng.randrange(20)}",
                                                    "amount": f"{rng.randrange(1, 10**6) / 100:.2f}"})
    rebuilder = bank(dsn, transfers(), MEMORY[memory], tables=["per_day", "totals"])
    rebuilder._seam.points["fence"] = once(lambda _run: append(
        db, "transfers", "Transferred", {"from": "a1", "to": "fresh", "amount": "0.10"}))
    rebuilder.rebuild("account_balance")
    assert db.execute("SELECT * FROM per_day ORDER BY account").fetchall() == db.execute(TRANSFERRED).fetchall()
    assert rows_of(db, "totals") == [("Transferred", 301)]


def test_a_column_that_the_fold_leaves_out_gets_its_default(db, dsn):
    """An identity and a default are the table's own business, in the bulk and for rows that come later."""
    db.execute("CREATE TABLE numbered (id int GENERATED ALWAYS AS IDENTITY, stream text PRIMARY KEY, n int,"
               " note text DEFAULT 'none')")
    fold = Fold()

    @fold.on("Deposited")
    def counted(row, event):
        return {"stream": event.stream, "n": (row["n"] if row else 0) + 1}

    for n in range(30):
        append(db, f"s{n % 3}", "Deposited")
    rebuilder = bank(dsn, fold, tables=["numbered"])
    rebuilder._seam.points["fence"] = once(lambda _run: append(db, "later", "Deposited"))
    rebuilder.rebuild("account_balance")
    rows = db.execute("SELECT stream, n, note FROM numbered ORDER BY stream").fetchall()
    assert rows == [("later", 1, "none"), *[(f"s{n}", 10, "none") for n in range(3)]]
    assert sorted(row[0] for row in db.execute("SELECT id FROM numbered").fetchall()) == [1, 2, 3, 4]


@pytest.mark.parametrize("column, value, why", [
    ("numeric", 5, "comes back as Decimal"), ("numeric(8, 2)", Decimal("0.125"), "3 digits behind the point"),
    ("date", "2026-01-01", "comes back as date"), ("jsonb", (1, 2), "comes back as list"),
    ("int", True, "comes back as int"), ("uuid", "3f1b2c34-0000-0000-0000-000000000000", "can't be written"),
])
def test_a_value_of_another_type_than_the_columns_is_refused_at_the_first_row(db, dsn, column, value, why):
    """What psycopg would load later must be what the function gave, or a row depends on when it was loaded."""
    db.execute(f"CREATE TABLE typed (id text PRIMARY KEY, value {column})")
    fold = Fold()

    @fold.on("Deposited")
    def given(_row, event):
        return {"id": event.stream, "value": value}

    append(db, "a", "Deposited")
    with pytest.raises(DefinitionError, match=rf"typed gave column value .*{why}"):
        bank(dsn, fold, tables=["typed"]).rebuild("account_balance", quarantine=True)


def test_a_key_is_text_in_a_row_whatever_its_column_is(db, dsn):
    """A stream that is a uuid in the table stays the event's stream in the row, loaded or not."""
    db.execute("CREATE TABLE by_uuid (id uuid PRIMARY KEY, n int)")
    fold, seen = Fold(), set()

    @fold.on("Deposited")
    def counted(row, event):
        if row:
            seen.add(type(row["id"]))
        return {**(row or {"n": 0}), "n": (row or {"n": 0})["n"] + 1}

    stream = "3f1b2c34-1111-2222-3333-000000000000"
    for _ in range(4):
        append(db, stream, "Deposited")
    rebuilder = bank(dsn, fold, {"fold_memory": 0, "fold_page": 2}, tables=["by_uuid"])
    rebuilder.rebuild("account_balance")
    assert db.execute("SELECT id::text, n FROM by_uuid").fetchall() == [(stream, 4)]
    assert seen == {str}


@pytest.mark.parametrize("memory", MEMORY)
def test_a_row_made_anew_needs_not_repeat_its_key(db, dsn, memory):
    """The key's columns are the key's, also in a row that a function makes from nothing; anything else must be there.
    """
    fold = Fold()

    @fold.on("Deposited")
    def counted(row, event):
        return {"balance": 0, "changes": (row["changes"] if row else 0) + 1, "owner": row and row["id"]}

    rebuilder = bank(dsn, fold, MEMORY[memory])
    for n in range(60):
        append(db, f"s{n % 2}", "Deposited", live=rebuilder)
    truth = [("s0", "s0", 0, 30), ("s1", "s1", 0, 30)]
    assert rows_of(db) == truth
    rebuilder.rebuild("account_balance")
    assert rows_of(db) == truth


def test_a_row_with_other_columns_than_the_first_is_refused_at_its_event(db, dsn):
    """Its column would silently keep what it had."""
    fold = Fold()

    @fold.on("Deposited")
    def counted(row, event):
        return {"balance": 0, "changes": 1, **({"owner": "me"} if row is None else {})}

    append(db, "a", "Deposited")
    position = append(db, "a", "Deposited")
    with pytest.raises(DefinitionError, match="its first had id, owner, balance, changes") as caught:
        bank(dsn, fold).rebuild("account_balance")
    assert caught.value.position == position


def test_a_failed_batch_puts_rows_back_and_only_the_poison_is_set_aside(db, dsn):
    """A function that changes its row and then raises has changed nothing: the row was its own copy."""
    fold = Fold()

    @fold.on("Deposited")
    def poisoned(row, event):
        row = row or {"id": event.stream, "owner": "", "balance": 0, "changes": 0}
        row["changes"] += 1
        row["balance"] += event.data["amount"]
        if event.data["amount"] == 13:
            raise ValueError("unlucky")
        return row

    for n in range(40):
        append(db, f"s{n % 4}", "Deposited", {"amount": n})
    rebuilder = bank(dsn, fold, {"fold_page": 5})
    with pytest.raises(RebuildError, match="event 14 "):
        rebuilder.rebuild("account_balance")
    report = rebuilder.rebuild("account_balance", quarantine=Quarantine(policy="event"))
    assert report.dead_letters == 1
    truth = [(f"s{s}", sum(n for n in range(s, 40, 4) if n != 13), 10 - (s == 1)) for s in range(4)]
    assert db.execute("SELECT id, balance, changes FROM account_balance ORDER BY id").fetchall() == truth


def test_a_stream_under_quarantine_is_left_as_it_was_before_its_poison(db, dsn):
    """Policy "stream" sets the later events of the stream aside too, and data that can't be decoded is poison."""
    append_many(db, 60, accounts=3)
    db.execute("UPDATE events SET data = '[1]' WHERE id = 31")
    stream = db.execute("SELECT stream FROM events WHERE id = 31").fetchone()[0]
    later = db.execute("SELECT count(*) FROM events WHERE stream = %s AND id > 31", (stream,)).fetchone()[0]
    report = bank(dsn).rebuild("account_balance", quarantine=True)
    assert report.dead_letters == 1 + later


def test_upcasters_lift_what_a_fold_sees(db, dsn):
    """Old data reaches the function in its current form."""
    upcasters = Upcasters()

    @upcasters.on("Deposited", from_version=1)
    def cents(data, _context):
        return {"amount": data["euros"] * 100}

    append(db, "a", "Deposited", {"euros": 2})
    append(db, "a", "Deposited", {"amount": 5}, schema_version=2)
    bank(dsn, upcasters=upcasters).rebuild("account_balance")
    assert rows_of(db) == [("a", None, 205, 2)]


def test_two_writers_of_one_row_do_not_overwrite_each_other(db, dsn, connect, spawn):
    """Two streams share a key: the second writer waits for the row of the first, also when it is not there yet (M15).

    Read without a lock, both would find no row and write n = 1.
    """
    db.execute("CREATE TABLE totals (kind text PRIMARY KEY, many bigint NOT NULL)")
    fold = Fold()

    @fold.on("Deposited", key=lambda e: e.type)
    def count(row, event):
        return {"kind": event.type, "many": (row["many"] if row else 0) + 1}

    rebuilder = bank(dsn, fold, tables=["totals"])
    for expected in (2, 4):
        first, second = connect(dsn), connect(dsn)
        pid = second.info.backend_pid
        first.execute("SELECT")  # append stays in the transaction that this begins
        append(first, "a", "Deposited", live=rebuilder)
        writer = spawn(append, second, "b", "Deposited", live=rebuilder)
        wait_for_lock(db, pid)
        first.commit()
        writer.result()
        second.commit()
        assert rows_of(db, "totals") == [("Deposited", expected)]


def test_project_folds_as_the_rebuild_does(db, dsn):
    """Rows written event by event in the application's transactions show no drift to a rebuild."""
    rebuilder = bank(dsn)
    append_many(db, 200, accounts=10)
    for (position,) in db.execute("SELECT id FROM events ORDER BY id").fetchall():
        with db.transaction():
            row = db.cursor(row_factory=psycopg.rows.dict_row).execute(
                "SELECT * FROM events WHERE id = %s", (position,)).fetchone()
            rebuilder.project(db, rebuilder.log.event(row))
    assert_equal_to_replay(db)
    drift = rebuilder.rebuild("account_balance").drift
    assert (drift.missing, drift.extra, drift.changed) == (0, 0, 0)


def test_a_list_in_a_row_is_the_functions_own_copy_too(db, dsn):
    """What a function appends to what JSON holds, before it raises, is not in the row."""
    db.execute("CREATE TABLE kept (id text PRIMARY KEY, tags jsonb)")
    fold = Fold()

    @fold.on("Deposited")
    def tagged(row, event):
        row = row or {"id": event.stream, "tags": []}
        row["tags"].append(event.position)
        if event.position == 3:
            raise ValueError("no")
        return row

    for _ in range(4):
        append(db, "a", "Deposited")
    rebuilder = bank(dsn, fold, {"fold_page": 2}, tables=["kept"])
    rebuilder.rebuild("account_balance", quarantine=Quarantine(policy="event"))
    assert rows_of(db, "kept") == [("a", [1, 2, 4])]


@pytest.mark.parametrize("make, why", [
    (lambda: make_projection(tables=["account_balance", "other"], handlers=Fold()), "must say which"),
    (lambda: make_projection(handlers=Fold("other")), "none of its tables"),
    (lambda: make_projection(handlers=[Fold(), Fold()]), "two Folds fill"),
    (lambda: make_projection(tables=["a", "b"], handlers=Fold("a")), "no Fold fills b"),
    (lambda: Fold(key_columns="id"), "must be a list"),
])
def test_folds_that_can_not_be_are_refused_when_they_are_defined(make, why):
    """Each mistake has its sentence."""
    with pytest.raises(DefinitionError, match=why):
        make()


def test_order_by_stream_is_known_of_folds_keyed_by_stream_only():
    """Another key sees events of several streams, so it needs the order of positions unless it is declared enough."""
    by_key = Fold()
    by_key.on("Deposited", key=lambda e: e.data["to"])(lambda row, _event: row)
    assert make_projection(handlers=make_fold()).order == "stream"
    assert make_projection(handlers=by_key).order is None


def test_indexes_are_built_with_memory_and_workers_of_their_own(db, dsn):
    """Locally, and never less than the server allows already."""
    append_many(db, 30)
    seen = []
    for memory in ("8MB", "1GB"):
        db.execute(f"ALTER DATABASE {db.info.dbname} SET maintenance_work_mem = '{memory}'")
        rebuilder = bank(dsn)
        rebuilder._seam.points["fence"] = lambda run: seen.append(
            [run.main.execute(f"SHOW {name}").fetchone()[0]
             for name in ("maintenance_work_mem", "max_parallel_maintenance_workers")])
        rebuilder.rebuild("account_balance")
    assert seen == [["256MB", "2"], ["1GB", "2"]]
