"""Statements that compare live with shadow, by primary key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import LiteralString

from psycopg import sql


@dataclass(frozen=True, slots=True)
class Compared:
    """A column that takes part: its type, and whether the type has an equality (json and point have none)."""

    name: str
    type: str
    comparable: bool


Keys = Sequence[Sequence[str]]
"""Primary keys as texts."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Live and shadow of one table, and how their rows are matched and compared."""

    live: sql.Identifier
    shadow: sql.Identifier
    key: tuple[Compared, ...]
    columns: tuple[Compared, ...]

    def _differs(self, column: Compared) -> sql.Composed:
        cast = sql.SQL("") if column.comparable else sql.SQL("::text")
        name = sql.Identifier(column.name)
        return sql.SQL("l.{0}{1} IS DISTINCT FROM s.{0}{1}").format(name, cast)

    def _changed(self) -> sql.Composable:
        if not self.columns:
            return sql.SQL("false")
        return sql.SQL(" OR ").join(self._differs(column) for column in self.columns)

    def _on(self) -> sql.Composed:
        return sql.SQL(" AND ").join(sql.SQL("l.{0} = s.{0}").format(sql.Identifier(c.name)) for c in self.key)

    def _lacks(self, side: LiteralString) -> sql.Composed:
        return sql.SQL("{}.{} IS NULL").format(sql.SQL(side), sql.Identifier(self.key[0].name))

    def _hash(self, side: LiteralString) -> sql.Composed:
        row = sql.SQL("{}.{}")
        names = [row.format(sql.SQL(side), sql.Identifier(c.name)) for c in self.columns]
        return sql.SQL("md5(ROW({})::text)").format(sql.SQL(", ").join(names))

    def _found(self) -> sql.Composed:
        """kind, hashes of both sides, names of the changed columns, key as text."""
        changed = sql.SQL(", ").join(
            sql.SQL("CASE WHEN {} THEN {} END").format(self._differs(c), sql.Literal(c.name)) for c in self.columns)
        keys = sql.SQL(", ").join(sql.SQL("coalesce(l.{0}, s.{0})::text").format(sql.Identifier(c.name))
                                  for c in self.key)
        return sql.SQL(
            "SELECT CASE WHEN {no_shadow} THEN 'missing' WHEN {no_live} THEN 'extra' WHEN {changed} THEN 'changed'"
            " ELSE 'same' END, {live_hash}, {shadow_hash}, array_remove(ARRAY[{names}]::text[], NULL), {keys}",
        ).format(no_shadow=self._lacks("s"), no_live=self._lacks("l"), changed=self._changed(),
                 live_hash=self._hash("l"), shadow_hash=self._hash("s"), names=changed, keys=keys)

    def candidates(self, limit: int) -> sql.Composed:
        """Rows that differ, at most so many."""
        return sql.SQL("{} FROM {} AS l FULL JOIN {} AS s ON {} WHERE {} OR {} OR {} LIMIT {}").format(
            self._found(), self.live, self.shadow, self._on(), self._lacks("s"), self._lacks("l"), self._changed(),
            sql.Literal(limit))

    def totals(self) -> sql.Composed:
        """Rows of live and of the shadow; missing, extra, changed; per column how many rows of each side fill it."""
        filled = [sql.SQL("count(l.{0}), count(s.{0})").format(sql.Identifier(c.name)) for c in self.columns]
        key = sql.Identifier(self.key[0].name)
        return sql.SQL(
            "SELECT count(l.{key}), count(s.{key}), count(*) FILTER (WHERE {no_shadow}),"
            " count(*) FILTER (WHERE {no_live}), count(*) FILTER (WHERE l.{key} IS NOT NULL AND s.{key} IS NOT NULL AND"
            " ({changed})){filled} FROM {live} AS l FULL JOIN {shadow} AS s ON {on}",
        ).format(key=key, no_shadow=self._lacks("s"), no_live=self._lacks("l"), changed=self._changed(),
                 filled=sql.SQL("").join(sql.SQL(", {}").format(part) for part in filled), live=self.live,
                 shadow=self.shadow, on=self._on())

    def again(self, keys: Keys) -> sql.Composed:
        """The same look at given keys only."""
        return sql.SQL("{} FROM {} LEFT JOIN {} AS l ON {} LEFT JOIN {} AS s ON {} WHERE NOT ({} AND {})").format(
            self._found(), _given(keys), self.live, self._match("l"), self.shadow, self._match("s"), self._lacks("l"),
            self._lacks("s"))

    def ghosts(self, column: str, log: sql.Composable, stream: sql.Composable, alias: str, limit: int,
               only: Keys | None = None) -> sql.Composed:
        """Rows of live that the replay did not make and whose stream has no event at all: count, and a sample.

        ``only`` looks at these keys.
        """
        shown = sql.SQL(", ").join(sql.SQL("l.{}::text").format(sql.Identifier(c.name)) for c in self.key)
        live = sql.SQL("{} AS l").format(self.live)
        if only:
            live = sql.SQL("{} JOIN {} AS l ON {}").format(_given(only), self.live, self._match("l"))
        return sql.SQL(
            "SELECT count(*), (array_agg(ghost.key ORDER BY ghost.key))[1:{limit}] FROM (SELECT concat_ws(', ', {keys})"
            " AS key FROM {live} WHERE NOT EXISTS (SELECT FROM {shadow} AS s WHERE {on}) AND NOT EXISTS"
            " (SELECT FROM {log} AS {alias} WHERE ({stream})::text = l.{column}::text)) AS ghost",
        ).format(limit=sql.Literal(limit), keys=shown, live=live, shadow=self.shadow, on=self._on(), log=log,
                 alias=sql.Identifier(alias), stream=stream, column=sql.Identifier(column))

    def _match(self, side: LiteralString) -> sql.Composed:
        return sql.SQL(" AND ").join(
            sql.SQL("{}.{} = k.{}::{}").format(sql.SQL(side), sql.Identifier(c.name), sql.Identifier(f"k{n}"),
                                               sql.SQL(c.type))
            for n, c in enumerate(self.key))


def _given(keys: Keys) -> sql.Composed:
    """The relation of given keys, one array of texts per column.

    Not parameters: a statement with parameters must have every % of a name doubled, and an Identifier does not.
    """
    arrays = sql.SQL(", ").join(sql.SQL("{}::text[]").format(sql.Literal(list(column)))
                                for column in zip(*keys, strict=True))
    aliases = sql.SQL(", ").join(sql.Identifier(f"k{n}") for n in range(len(keys[0])))
    return sql.SQL("unnest({}) AS k({})").format(arrays, aliases)
