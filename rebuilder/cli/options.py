"""The options that commands share, and the words that options take."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from rebuilder.domain.ticket import Reason

_WHERE = "Where"

App = Annotated[str | None, typer.Option(
    "--app", metavar="MODULE:ATTR", show_default=False, rich_help_panel=_WHERE,
    help="The application's Rebuilder; else REBUILDER_APP, or app under tool.rebuilder in ./pyproject.toml.")]
Dsn = Annotated[str | None, typer.Option(
    "--dsn", metavar="DSN", show_default=False, rich_help_panel=_WHERE,
    help="The database; else REBUILDER_DSN, the application's own, DATABASE_URL, libpq's environment.")]
Schema = Annotated[str | None, typer.Option(
    "--schema", metavar="NAME", show_default=False, rich_help_panel=_WHERE,
    help="The bookkeeping schema; else the application's setting, or rebuilder.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, an error too.")]

Name = Annotated[str, typer.Argument(metavar="NAME", show_default=False, help="The projection.")]
OptionalName = Annotated[str | None, typer.Argument(
    metavar="[NAME]", show_default=False, help="One projection; all if left out.")]
Allow = Annotated[list[str] | None, typer.Option(
    "--allow", metavar="GUARD", show_default=False,
    help="Let a guard pass: ghost-rows, shrink, null-column, downgrade, long-transaction, loss:OBJECT. Repeatable.")]
AllowLoss = Annotated[list[str] | None, typer.Option(
    "--allow-loss", metavar="OBJECT", show_default=False, help="The same as --allow loss:OBJECT. Repeatable.")]

Why = Annotated[Reason, typer.Option(
    "--reason", metavar="REASON", help=f"Why, for the ticket: {', '.join(Reason)}.")]
Note = Annotated[str | None, typer.Option("--note", show_default=False, help="A remark for the ticket.")]


class Policy(StrEnum):
    """What is set aside with a poison event."""

    STREAM = "stream"
    EVENT = "event"


class Retire(StrEnum):
    """What becomes of the old table."""

    KEEP = "keep"
    DROP = "drop"


class Blockers(StrEnum):
    """What may be done to sessions in front of the fence."""

    REPORT = "report"
    CANCEL = "cancel"
    TERMINATE = "terminate"
