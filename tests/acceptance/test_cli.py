"""The command line as people and scripts meet it: the installed program, a real database."""

import os
import pty
import signal
import subprocess
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.bank import append, append_many, assert_equal_to_replay, make_schema
from tests.fix_cli import SCRIPT, Cli, Running
from tests.fix_db import Connect
from tests.fix_threads import wait_until

NAME = "account_balance"
MAIN = "FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'rebuilder:%%:main'"


@pytest.fixture
def bank(connect: Connect) -> psycopg.Connection[Any]:
    """A bank whose read model is empty, so wrong: 200 events, ten accounts, one of them closed. In autocommit."""
    connection = connect(autocommit=True)
    make_schema(connection)
    append_many(connection, 200)
    return connection


def rows(bank: psycopg.Connection[Any]) -> list[Any]:
    return bank.execute("SELECT * FROM account_balance ORDER BY id").fetchall()


def stages(bank: psycopg.Connection[Any]) -> list[Any]:
    return bank.execute("SELECT stage, failure_code FROM rebuilder.rebuild_ticket ORDER BY generation").fetchall()


def in_handler(bank: psycopg.Connection[Any], query: str, running: Running) -> str:
    """Wait until the run is inside the handler whose statement that is; its ticket."""

    def there() -> object:
        assert running.process.poll() is None, running.done()
        return bank.execute(f"SELECT 1 {MAIN} AND query LIKE %s", [f"%{query}%"]).fetchone()

    wait_until(there, 30, f"a run in {query}, which says {running.stderr!r}")
    row = bank.execute("SELECT ticket FROM rebuilder.rebuild_ticket WHERE stage = 'running'").fetchone()
    assert row is not None
    return str(row[0])


# --- done -------------------------------------------------------------------------------------------------------------


def test_a_rebuild_in_a_pipe_prints_its_report_on_stdout_and_plain_lines_on_stderr(cli, bank):
    cli.program = [str(SCRIPT)]
    done = cli("rebuild", NAME)
    assert done.code == 0, done
    assert done.stdout.startswith("account_balance is rebuilt: version 1, generation 1.\n")
    assert "200 applied" in done.stdout
    assert "target: database" in done.stderr.splitlines()[0]
    assert "account_balance: catch up" in done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    assert assert_equal_to_replay(bank) == 9
    assert cli("verify", NAME).code == 0


def test_on_a_terminal_a_bar_shows_rate_and_progress(cli, bank):
    append_many(bank, 20_000)
    master, slave = pty.openpty()
    running = cli.start("rebuild", NAME, stderr=slave, TERM="xterm-256color")
    os.close(slave)
    seen = bytearray()
    try:
        while chunk := os.read(master, 65536):
            seen += chunk
    except OSError:  # EIO: how a terminal says that the other end is closed
        pass
    finally:
        os.close(master)
    done = running.done()
    text = seen.decode()
    assert done.code == 0, done
    assert "━" in text
    assert "account_balance: catch up" in text
    assert "/s" in text
    assert "%" in text
    assert "\x1b[?25h" in text, "the cursor is shown again"
    assert "\x1b" not in done.stdout


def test_json_of_a_rebuild_is_the_report(cli, bank):
    done = cli("rebuild", NAME, "--json", "--reason", "recipe_changed", "--note", "tests", "--retire", "drop")
    assert done.code == 0, done
    assert done.json["events_applied"] == 200
    assert done.json["exit_code"] == 0
    ticket = cli("tickets", "--json").json[0]
    assert (ticket["reason"], ticket["note"], ticket["stage"]) == ("recipe_changed", "tests", "completed")


@pytest.mark.parametrize("arguments", [
    ["status"], ["status", NAME], ["tickets"], ["tickets", NAME], ["plan", NAME], ["verify", NAME], ["doctor"],
    ["cleanup"], ["cleanup", NAME, "--all-kept"], ["dead-letters", "list"], ["install"], ["install", "--sql"],
    ["rebuild", NAME], ["dead-letters", "show", "1"], ["cancel", "00000000-0000-0000-0000-000000000001"],
    ["rebuild", "nobody"], ["rebuild", NAME, "--max-rate", "never"], ["nothing"],
], ids=" ".join)
def test_json_is_printed_by_every_command(cli, bank, arguments):
    done = cli(*arguments, "--json")
    value = done.json
    if done.code in {1, 2, 4} or "error" in value:
        assert value["exit_code"] == done.code
        assert value["message"]
        assert f"error: {value['message']}".splitlines()[0] in done.stderr


