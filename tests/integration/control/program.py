"""Rebuilds in processes of their own. One line of JSON a request: fork, rebuild up to a point, stay there.

Forked from a process that has imported everything and started no thread: a test that kills ten of them costs no ten
starts of Python.
"""

import json
import os
import sys
import time

from tests import bank


def say(**answer):
    os.write(1, (json.dumps(answer) + "\n").encode())


def rebuild(dsn, point):
    """The exit code of a rebuild that stays at a point until a signal ends it."""
    rebuilder = bank.make_rebuilder(dsn, settings={"heartbeat": 0.1})

    def stay(run):
        say(reached=point, pid=os.getpid())
        time.sleep(60)

    def busy(run):
        say(reached=point, pid=os.getpid())
        run.main.execute("SELECT pg_sleep(60)")

    rebuilder._seam.points[point.removesuffix(", in a statement")] = busy if "statement" in point else stay
    error = "nothing"
    try:
        rebuilder.rebuild("account_balance")
    except BaseException as raised:
        error = f"{type(raised).__name__}: {raised}".rstrip(": ")
    return error


def main():
    for line in sys.stdin:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            error = "the child could not start"
            try:
                error = rebuild(**json.loads(line))
            finally:
                os.write(writing, error.encode())
                os._exit(0)
        os.close(writing)
        _, status = os.waitpid(child, 0)
        with os.fdopen(reading) as pipe:
            say(status=os.waitstatus_to_exitcode(status), error=pipe.read())


if __name__ == "__main__":
    main()
