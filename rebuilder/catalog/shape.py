"""A new shape: a SQLAlchemy Table says which columns the rebuilt table has; the rest is live's.

Definitions that mention a renamed column are the server's text with the old name in it, and are never edited. So the
shadow takes the old names for as long as such text is given to the server (renaming is a catalog change, no rewrite),
and the server follows the columns when they get their new names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import sqlalchemy
from psycopg import sql

from rebuilder.catalog.blueprint import Outcome, Statement, Verdict
from rebuilder.catalog.dependents import Dependent
from rebuilder.catalog.facts import ColumnFacts, ConstraintFacts, SequenceFacts, TableFacts
from rebuilder.catalog.obstacles import refuse
from rebuilder.catalog.session import Session
from rebuilder.catalog.shape_columns import Wanted, additions
from rebuilder.errors import DefinitionError
from rebuilder.sql import ddl


@dataclass(frozen=True, slots=True)
class Target:
    """What the shadow is made from: live's facts without what goes, under live's names, and the names they end with."""

    facts: TableFacts
    renames: tuple[tuple[str, str], ...] = ()
    new_keys: Callable[[str], list[Statement]] = lambda _schema: []
    new_indexes: Callable[[str], list[Statement]] = lambda _schema: []

    def final(self, name: str) -> str:
        """What a column is called in the end."""
        return dict(self.renames).get(name, name)

    def to_final_names(self, table: sql.Identifier) -> list[Statement]:
        return _rename(table, self.renames)

    def to_live_names(self, table: sql.Identifier) -> list[Statement]:
        return _rename(table, [(new, old) for old, new in self.renames])

    def under_live_names(self, table: sql.Identifier, statements: list[Statement]) -> list[Statement]:
        """The statements, with the columns called as live calls them for that long."""
        if not statements:
            return []
        return [*self.to_live_names(table), *statements, *self.to_final_names(table)]


def _rename(table: sql.Identifier, pairs: Sequence[tuple[str, str]]) -> list[Statement]:
    def rename(old: str, new: str) -> Statement:
        action = sql.SQL("RENAME COLUMN {} TO {}")
        return ddl.alter_table(table, action.format(sql.Identifier(old), sql.Identifier(new)))

    if not {old for old, _ in pairs} & {new for _, new in pairs}:
        return [rename(old, new) for old, new in pairs]
    # Names that change places need a third one in between.
    aside = [(old, f"rebuilder_renamed_{number}", new) for number, (old, new) in enumerate(pairs)]
    return [*(rename(old, between) for old, between, _ in aside), *(rename(between, new) for _, between, new in aside)]


@dataclass(frozen=True, slots=True)
class Difference:
    """What the new shape takes away or changes, by live's column numbers."""

    dropped: Mapping[int, str]
    retyped: Mapping[int, str]

    def gone(self, columns: Iterable[int]) -> list[str]:
        return [self.dropped[number] for number in columns if number in self.dropped]

    def changed(self, columns: Iterable[int]) -> list[str]:
        return [self.retyped[number] for number in columns if number in self.retyped]