def test_status_shows_what_was_never_built_and_then_what_was(cli, bank):
    done = cli("status")
    assert done.code == 0, done
    header, row = done.stdout.splitlines()[:2]
    assert header.split()[0] == "projection"
    assert "never_built" in row
    (before,) = cli("status", "--json").json
    assert (before["health"], before["version"], before["recipe_version"]) == ("never_built", None, 1)
    assert before["high_water_mark"] == 200
    assert cli("rebuild", NAME).code == 0
    (after,) = cli("status", NAME, "--json").json
    assert (after["health"], after["generation"], after["version"], after["position"]) == ("ready", 1, 1, 200)


def test_status_tickets_and_cleanup_need_only_a_dsn(cli, bank, dsn):
    assert cli("rebuild", NAME).code == 0
    (cli.folder / "pyproject.toml").unlink()
    status = cli("status", "--dsn", dsn, "--json").json
    assert [(each["projection"], each["health"], each["recipe_version"]) for each in status] == [(NAME, "ready", None)]
    assert cli("tickets", REBUILDER_DSN=dsn, DATABASE_URL=dsn).code == 0
    kept = cli("cleanup", "--dsn", dsn)
    assert kept.code == 0, kept
    assert "kept   drop-retired" in kept.stdout
    dropped = cli("cleanup", "--dsn", dsn, "--all-kept")
    assert "done   drop-retired" in dropped.stdout
    assert cli("status", "--dsn", dsn, "nobody").code == 2
    assert cli("doctor", "--dsn", dsn).code == 0


def test_watch_goes_on_until_ctrl_c(cli, bank):
    running = cli.start("status", "--watch", "--json")
    wait_until(lambda: running.stdout.count("\n") >= 2, 30, "two looks")
    running.signal(signal.SIGINT)
    assert running.done().code == 0


def test_what_a_plan_shows(cli, bank):
    done = cli("plan", NAME)
    assert done.code == 0, done
    assert "Locks of the fence, in order" in done.stdout
    assert len(rows(bank)) == 0


def test_install_makes_the_schema_and_prints_it_as_sql(make_cli: Callable[[str], Cli], bare_dsn):
    cli = make_cli(bare_dsn)
    done = cli("install", "--sql")
    assert done.code == 0, done
    assert 'CREATE TABLE "rebuilder".projection_state' in done.stdout
    assert cli("install").code == 0
    assert cli("install", "--schema", "books").code == 0
    with psycopg.connect(bare_dsn) as connection:
        found = connection.execute("SELECT to_regclass('books.projection_state'), to_regclass('rebuilder.owed')")
        assert found.fetchone() == ("books.projection_state", "rebuilder.owed")


# --- failed, refused, not now -----------------------------------------------------------------------------------------


def test_a_poison_event_fails_the_run_with_its_place_on_stderr(cli, bank):
    position = append(bank, "a-1", "Poison")
    done = cli("rebuild", NAME, "--json")
    assert done.code == 1, done
    for part in (f"event {position}", "Poison", "stream a-1", "this event is poison", "next: ", "Live is as it was"):
        assert part in done.stderr
    assert (done.json["error"], done.json["position"], done.json["stream"]) == ("handler", position, "a-1")
    assert done.json["ticket"] == cli("tickets", "--json").json[0]["ticket"]
    assert f"  ticket {done.json['ticket']}\n" in done.stderr
    assert rows(bank) == []
    assert stages(bank) == [("failed", "handler")]
    assert "Traceback" not in done.stderr
    assert "Traceback" in cli("rebuild", NAME, "--debug").stderr


def test_a_typo_is_answered_with_the_closest_and_all_names(cli, bank):
    done = cli("rebuild", "acount_balance")
    assert done.code == 2
    assert "did you mean 'account_balance'?" in done.stderr
    assert "Registered: account_balance" in done.stderr
    assert done.stdout == ""


