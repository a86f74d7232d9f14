"""Writers draw early, commit late, roll back and repeat; each settled horizon is the truth, and so is each page."""

import random
import threading

import psycopg

from rebuilder.eventlog import Columns, Selection, TableLog
from tests.fix_threads import wait_until

ALL = Selection(("happened",))
INSERT = "INSERT INTO events (id, stream, type, data) VALUES (%s, 'a', 'happened', '{}')"


def append(dsn, stop, seed):
    """One writer: some ids drawn ahead, some inserts repeated after a savepoint, some transactions rolled back."""
    choice = random.Random(seed)
    with psycopg.connect(dsn) as connection:
        while not stop.is_set():
            early = connection.execute("SELECT nextval('events_id_seq')").fetchone()[0]
            kind = choice.random()
            if kind < 0.3:
                connection.execute("SAVEPOINT attempt")
                connection.execute(INSERT, [early])
                connection.execute("ROLLBACK TO attempt")
            if kind < 0.1:
                connection.execute("SELECT pg_sleep(0.03)")
            if kind < 0.9:
                connection.execute(INSERT, [early])
            if kind > 0.5:
                connection.execute("INSERT INTO events (stream, type, data) VALUES ('b', 'happened', '{}')")
            if kind > 0.8:
                connection.rollback()
            else:
                connection.commit()


def test_nothing_becomes_visible_below_a_settled_horizon(connect, bare_dsn, spawn):
    reader = connect(bare_dsn, autocommit=True)
    reader.execute("CREATE TABLE events (id bigserial PRIMARY KEY, stream text, type text, data jsonb)")
    log = TableLog("events", columns=Columns(position="id", stream="stream", type="type", data="data")).open(reader)
    stop = threading.Event()
    writers = [spawn(append, bare_dsn, stop, seed) for seed in range(6)]
    read, after, waited = [], None, 0
    try:
        for _ in range(150):
            horizon = log.horizon(reader, own_pids=())
            waited += bool(horizon.pending)
            wait_until(lambda: horizon.settled(reader), interval=0.001)  # noqa: B023  # called at once
            while page := log.page(reader, ALL, after=after, upto=horizon.position, limit=100):
                read += [raw.position for raw in page]
                after = page[-1].key
    finally:
        stop.set()
    for writer in writers:
        writer.result(30)
    assert waited > 0
    truth = [row[0] for row in reader.execute(
        "SELECT id FROM events WHERE id <= %s ORDER BY id", [horizon.position]).fetchall()]
    assert read == truth
    assert len(truth) > 100
