"""How an error is told, and which exit code it is."""

from __future__ import annotations

import traceback
from typing import Any

import psycopg

from rebuilder.cli.output import Output
from rebuilder.domain.blocker import Blocker
from rebuilder.errors import RebuilderError
from rebuilder.store.sessions import translate

CANCELLED = 7
USAGE = 2
_LAST = 1


def tell(output: Output, error: BaseException, *, debug: bool = False) -> int:
    """Tell an error on stderr, with ``--json`` on stdout as well; the exit code."""
    if debug:
        output.say("".join(traceback.format_exception(error)).rstrip())
    known = _known(error)
    if known is None:
        code, value = _LAST, {"error": "unexpected", "message": _unexpected(error), "class": type(error).__name__,
                              "hint": "repeat with --debug, which prints the traceback"}
    else:
        code, value = known.exit_code, known.to_json()
    notes = list(getattr(error, "__notes__", ()))
    output.say("\n".join(_lines(value, notes)))
    if output.json:
        output.data({**value, "exit_code": code, **({"notes": notes} if notes else {})}, str)
    return code


def _known(error: BaseException) -> RebuilderError | None:
    """The error as one of ours; what the driver raised outside the engine's own seams is translated here."""
    if isinstance(error, RebuilderError):
        return error
    # SQLAlchemy, through which the migrations run, wraps the driver's.
    original = getattr(error, "orig", error)
    if isinstance(original, psycopg.Error):
        return translate(original, "talking to the server")
    return None


def _unexpected(error: BaseException) -> str:
    said = str(error)
    return f"Unexpected {type(error).__name__}: {said}" if said else f"Unexpected {type(error).__name__}"


def _lines(value: dict[str, Any], notes: list[str]) -> list[str]:
    message = str(value["message"])
    lines = [f"error: {message}"]
    for each in value.get("blockers") or ():
        described = _blocker(each)
        if described not in message:
            lines.append(f"  in the way: {described}")
    if value.get("sqlstate") and str(value["sqlstate"]) not in message:
        lines.append(f"  SQLSTATE {value['sqlstate']}")
    if value.get("ticket") and str(value["ticket"]) not in message:
        lines.append(f"  ticket {value['ticket']}")
    lines += [f"  note: {note}" for note in notes]
    if value.get("hint"):
        lines.append(f"  next: {value['hint']}")
    return lines


def _blocker(each: Any) -> str:
    return Blocker(**each).describe() if isinstance(each, dict) else str(each)


def usage(output: Output, message: str, hint: str) -> int:
    """Tell a wrong command line."""
    output.say(f"error: {message}\n  next: {hint}")
    if output.json:
        output.data({"error": "usage", "message": message, "hint": hint, "exit_code": USAGE}, str)
    return USAGE


def interrupted(output: Output) -> int:
    """Tell that somebody ended a command that had nothing to roll back."""
    output.say("error: Interrupted.")
    if output.json:
        output.data({"error": "cancelled", "message": "Interrupted.", "hint": None, "exit_code": CANCELLED}, str)
    return CANCELLED