def test_a_missing_schema_is_refused_with_the_command_that_makes_it(make_cli: Callable[[str], Cli], bare_dsn):
    cli = make_cli(bare_dsn)
    with psycopg.connect(bare_dsn) as connection:
        make_schema(connection)
    for arguments in (["rebuild", NAME], ["status"], ["tickets"], ["cleanup"], ["dead-letters", "list"]):
        done = cli(*arguments)
        assert done.code == 3, done
        assert "next: run `rebuilder install`" in done.stderr


def test_what_cannot_be_kept_is_refused_by_name_and_planned_as_refused(cli, bank):
    bank.execute("CREATE MATERIALIZED VIEW rich AS SELECT * FROM account_balance")
    done = cli("rebuild", NAME)
    assert done.code == 3, done
    assert "rich" in done.stderr
    assert "next: " in done.stderr
    plan = cli("plan", NAME)
    assert plan.code == 3
    assert "REFUSED" in plan.stdout


def test_a_guard_stops_the_run_until_it_is_allowed(cli, bank):
    bank.execute("INSERT INTO account_balance (id, balance, changes) SELECT 'x' || i, 0, 0"
                 " FROM generate_series(1, 100) AS i")
    done = cli("rebuild", NAME)
    assert done.code == 3, done
    assert "Guard shrink" in done.stderr
    assert "--allow shrink" in done.stderr
    assert len(rows(bank)) == 100
    allowed = cli("rebuild", NAME, "--allow", "shrink")
    assert allowed.code == 0, allowed
    assert "warning: Guard shrink was allowed" in allowed.stderr
    assert assert_equal_to_replay(bank) == 9


def test_drift_is_5_of_verify_and_of_rebuild_when_asked(cli, bank):
    assert cli("rebuild", NAME).code == 0
    bank.execute("UPDATE account_balance SET balance = balance + 1 WHERE id <= 'account-2'")
    done = cli("verify", NAME, "--json")
    assert done.code == 5, done
    assert done.json["drift"]["changed"] == 3
    told = cli("verify", NAME)
    assert "3 changed" in told.stdout
    assert "next: rebuilder rebuild account_balance" in told.stdout
    assert cli("rebuild", NAME, "--fail-on-drift").code == 5
    assert cli("rebuild", NAME, "--fail-on-drift").code == 0, "the first has repaired it"


def test_quarantine_owes_unless_the_dead_letters_are_accepted(cli, bank):
    position = append(bank, "a-1", "Poison", {"secret": "kept"})
    done = cli("rebuild", NAME, "--quarantine", "--keep-data")
    assert done.code == 6, done
    assert "dead-letters list account_balance" in done.stdout
    (letter,) = cli("dead-letters", "list", NAME, "--json").json
    assert (letter["position"], letter["type"], letter["in_live"]) == (position, "Poison", True)
    shown = cli("dead-letters", "show", str(letter["id"]))
    assert "this event is poison" in shown.stdout
    assert "ValueError" in shown.stdout
    assert cli("rebuild", NAME, "--quarantine-policy", "event", "--accept-dead-letters").code == 0


def test_too_many_dead_letters_fail(cli, bank):
    for stream in ("a-1", "a-2"):
        append(bank, stream, "Poison")
    done = cli("rebuild", NAME, "--quarantine", "--max-dead-letters", "1")
    assert done.code == 1, done
    assert rows(bank) == []


def test_older_code_is_refused(cli, bank):
    assert cli("rebuild", NAME, BANK_VERSION="2").code == 0
    done = cli("rebuild", NAME)
    assert done.code == 3
    assert "version 2" in done.stderr
    assert cli("rebuild", NAME, "--allow", "downgrade").code == 0


# --- stopped ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def slow(cli: Cli, bank: psycopg.Connection[Any]) -> Running:
    """A rebuild inside a statement that does not end by itself."""
    append(bank, "a-1", "Slow")
    running = cli.start("rebuild", NAME, "--json")
    in_handler(bank, "pg_sleep(600)", running)
    return running


