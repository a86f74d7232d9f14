"""Field cases that end in a terminal: nothing is swallowed, nothing is done without a word."""

import os
import pty
from contextlib import suppress

import pytest

from tests.bank import append, append_many, make_schema, rows_of


@pytest.fixture
def bank(connect):
    """1,000 events, the 500th of which no handler can take."""
    connection = connect(autocommit=True)
    make_schema(connection)
    append_many(connection, 499)
    append(connection, "account-9", "Deposited", {"amount": "a lot"})
    append_many(connection, 500)
    return connection


def test_a_broken_event_fails_the_command_in_a_pipe(cli, bank):
    """The exit code is not 0, and the error with its place is the last that stderr says (field case B54)."""
    done = cli("rebuild", "account_balance")
    assert done.code == 1, done
    assert "event 500 (Deposited, stream account-9)" in done.stderr
    assert "a lot" not in done.stdout
    assert rows_of(bank) == []


def test_a_broken_event_fails_the_command_on_a_terminal(cli, bank):
    """The progress bar does not hide the error, nor does it make the command succeed (field case B54)."""
    master, slave = pty.openpty()
    running = cli.start("rebuild", "account_balance", stderr=slave)
    os.close(slave)
    said = bytearray()
    with suppress(OSError), os.fdopen(master, "rb", closefd=True) as terminal:  # EIO: the other side is gone
        while chunk := os.read(terminal.fileno(), 65536):
            said += chunk
    done = running.done()
    assert done.code == 1, done
    assert "event 500 (Deposited, stream account-9)" in said.decode()


def test_a_broken_event_fails_the_command_for_a_program(cli, bank):
    """With --json the error is an object on stdout, with the event's place in fields (field case B54)."""
    done = cli("rebuild", "account_balance", "--json")
    assert done.code == 1, done
    assert (done.json["error"], done.json["position"], done.json["type"]) == ("handler", 500, "Deposited")
    assert done.json["stream"] == "account-9"


def test_a_name_that_nothing_matches_is_an_error(cli, bank):
    """A typo is not "nothing to do": the names there are, the closest first, and exit code 2 (field case B68)."""
    done = cli("rebuild", "acount_balance")
    assert done.code == 2, done
    assert "did you mean 'account_balance'" in done.stderr
    assert "Registered: account_balance" in done.stderr
    assert bank.execute("SELECT count(*) FROM rebuilder.rebuild_ticket").fetchone() == (0,)


@pytest.mark.parametrize("command", ["plan", "verify", "status"])
def test_every_command_that_takes_a_name_says_so(cli, bank, command):
    """Not only rebuild (field case B68)."""
    done = cli(command, "acount_balance")
    assert done.code == 2, done
    assert "account_balance" in done.stderr
