"""The statements that read a log, as values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from psycopg import sql

from rebuilder.domain.batch_sql import BATCH_COLUMNS
from rebuilder.errors import LogDefinitionError
from rebuilder.eventlog.columns import ALIAS, Rendered, fragment, render
from rebuilder.eventlog.raw_event import Key
from rebuilder.eventlog.selection import Part, Selection

if TYPE_CHECKING:
    from rebuilder.eventlog.table_log import TableLog

_MAX_BRANCHES = 32
"""Beyond so many values, one walk along the position costs less than as many descents into an index."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Statements:
    """The reads of one log. Every one is filtered alike."""

    relation: sql.Composable
    output: sql.Composable
    native: sql.Composable
    """The select list of the relation ``batch``: as ``output``, with payloads of the log's own types."""
    position: sql.Composable
    order: sql.Composable
    by_tenant: bool
    filters: tuple[sql.Composable, ...]
    comparable: Rendered
    """``type`` and ``category`` as they are compared: raw where the column is text, so that indexes serve."""
    stream: tuple[sql.Composable, ...]
    """What identifies a stream: tenant and category, where the log has them, and its own key."""
    archived: sql.Composable | None = None
    """The condition of archived streams, unless they are replayed."""
    tenant: sql.Composable | None = None
    indexed: frozenset[str] = frozenset()
    """Of type and category, the ones with an index that goes on with the position."""

    def page(self, selection: Selection, *, after: Key | None = None, above: int | None = None,
             upto: int | None = None, limit: int | None = None, part: Part | None = None) -> sql.Composed:
        """Rows in reading order: behind a key or above a position, up to a position, so many of them."""
        bounds = [*self._bounds(after, above, upto), *self._part(part)]
        tail = sql.SQL("") if limit is None else sql.SQL(" LIMIT {}").format(sql.Literal(limit))

        def rows(conditions: list[sql.Composable]) -> sql.Composed:
            return sql.SQL("SELECT {} FROM {} AS {} WHERE {} ORDER BY {}{}").format(
                self.output, self.relation, sql.Identifier(ALIAS), _all([*conditions, *bounds]), self.order, tail)

        branches = self._branches(selection)
        if len(branches) == 1 or limit is None or self.by_tenant:
            return rows(self.matching(selection))
        # One walk per value along its own index, merged: rare types don't cost a walk through the whole log.
        parts = sql.SQL("\nUNION ALL\n").join(sql.SQL("({})").format(rows(branch)) for branch in branches)
        return sql.SQL("SELECT * FROM (\n{}\n) AS page ORDER BY position{}").format(parts, tail)

    def batch(self, selection: Selection, *, keys: Sequence[Key] | None = None, after: Key | None = None,
              upto: int | None = None) -> sql.Composed:
        """The relation ``batch``: the events of these keys, or those behind a key up to a position; in no order."""
        conditions = [*self.matching(selection), *self._bounds(after, None, upto)]
        if keys is not None:
            conditions.append(_among(self.position, self.tenant if self.by_tenant else None, keys))
        return sql.SQL("SELECT {} FROM {} AS {} WHERE {}").format(
            self.native, self.relation, sql.Identifier(ALIAS), _all(conditions))

    def extent(self, selection: Selection, *, above: int, upto: int) -> sql.Composed:
        """How many rows match between two positions, and the highest position among them."""
        return self._select(sql.SQL("count(*), coalesce(max({}), 0)").format(self.position), selection, above, upto)

    def count(self, selection: Selection, *, upto: int | None, above: int | None) -> sql.Composed:
        """How many rows match."""
        return self._select(sql.SQL("count(*)"), selection, above, upto)

    def keys(self, selection: Selection, *, above: int) -> sql.Composed:
        """The keys of the rows that match."""
        return self._select(self.order, selection, above, None)

    def totals(self, selection: Selection) -> sql.Composed:
        """Count and highest position of the rows that match, and the highest position of all."""
        return sql.SQL("SELECT matching.*, ({}) FROM ({}) AS matching").format(
            self.highest(),
            self._select(sql.SQL("count(*), coalesce(max({}), 0)").format(self.position), selection, None, None))

    def highest(self) -> sql.Composed:
        """The highest position of the relation, 0 if it is empty."""
        return sql.SQL("SELECT coalesce(max({}), 0) FROM {} AS {}").format(
            self.position, self.relation, sql.Identifier(ALIAS))

    def everything(self) -> sql.Composed:
        """All rows of the relation."""
        return sql.SQL("SELECT FROM {} AS {}").format(self.relation, sql.Identifier(ALIAS))

    def archive(self, archived: sql.Composable) -> sql.Composed:
        """How many streams are archived, and a digest of which."""
        return sql.SQL("SELECT count(*), coalesce(sum(hashtextextended(streams::text, 0)::numeric), 0)::text "
                       "FROM (SELECT DISTINCT {} FROM {} AS {} WHERE {}) AS streams").format(
            sql.SQL(", ").join(sql.SQL("{} AS {}").format(part, sql.Identifier(f"part{n}"))
                               for n, part in enumerate(self.stream)),
            self.relation, sql.Identifier(ALIAS), archived)

    def lowest(self) -> sql.Composed:
        """The lowest position of the relation, NULL if it is empty."""
        return sql.SQL("SELECT min({}) FROM {} AS {}").format(self.position, self.relation, sql.Identifier(ALIAS))

    def matching(self, selection: Selection) -> list[sql.Composable]:
        """The conditions of a selection, with what the log itself leaves out."""
        if not selection.types:
            return [sql.SQL("false")]
        conditions = [self._one_of("type", selection.types)]
        if selection.categories:
            conditions.append(self._one_of("category", selection.categories))
        return [*conditions, *self.filters]

    def _part(self, part: Part | None) -> list[sql.Composable]:
        if part is None:
            return []
        return [sql.SQL('(hashtext({} COLLATE "C") & 2147483647) % {} = {}').format(
            self.stream[-1], sql.Literal(part.of), sql.Literal(part.number))]

    def _branches(self, selection: Selection) -> list[list[sql.Composable]]:
        for role, values in (("type", selection.types), ("category", selection.categories)):
            if role in self.indexed and 1 < len(set(values)) <= _MAX_BRANCHES:
                narrowed: Callable[[str], Selection] = (
                    (lambda value: Selection((value,), selection.categories)) if role == "type"
                    else (lambda value: Selection(selection.types, (value,))))
                return [self.matching(narrowed(value)) for value in sorted(set(values))]
        return [self.matching(selection)]

    def _one_of(self, role: str, values: tuple[str, ...]) -> sql.Composable:
        if role not in self.comparable:
            raise LogDefinitionError(f"A projection reads {role} {', '.join(values)}; the log has no {role} column.",
                                     hint=f"name it with Columns({role}=…), or leave the projection's {role} out")
        left = self.comparable[role]
        if len(values) == 1:
            return sql.SQL("{} = {}").format(left, sql.Literal(values[0]))
        return sql.SQL("{} IN ({})").format(left, sql.SQL(", ").join(map(sql.Literal, values)))

    def _bounds(self, after: Key | None, above: int | None, upto: int | None) -> list[sql.Composable]:
        bounds: list[sql.Composable] = []
        if after is not None and self.by_tenant:
            # A row comparison is one range of the index; its OR form is not (the planner walks from the start).
            bounds.append(sql.SQL("({}) > ({})").format(self.order, sql.SQL(", ").join(map(_literal, after))))
        elif after is not None:
            above = after[0] if above is None else max(above, after[0])
        if above is not None:
            bounds.append(sql.SQL("{} > {}").format(self.position, _literal(above)))
        if upto is not None:
            bounds.append(sql.SQL("{} <= {}").format(self.position, _literal(upto)))
        return bounds

    def _select(self, what: sql.Composable, selection: Selection, above: int | None,
                upto: int | None) -> sql.Composed:
        conditions = [*self.matching(selection), *self._bounds(None, above, upto)]
        return sql.SQL("SELECT {} FROM {} AS {} WHERE {}").format(
            what, self.relation, sql.Identifier(ALIAS), _all(conditions))


