"""A bank whose read model is wrong, so that a rebuild that did anything is seen."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import bank

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def db(connect, dsn):
    """An autocommit connection to the test's database, with 60 events of 5 accounts and two wrong rows in live."""
    connection = connect(autocommit=True)
    bank.make_schema(connection)
    bank.append_many(connection, 60, accounts=5)
    connection.execute("INSERT INTO account_balance VALUES ('account-1', 'wrong', 1, 1), ('nobody', 'wrong', 2, 2)")
    return connection


class Program:
    """A process that forks a rebuilding process for each request, so that one can be killed outright."""

    def __init__(self):
        command = [sys.executable, "-m", "tests.integration.control.program"]
        self.process = subprocess.Popen(command, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def start(self, dsn, point):
        """Rebuild up to a seam point, and stay there; the pid of the rebuilding process once it is there."""
        self.send(dsn=dsn, point=point)
        answer = json.loads(self.process.stdout.readline())
        assert answer.get("reached") == point, answer
        return answer["pid"]

    def send(self, **request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()

    def ended(self):
        """How the rebuilding process ended: its exit code, or minus the signal; and what it said."""
        answer = json.loads(self.process.stdout.readline())
        return answer["status"], answer["error"]

    def close(self):
        self.process.stdin.close()
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(10)
        self.process.stdout.close()


@pytest.fixture(scope="module")
def program():
    made = Program()
    yield made
    made.close()