def reshape(
    live: TableFacts,
    wanted: Sequence[Wanted],
    table: sqlalchemy.Table,
    dependents: Iterable[tuple[Dependent, Verdict]],
    session: Session,
) -> tuple[Target, list[Verdict]]:
    """The target, and a verdict for every column and object that the new shape touches."""
    by_name = {column.name: column for column in live.columns}
    columns: list[ColumnFacts] = []
    renames: list[tuple[str, str]] = []
    verdicts: list[Verdict] = []
    retyped: dict[int, str] = {}
    claimed = [want.source for want in wanted if want.source != want.name]
    for number, want in enumerate(wanted):
        # A live column that is renamed is not also continued by a new one of its name.
        free = want.source != want.name or want.name not in claimed
        source = want.source if free and want.source in by_name else None
        if want.source != want.name and (source is None or claimed.count(source) > 1):
            raise DefinitionError(
                f"The shape of {live.label} renames {want.source!r} to {want.name!r}, but live has no such column, or "
                "it is renamed twice.",
                hint=f"Name a column of {live.label} in info={{'renamed_from': …}}, or leave it out for a new column.",
            )
        if source is None:
            # Its name may be that of a column which goes, or which is called otherwise in the end.
            built = want.name if want.name not in by_name else f"rebuilder_new_{number}"
            columns.append(want.added(built, -1 - number))
            verdicts.append(_column(live, want.name, f"new, {want.type}"))
        else:
            kept, built = by_name[source], source
            columns.append(want.kept(kept))
            if want.type != kept.type:
                retyped[kept.number] = kept.name
                verdicts.append(_column(live, want.name, f"{want.type} instead of {kept.type}"))
            if want.name != source:
                verdicts.append(_column(live, want.name, f"renamed from {source}"))
        if built != want.name:
            renames.append((built, want.name))
    kept_numbers = {column.number for column in columns}
    dropped = {column.number: column.name for column in live.columns if column.number not in kept_numbers}
    difference = Difference(dropped, retyped)
    target, lost = _without(live, columns, difference)
    if session.named_not_null:
        target = _named_not_null(target, dict(renames))
    verdicts += lost
    verdicts += [v for d, verdict in dependents for v in _unfit(d, verdict, difference)]
    _check_key(live, table, dict(renames))
    extra = additions(live, table, {want.name: want.source for want in wanted})
    return Target(target, tuple(renames), extra.keys, extra.indexes), [*verdicts, *extra.verdicts]


def _column(live: TableFacts, name: str, reason: str) -> Verdict:
    return Verdict(Outcome.CARRY, "column", f"{live.label}.{name}", live.label, reason)


def _lost(live: TableFacts, kind: str, name: str, columns: Sequence[str]) -> Verdict:
    reason = f"it goes with {', '.join(columns)}, which the new shape does not have"
    hint = f"Allow it with loss:{name}, or keep the column in the shape."
    return Verdict(Outcome.LOSS, kind, name, live.label, reason, hint)


def _without(live: TableFacts, columns: list[ColumnFacts], difference: Difference) -> tuple[TableFacts, list[Verdict]]:
    """Live's facts without what hangs off dropped columns, and what that is."""
    here = f"on {live.label}"
    names = {column.name for column in columns}
    lost = [_lost(live, "column", f"{live.label}.{name}", [name]) for name in difference.dropped.values()]
    lost += [
        _lost(live, "sequence", f"{s.schema}.{s.name}", [s.column])
        for s in live.sequences
        if s.column not in names and s.owned
    ]

    def keep(kind: str, name: str, numbers: Iterable[int]) -> bool:
        gone = difference.gone(numbers)
        if gone:
            lost.append(_lost(live, kind, name, gone))
        return not gone

    def untouched(kind: str, name: str, numbers: Iterable[int]) -> bool:
        changed = difference.changed(numbers)
        if changed:
            reason = f"it mentions {', '.join(changed)}, whose type changes"
            lost.append(refuse(live, kind, name, reason, f"Drop the {kind} and add it again after the rebuild."))
        return keep(kind, name, numbers)

    constraints = [c for c in live.constraints if _stays(c, columns, keep, untouched, here)]
    kept_constraints = {c.name for c in constraints}
    indexes = [
        i
        for i in live.indexes
        if (i.constraint in kept_constraints if i.constraint else keep("index", f"{live.schema}.{i.name}", i.columns))
    ]
    identity = live.replica_identity
    if identity == "i" and not any(i.replica_identity for i in indexes):
        identity = "d"  # its index is lost by name already
    facts = replace(
        live,
        columns=tuple(columns),
        constraints=tuple(constraints),
        indexes=tuple(indexes),
        statistics=tuple(s for s in live.statistics if keep("statistics", f"{s.schema}.{s.name}", s.columns)),
        triggers=tuple(t for t in live.triggers if keep("trigger", f"{t.name} {here}", t.columns)),
        rules=tuple(r for r in live.rules if untouched("rule", f"{r.name} {here}", r.columns)),
        policies=tuple(p for p in live.policies if untouched("policy", f"{p.name} {here}", p.columns)),
        sequences=tuple(_fit(s, columns) for s in live.sequences if s.column in names),
        replica_identity=identity,
        of_type=None if difference.dropped or difference.retyped else live.of_type,
    )
    return facts, lost