def _all(conditions: list[sql.Composable]) -> sql.Composed:
    return sql.SQL(" AND ").join(conditions)


def _among(position: sql.Composable, tenant: sql.Composable | None, keys: Sequence[Sequence[Any]]) -> sql.Composed:
    if tenant is None:
        return sql.SQL("{} = ANY ({}::int8[])").format(position, sql.Literal([key[0] for key in keys]))
    return sql.SQL("({}, {}::text) IN ({})").format(position, tenant, sql.SQL(", ").join(
        sql.SQL("({}, {}::text)").format(_literal(key[0]), sql.Literal(key[1])) for key in keys))


def batch_of(definition: TableLog, keys: Sequence[tuple[int, str | None]]) -> sql.Composed:
    """The relation ``batch`` of some events, from a log that was not opened; the tenant counts where it has one."""
    columns = {role: render(value) for role, value in definition.columns.items()}
    tenant = columns.get("tenant")
    return sql.SQL("SELECT {} FROM {} AS {} WHERE {}").format(
        native(columns), fragment(definition.relation), sql.Identifier(ALIAS),
        _among(columns["position"], tenant, keys))


def native(columns: Mapping[str, sql.Composable]) -> sql.Composed:
    """The select list of the relation ``batch``: ``columns`` as they are, but for what is text there."""
    return sql.SQL(", ").join(
        sql.SQL("{}{} AS {}").format(columns.get(role, sql.NULL), _CASTS.get(role, sql.SQL("")), sql.Identifier(role))
        for role in BATCH_COLUMNS)


_CASTS = {role: sql.SQL("::text") for role in ("stream", "type", "category", "tenant")}


def _literal(value: Any) -> sql.Composable:
    # A bigint whatever its size: an int literal beyond bigint would be numeric, which no integer index serves.
    return sql.SQL("{}::int8").format(sql.Literal(value)) if isinstance(value, int) else sql.Literal(value)


def output(columns: Mapping[str, sql.Composable]) -> sql.Composed:
    """The select list of a page, in the order of ``RawEvent`` without its key."""
    roles = ("position", "stream", "type", "category", "tenant", "stream_version", "schema_version", "data",
             "metadata", "recorded_at")
    return sql.SQL(", ").join(
        sql.SQL("{} AS {}").format(columns.get(role, sql.NULL), sql.Identifier(role)) for role in roles)