def test_cancel_from_another_process(cli, bank, slow):
    ticket = in_handler(bank, "pg_sleep(600)", slow)
    (status,) = cli("status", "--json").json
    assert (status["health"], status["alive"], status["ticket"]["ticket"]) == ("rebuilding", True, ticket)
    told = cli("status").stdout
    assert f"running: ticket {ticket}" in told
    assert "alive" in told
    asked = cli("cancel", ticket)
    assert asked.code == 0, asked
    done = slow.done()
    assert done.code == 7, done
    assert done.json["error"] == "cancelled"
    assert "rebuilder cancel" in done.stderr
    assert stages(bank) == [("cancelled", "cancelled")]
    assert rows(bank) == []
    again = cli("cancel", ticket)
    assert again.code == 1
    assert "it is cancelled" in again.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_rolls_back_and_closes_the_ticket(bank, slow, number):
    slow.signal(number)
    done = slow.done()
    assert done.code == 7, done
    assert f"{number.name}: the rebuild stops" in done.stderr
    assert f"was cancelled ({number.name})" in done.stderr
    assert stages(bank) == [("cancelled", "cancelled")]
    assert rows(bank) == []


def test_a_second_signal_ends_the_process_at_once(cli, bank):
    append(bank, "a-1", "Stuck")
    running = cli.start("rebuild", NAME)
    in_handler(bank, "AS stuck", running)
    running.signal(signal.SIGINT)
    running.says("SIGINT: the rebuild stops")
    running.signal(signal.SIGTERM)
    done = running.done(10)
    assert done.code == 7, done
    assert "SIGTERM again: ended at once" in done.stderr
    assert stages(bank) == [("running", None)]
    wait_until(lambda: not bank.execute(f"SELECT 1 {MAIN}", []).fetchall(), what="the server to notice")
    (status,) = cli("status", "--json").json
    assert status["alive"] is False
    cleaned = cli("cleanup")
    assert cleaned.code == 0, cleaned
    assert "done   abandoned-ticket" in cleaned.stdout
    assert stages(bank) == [("failed", "abandoned")]


def test_a_signal_stops_a_verification(cli, bank):
    append(bank, "a-1", "Slow")
    running = cli.start("verify", NAME)
    wait_until(lambda: bank.execute("SELECT 1 FROM pg_stat_activity WHERE query LIKE %s AND pid <> pg_backend_pid()"
                                    " AND datname = current_database()", ["%pg_sleep(600)%"]).fetchone(), 30)
    running.signal(signal.SIGTERM)
    assert running.done().code == 7


def test_another_rebuild_of_the_same_projection_is_not_now(cli, bank, slow):
    ticket = in_handler(bank, "pg_sleep(600)", slow)
    done = cli("rebuild", NAME)
    assert done.code == 4, done
    assert ticket in done.stderr
    assert f"rebuilder cancel {ticket}" in done.stderr
    slow.signal(signal.SIGINT)
    assert slow.done().code == 7


def test_who_is_in_the_way_of_the_fence_is_named_while_the_run_waits(cli, bank, connect):
    reader = connect(application_name="a long report")
    reader.execute("SELECT * FROM account_balance")
    running = cli.start("rebuild", NAME)
    running.says(f"in the way: pid {reader.info.backend_pid}")
    running.says("a long report")
    reader.commit()
    done = running.done()
    assert done.code == 0, done
    lines = [line for line in done.stderr.splitlines() if "in the way" in line]
    assert len(lines) < 10, "a line for each obstacle, not for each attempt"


def test_a_deadline_is_not_now(cli, bank):
    append(bank, "a-1", "Slow")
    done = cli("rebuild", NAME, "--deadline", "1")
    assert done.code == 4, done
    assert "deadline" in done.stderr


@pytest.mark.parametrize("streams", [("stdout",), ("stderr",), ("stdout", "stderr")], ids=" and ".join)
def test_a_reader_that_goes_away_changes_nothing(cli, bank, streams):
    read, write = os.pipe()
    os.close(read)
    running = cli.start("rebuild", NAME, **dict.fromkeys(streams, write))
    os.close(write)
    done = running.done()
    assert done.code == 0, done
    assert stages(bank) == [("completed", None)]


def test_a_table_into_a_pipe_that_closes(cli, bank):
    shell = f"{' '.join(cli.program)} tickets | head -c 1 > /dev/null; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", shell], cwd=cli.folder, env=cli.environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


# --- where to ---------------------------------------------------------------------------------------------------------