BOUNDS = {"smallint": 2**15, "integer": 2**31, "bigint": 2**63}


def _fit(sequence: SequenceFacts, columns: Sequence[ColumnFacts]) -> SequenceFacts:
    """An identity column's sequence has its column's type: bounds that were the old type's are the new one's now."""
    new = next(c.type for c in columns if c.name == sequence.column)
    if not sequence.identity or new == sequence.type:
        return sequence
    old_bound, new_bound = BOUNDS[sequence.type], BOUNDS.get(new, BOUNDS["bigint"])
    return replace(
        sequence,
        type=new,
        minimum=-new_bound if sequence.minimum == -old_bound else sequence.minimum,
        maximum=new_bound - 1 if sequence.maximum == old_bound - 1 else sequence.maximum,
    )


def _stays(
    constraint: ConstraintFacts,
    columns: Sequence[ColumnFacts],
    keep: Callable[[str, str, Iterable[int]], bool],
    untouched: Callable[[str, str, Iterable[int]], bool],
    here: str,
) -> bool:
    name = f"{constraint.name} {here}"
    match constraint.kind:
        case "n":  # NOT NULL is the shape's to say
            return any(c.number in constraint.columns and c.not_null for c in columns)
        case "f":
            return untouched("foreign-key", name, constraint.columns)
        case "t":
            return True
        case _:
            return keep("constraint", name, constraint.columns)


def _named_not_null(target: TableFacts, renames: Mapping[str, str]) -> TableFacts:
    """Columns that are NOT NULL now, by a name of ours: the server would take that of the copy they are made in."""
    named = {number for constraint in target.of_kind("n") for number in constraint.columns}
    new = [
        ConstraintFacts(
            oid=0,
            name=f"{target.name}_{renames.get(column.name, column.name)}_not_null",
            kind="n",
            definition=f"NOT NULL {sql.Identifier(column.name).as_string(None)}",
            validated=True,
            enforced=True,
            deferrable=False,
            deferred=False,
            overlaps=False,
            columns=(column.number,),
            index=0,
            table=target.oid,
            referred=0,
            referred_columns=(),
            comment=None,
        )
        for column in target.columns
        if column.not_null and column.number not in named
    ]
    return replace(target, constraints=(*target.constraints, *new))


def _unfit(dependent: Dependent, verdict: Verdict, difference: Difference) -> list[Verdict]:
    """What others say of live must still fit: nothing of theirs is dropped or guessed."""
    touched = [*difference.gone(dependent.columns), *difference.changed(dependent.columns)]
    if not touched:
        return []
    reason = f"it mentions {', '.join(touched)}, which the new shape drops or changes the type of"
    hint = "Change it so that it does without, or drop it and make it again after the rebuild."
    return [replace(verdict, outcome=Outcome.REFUSE, reason=reason, hint=hint)]


def _check_key(live: TableFacts, table: sqlalchemy.Table, renames: Mapping[str, str]) -> None:
    """Rows are compared by primary key, so the shape must have live's."""
    names = {column.number: column.name for column in live.columns}
    key = [renames.get(names[number], names[number]) for k in live.of_kind("p") for number in k.columns]
    shaped = [column.name for column in table.primary_key.columns]
    if key and sorted(key) != sorted(shaped):
        raise DefinitionError(
            f"The shape of {live.label} has the primary key ({', '.join(shaped)}), live has ({', '.join(key)}).",
            hint="Keep the key in the shape; change it in a migration of its own.",
        )
