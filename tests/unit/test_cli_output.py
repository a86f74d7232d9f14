"""What is said, and to whom."""

import json
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import pytest

from rebuilder import errors
from rebuilder.cli import failures, main
from rebuilder.cli.building import outcome
from rebuilder.cli.output import Output, cell, dump, pairs, seconds, share, table
from rebuilder.cli.reports import rebuild_text
from rebuilder.domain.blocker import Blocker
from rebuilder.domain.report import Drift, DriftSample, Owed, RebuildReport

COMMANDS = ("install", "plan", "rebuild", "verify", "status", "tickets", "cancel", "cleanup", "doctor", "demo")


def report(**fields):
    given = {"projection": "account_balance", "ticket": "t", "generation": 2, "version": 3, "events_applied": 4000,
             "dead_letters": 0, "position": 4000, "rows": {"public.account_balance": 10}, "drift": Drift(),
             "attempts": 1, "late_events": 0}
    return RebuildReport(**{**given, **fields})


# --- exit codes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fields, options, code", [
    ({}, {}, 0),
    ({"drift": Drift(changed=1)}, {}, 0),
    ({"drift": Drift(changed=1)}, {"fail_on_drift": True}, 5),
    ({"dead_letters": 1}, {}, 6),
    ({"dead_letters": 1}, {"accept_dead_letters": True}, 0),
    ({"owed": (Owed("drop-retired", "x"),)}, {"accept_dead_letters": True}, 6),
    ({"owed": (Owed("drop-retired", "x"),), "drift": Drift(extra=1)}, {"fail_on_drift": True}, 5),
])
def test_the_exit_code_of_a_committed_rebuild(fields, options, code):
    assert outcome(report(**fields), **{"fail_on_drift": False, "accept_dead_letters": False, **options}) == code


@pytest.mark.parametrize("error, code", [
    (errors.HandlerFailed("x"), 1), (errors.UnknownProjection("x"), 2), (errors.GuardTripped("x"), 3),
    (errors.RebuildInProgress("x"), 4), (errors.RebuildCancelled("x"), 7), (errors.OutcomeUnknown("x"), 8),
    (ZeroDivisionError("x"), 1),
])
def test_the_exit_code_of_an_error_is_in_its_object(capsys, error, code):
    assert failures.tell(Output(json=True), error) == code
    told = json.loads(capsys.readouterr().out)
    assert (told["exit_code"], told["message"].endswith("x")) == (code, True)


# --- errors -----------------------------------------------------------------------------------------------------------


def test_an_error_says_what_happened_who_is_in_the_way_and_what_to_do(capsys):
    blocker = Blocker(pid=42, user="clerk", state="idle in transaction", age_seconds=61)
    error = errors.FenceNotAcquired("Not fenced. Live is as it was.", hint="rebuilder rebuild x --blockers cancel",
                                    blockers=[blocker.to_json()], sqlstate="55P03")
    error.add_note("the ticket could not be closed")
    assert failures.tell(Output(), error) == 4
    seen = capsys.readouterr()
    assert seen.out == ""
    assert seen.err.splitlines() == [
        "error: Not fenced. Live is as it was.", "  in the way: pid 42 (user clerk, idle in transaction for 61.0 s)",
        "  SQLSTATE 55P03", "  note: the ticket could not be closed", "  next: rebuilder rebuild x --blockers cancel"]


def test_a_blocker_that_the_message_names_is_not_named_twice(capsys):
    blocker = Blocker(pid=42)
    failures.tell(Output(), errors.FenceNotAcquired(f"In the way: {blocker.describe()}.", blockers=[blocker.to_json()]))
    assert capsys.readouterr().err.count("pid 42") == 1


