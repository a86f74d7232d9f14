"""Stops the run before the replay, or before the fence, when something could not be kept."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import psycopg

from rebuilder.catalog.blueprint import Blueprint, Outcome, Schemas, Verdict
from rebuilder.catalog.obstacles import refuse
from rebuilder.catalog.plan import CatalogBlueprint
from rebuilder.catalog.sequences import generated_in_replay
from rebuilder.errors import MissingPrivilege, PreflightRefused


def refusals(blueprint: Blueprint) -> tuple[Verdict, ...]:
    """The objects that can't be kept."""
    return tuple(v for v in blueprint.verdicts if v.outcome is Outcome.REFUSE)


def generated_keys(connection: psycopg.Connection[Any], blueprint: CatalogBlueprint, work: Schemas) -> None:
    """After the bulk, before the fence: refuse when the replay drew values itself that another table's key refers to.

    A key validated afterwards could even hold, by chance, and bind rows to the wrong ones.
    """
    drawn = {(table.oid, column) for table, column in generated_in_replay(connection, blueprint, work)}
    refused = []
    for key in blueprint.dependents.referencing:
        table = blueprint.facts[key.referred]
        for column in table.columns:
            if column.number in key.referred_columns and (table.oid, column.name) in drawn:
                name = f"{key.name} on {key.schema}.{key.table_name}"
                reason = f"it refers to {table.label}.{column.name}, whose values the replay drew from a sequence"
                hint = "Let the events carry the key and the handlers write it, or drop the foreign key."
                refused.append(refuse(table, "foreign-key", name, reason, hint))
    _raise(blueprint, refused)


def preflight(blueprint: Blueprint, allow: Collection[str] = ()) -> None:
    """Raise PreflightRefused unless all can be kept; ``allow`` holds ``loss:NAME`` for what may go with a column."""
    refused = [*refusals(blueprint)]
    refused += [v for v in blueprint.verdicts if v.outcome is Outcome.LOSS and f"loss:{v.name}" not in allow]
    _raise(blueprint, refused)


def _raise(blueprint: Blueprint, refused: Sequence[Verdict]) -> None:
    if not refused:
        return
    lines = [f"- {v.kind} {v.name} ({v.table}): {v.reason}. {v.hint}" for v in refused]
    tables = ", ".join(table.label for table in blueprint.tables)
    # Where grants mend all of it, nothing is wrong with the table: the role lacks privileges.
    kind = MissingPrivilege if all(v.hint.startswith("GRANT ") for v in refused) else PreflightRefused
    raise kind(
        f"The rebuild of {tables} was refused: {len(refused)} object(s) could not be kept. "
        "Live serves what it served before.\n" + "\n".join(lines),
        hint=refused[0].hint,
        objects=[
            {"outcome": v.outcome, "kind": v.kind, "name": v.name, "table": v.table, "reason": v.reason, "hint": v.hint}
            for v in refused
        ],
    )
