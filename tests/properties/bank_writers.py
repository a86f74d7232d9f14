"""Writers of a bank in a process of their own, so that they don't share Python's lock with the rebuild beside them.

`python -m tests.properties.bank_writers DSN SEED RATE WRITERS` appends and projects until its input is closed, then
says what it did. Each line of input is a number of transactions that it may make: a machine that is busy with other
things must not be left ever further behind by a log that goes on growing. A tenth of the transactions stay open for 20
to 200 ms after their event has its position; a tenth are rolled back.
"""

import json
import random
import sys
import threading
import time

import psycopg

from tests import bank

ACCOUNTS = 40


class Done:
    """What a writer did."""

    def __init__(self):
        self.committed = self.rolled_back = self.slow = 0
        self.longest = 0.0


def write(dsn, seed, pause, stop, budget, done):
    """One writer: an event at a time, each with its effect on live in the same transaction."""
    choice, live, due = random.Random(seed), bank.make_rebuilder(dsn), time.monotonic()
    with psycopg.connect(dsn, application_name="bank writer") as connection:
        while not stop.is_set():
            if not budget.acquire(timeout=0.05):
                continue
            due = max(due + pause, time.monotonic() - 1)
            stop.wait(due - time.monotonic())
            slow, fails = choice.random() < 0.1, choice.random() < 0.1
            stream, began = f"account-{choice.randrange(ACCOUNTS)}", time.monotonic()
            kind = choice.choice(["Deposited", "Deposited", "Withdrawn", "OwnerRenamed"])
            data = {"owner": f"owner {choice.random()}"} if kind == "OwnerRenamed" else {"amount": choice.randrange(99)}
            connection.execute("SELECT 1")  # begins the transaction, so that `append` does not end it
            if kind == "OwnerRenamed":  # the last one wins, so an application must put them in order itself
                connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", [stream])
            early = slow and choice.random() < 0.5
            if early:  # the position is drawn, and nothing else is done yet
                position = connection.execute("SELECT nextval('events_id_seq')").fetchone()[0]
                connection.execute("SELECT pg_sleep(%s)", [choice.uniform(0.02, 0.2)])
                bank.append(connection, stream, kind, data, live=live, id=position)
            else:
                bank.append(connection, stream, kind, data, live=live)
                if slow:
                    connection.execute("SELECT pg_sleep(%s)", [choice.uniform(0.02, 0.2)])
            if fails:
                connection.rollback()
                done.rolled_back += 1
            else:
                connection.commit()
                done.committed += 1
            done.slow += slow
            done.longest = max(done.longest, time.monotonic() - began)


def main(dsn, seed, rate, writers):
    stop, done, errors = threading.Event(), [Done() for _ in range(int(writers))], []
    budget = threading.Semaphore(0)

    def run(number):
        try:
            write(dsn, f"{seed}/{number}", int(writers) / float(rate), stop, budget, done[number])
        except Exception as error:
            errors.append(f"{type(error).__name__}: {error}")

    threads = [threading.Thread(target=run, args=(number,)) for number in range(int(writers))]
    for thread in threads:
        thread.start()
    print("started", flush=True)
    for line in sys.stdin:
        budget.release(int(line))
    stop.set()
    for thread in threads:
        thread.join()
    print(json.dumps({"committed": sum(d.committed for d in done), "rolled_back": sum(d.rolled_back for d in done),
                      "slow": sum(d.slow for d in done), "longest": max(d.longest for d in done), "errors": errors}))


if __name__ == "__main__":
    main(*sys.argv[1:])