def test_a_traceback_is_shown_only_when_asked_for(capsys):
    with pytest.raises(KeyError) as caught:
        {}["account"]
    failures.tell(Output(), caught.value)
    assert "Traceback" not in capsys.readouterr().err
    failures.tell(Output(), caught.value, debug=True)
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"], *([command, "--help"] for command in COMMANDS)])
def test_help_goes_to_stdout(capsys, arguments):
    assert main(arguments) == 0
    seen = capsys.readouterr()
    assert "Usage: rebuilder" in seen.out
    assert seen.err == ""
    if len(arguments) < 2:
        assert all(command in seen.out for command in COMMANDS)


@pytest.mark.parametrize("arguments", [
    ["--nothing"], ["rebuild"], ["rebuild", "x", "--wait", "long"], ["install", "x"],
])
def test_a_wrong_command_line_is_an_object_too(capsys, arguments):
    assert main([*arguments, "--json"]) == 2
    seen = capsys.readouterr()
    told = json.loads(seen.out)
    assert (told["error"], told["exit_code"]) == ("usage", 2)
    assert told["hint"].endswith("--help")
    assert told["message"] in seen.err


def test_no_application_is_2(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert main(["rebuild", "account_balance"]) == 2
    assert "No application is named" in capsys.readouterr().err


# --- values -----------------------------------------------------------------------------------------------------------


def test_json_takes_what_errors_and_reports_carry():
    value = {"at": datetime(2026, 1, 2, tzinfo=UTC), "id": UUID(int=1), "path": Path("/x"), "set": {2, 1},
             "blocker": Blocker(pid=1), "name": "naïve"}
    told = json.loads(dump(value))
    assert told["set"] == [1, 2]
    assert told["blocker"]["pid"] == 1
    assert told["at"].startswith("2026-01-02")
    assert "naïve" in dump(value)


@pytest.mark.parametrize("value, text", [
    (None, "-"), (0.012, "12 ms"), (3.44, "3.4 s"), (310, "5 min 10 s"), (59.999, "60.0 s"), (7500, "2 h 5 min"),
])
def test_durations(value, text):
    assert seconds(value) == text


@pytest.mark.parametrize("done, total, text", [
    (4500, 10_000, "4,500 of 10,000 (45 %)"), (7, None, "7"), (7, 0, "7"), (11, 10, "11 of 10 (100 %)"),
])
def test_shares(done, total, text):
    assert share(done, total) == text


@pytest.mark.parametrize("value, text", [(None, "-"), (True, "yes"), (1234567, "1,234,567"), ("x", "x")])
def test_cells(value, text):
    assert cell(value) == text


def test_a_table_in_a_pipe_keeps_each_row_in_a_line_and_brackets_as_they_are():
    text = table(["name", "count"], [["[bold]x[/bold]" + "y" * 300, 1000]], right=["count"])
    header, row = text.splitlines()
    assert header.startswith("name")
    assert row == "[bold]x[/bold]" + "y" * 300 + "  1,000"
    assert pairs([("a", None), ("b", 1)]) == "b  1"


def test_what_the_terminal_cannot_show_does_not_end_the_command(monkeypatch, tmp_path):
    with (tmp_path / "out").open("w", encoding="ascii") as stream:
        monkeypatch.setattr("sys.stdout", stream)
        Output().data({}, lambda: "naïve")
    assert (tmp_path / "out").read_text() == "na\\xefve\n"


def test_a_report_tells_drift_warnings_and_debts():
    sample = (DriftSample("public.account_balance", "changed", {"id": "a"}, ("balance",)),)
    text = rebuild_text(report(drift=Drift(1, 0, 2, sample), late_events=3, dead_letters=1, warnings=("mind this",),
                               owed=(Owed("validate-constraint", "fk"),), seconds={"catch up": 2.0, "total": 3.0}))
    for part in ("account_balance is rebuilt: version 3, generation 2.", "4,000 applied, 3 of them late",
                 "1 missing, 0 extra, 2 changed", "changed  public.account_balance (id=a) in balance", "... and 2 more",
                 "warning: mind this", "owed: validate-constraint fk; next: rebuilder cleanup",
                 "3.0 s (catch up 2.0 s)", "rebuilder dead-letters list account_balance"):
        assert part in text