def test_sources_that_disagree_stop_what_changes_and_warn_what_looks(cli, bank, dsn):
    other = make_conninfo(dsn, dbname="production", password="swordfish")
    changing = cli("rebuild", NAME, DATABASE_URL=other)
    assert changing.code == 2, changing
    assert "the application says" in changing.stderr
    assert "DATABASE_URL says" in changing.stderr
    assert "database production" in changing.stderr
    assert stages(bank) == []
    looking = cli("status", DATABASE_URL=other)
    assert looking.code == 0, looking
    assert "warning: the application and DATABASE_URL name different databases" in looking.stderr
    assert "swordfish" not in changing.stderr + looking.stderr


def test_a_server_that_does_not_answer(cli):
    done = cli("status", "--dsn", "host=127.0.0.1 port=1 dbname=bank user=clerk password=swordfish", "--json")
    assert done.code == 1, done
    assert "refused" in done.stderr
    assert "'clerk'" in done.stderr
    assert "swordfish" not in done.stderr + done.stdout


def test_a_password_is_never_shown(cli, dsn, role):
    clerk = role()
    for broken in (make_conninfo(clerk.dsn(dsn), dbname="nowhere"), "postgresql://clerk:swordfish@[half/bank"):
        for arguments in (["status"], ["rebuild", NAME], ["doctor", "--debug"]):
            done = cli(*arguments, "--dsn", broken)
            assert done.code in {1, 2}, done
            assert clerk.password not in done.stderr + done.stdout
            assert "swordfish" not in done.stderr + done.stdout


def test_a_role_without_privileges_is_told_the_grants(cli, bank, dsn, role):
    clerk = role().dsn(dsn)
    doctor = cli("doctor", "--dsn", clerk)
    assert doctor.code == 3, doctor
    assert 'GRANT USAGE ON SCHEMA "rebuilder" TO' in doctor.stdout
    assert cli("rebuild", NAME, "--dsn", clerk).code == 3


@pytest.mark.parametrize("app, parts", [
    ("nowhere:rebuilder", ["'nowhere' (from --app) was not found", "Looked in"]),
    ("shop:nothing", ["has no attribute 'nothing'", "--app shop:rebuilder"]),
    ("shop:handlers", ["is a SqlHandlers, not a Rebuilder"]),
    ("shop", ["must be module:attr"]),
    ("broken:rebuilder", ["ModuleNotFoundError: No module named 'not_there'", "broken.py, line 1"]),
    ("wrong:rebuilder", ["SyntaxError", "wrong.py"]),
])
def test_an_application_that_cannot_be_had(cli, bank, app, parts):
    (cli.folder / "broken.py").write_text("import not_there\n")
    (cli.folder / "wrong.py").write_text("def\n")
    done = cli("rebuild", NAME, "--app", app)
    assert done.code == 2, done
    for part in parts:
        assert part in done.stderr
    assert "Traceback" not in done.stderr


def test_a_project_that_cannot_be_imported_does_not_hide_the_status_from_a_dsn(cli, bank, dsn):
    (cli.folder / "shop.py").write_text("import not_there\n")
    done = cli("status", "--dsn", dsn)
    assert done.code == 0, done
    assert "Going on with the DSN alone" in done.stderr
    assert cli("status").code == 2


@pytest.mark.parametrize("arguments, part", [
    (["cancel", "42"], "must be a UUID"),
    (["cancel", "00000000-0000-0000-0000-000000000001"], "There is no ticket"),
    (["rebuild"], "Missing argument"),
    (["rebuild", NAME, "--retire", "burn"], "burn"),
    (["rebuild", NAME, "--allow", "everything"], "There is no guard 'everything'"),
    (["rebuild", NAME, "--keep-data"], "--quarantine is not given"),
    (["rebuild", NAME, "--max-rate", "0"], "max_rate is 0"),
    (["dead-letters", "show", "7"], "There is no dead letter 7"),
    (["tickets", "nobody"], "No projection is called 'nobody'"),
    (["rebuilt"], "No such command"),
])
def test_a_wrong_command_line_is_2(cli, bank, arguments, part):
    done = cli(*arguments)
    assert done.code == 2, done
    assert part in done.stderr
    assert "next: " in done.stderr
    assert done.stdout == ""
