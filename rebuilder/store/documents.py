"""Documents of generations, their inventory, and snapshots."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from rebuilder.domain.documents import (
    VALUE_BYTES,
    Document,
    InventoryQuery,
    Page,
    Place,
    Row,
    Snapshot,
    Value,
    check_key,
    digest_of,
)
from rebuilder.domain.ticket import Stage
from rebuilder.errors import InvalidValue, RecordConflict, RecordCorrupt, RecordNotFound
from rebuilder.store.rebuilds import Rebuilds
from rebuilder.store.sessions import Connection


@dataclass(frozen=True, slots=True)
class Building:
    """Writes into the generation that a running ticket builds, by whoever holds its revision."""

    ticket: UUID
    revision: int


@dataclass(frozen=True, slots=True)
class Live:
    """Writes into the live generation, if live still is that one."""

    projection: str
    generation: int


class Documents(Rebuilds):
    """A read model without a table of its own: what is live is the generation that the status says."""

    def put_documents(self, documents: Iterable[Document], into: Building | Live, *,
                      removed: Iterable[str] = ()) -> None:
        """Write and remove documents of a generation; in :meth:`transaction` together with its checkpoint.

        Raises ``RecordConflict`` where the ticket has moved on or live has been swapped: a worker that was overtaken
        writes nothing.
        """
        with self._writing("writing documents") as connection:
            projection, generation = self._generation(connection, into)
            for document in documents:
                self._run(connection, "put_document", projection=projection, generation=generation, key=document.key,
                          **_columns(document.value))
            gone = list(removed)
            if gone:
                self._run(connection, "remove_documents", projection=projection, generation=generation, keys=gone)

    def document(self, projection: str, key: str, *, generation: int | None = None) -> Document | None:
        """A verified document of the live generation, or of another; None if there is none."""
        check_key(key)
        with self._using("reading a document") as connection:
            row = self._run(connection, "read_document", projection=projection, key=key,
                            generation=generation).fetchone()
        if row is None:
            return None
        found = _verified(projection, *row)
        if isinstance(found, str):
            raise RecordCorrupt(f"Document {key!r} of {projection!r} {found}.", hint="rebuild the projection")
        return found

    def inventory(self, query: InventoryQuery) -> Page:
        """A page of documents; a damaged row is in it and does not stop it. Values are loaded within 16 MiB a page."""
        after = query.after or Place(query.projection, query.generation, 0, "")
        with self._using("listing documents") as connection:
            rows = self._run(connection, "list_documents", projection=query.projection, generation=query.generation,
                             after_generation=after.generation, after_key=after.key, limit=query.limit + 1).fetchall()
            found: list[Row] = []
            budget = VALUE_BYTES
            for generation, key, size, digest_size in rows[:query.limit]:
                row = self._row(connection, query.projection, generation, key, size, digest_size, budget)
                if row is None:
                    break
                budget -= row.size
                found.append(row)
        more = len(rows) > len(found)
        last = found[-1] if found else None
        place = Place(query.projection, query.generation, last.generation, last.key) if more and last else None
        return Page(query, tuple(found), place)

    def _row(self, connection: Connection, projection: str, generation: int, key: str, size: int, digest_size: int,
             budget: int) -> Row | None:
        """A row, its value loaded only after its size was charged; None where the page's budget ends."""
        try:
            check_key(key)
        except InvalidValue:
            return Row(generation, key, None, why="has a key that is none")
        if digest_size != 32 or not 1 <= size <= VALUE_BYTES:
            return Row(generation, key, None, why="has no size or digest that can be")
        if size > budget:
            return None
        row = self._run(connection, "read_document", projection=projection, key=key, generation=generation).fetchone()
        if row is None:
            return Row(generation, key, None, why="was removed meanwhile")
        document = _verified(projection, *row)
        if isinstance(document, str):
            return Row(generation, key, None, size, document)
        return Row(generation, key, document, size)

    def expire_documents(self, projection: str, *, keep: int = 1) -> int:
        """Remove the generations before live but for the last ``keep``; the open ticket's stays. How many rows."""
        with self._writing("removing old documents") as connection:
            return self._run(connection, "expire_documents", projection=projection, keep=keep).rowcount

    def _generation(self, connection: Connection, into: Building | Live) -> tuple[str, int]:
        if isinstance(into, Building):
            # The lock that the step after it takes: two workers that shared it first would wait for each other.
            ticket = self._ticket(connection, into.ticket, "lock_ticket")
            if ticket is None:
                raise RecordNotFound(f"There is no ticket {into.ticket}.", ticket=str(into.ticket))
            if (ticket.stage, ticket.revision) != (Stage.RUNNING, into.revision):
                raise RecordConflict(f"Ticket {ticket.id} is {ticket.stage} at revision {ticket.revision}: somebody "
                                     "else carries it on.", hint="read it again")
            return ticket.projection, ticket.generation
        # The checkpoint's row is what a completing rebuild takes first.
        self._run(connection, "insert_checkpoint", projection=into.projection)
        self._run(connection, "lock_checkpoint", projection=into.projection)
        status = self._status(connection, into.projection)
        if status is None or status.generation != into.generation or not into.generation:
            raise RecordConflict(f"Live of {into.projection!r} is not generation {into.generation}.",
                                 hint="read the status again")
        return into.projection, into.generation


class Snapshots(Documents):
    """Frozen values: what a reader was shown on page one is there for page two, across a swap."""

    def put_snapshot(self, snapshot: Snapshot) -> Snapshot:
        """Keep a value under its number; the same again is fine, another under that number is a conflict."""
        with self._writing("keeping a snapshot") as connection:
            self._run(connection, "put_snapshot", projection=snapshot.projection, snapshot=snapshot.id,
                      generation=snapshot.generation, **_columns(snapshot.value))
            stored = self._snapshot(connection, snapshot.projection, snapshot.id)
        if stored != snapshot:
            raise RecordConflict(f"Snapshot {snapshot.id} of {snapshot.projection!r} is another one.",
                                 hint="take a fresh number")
        return stored

    def snapshot(self, projection: str, id: UUID) -> Snapshot | None:
        """A verified snapshot; None if there is none, or none any more."""
        with self._using("reading a snapshot") as connection:
            return self._snapshot(connection, projection, id)

    def expire_snapshots(self, projection: str, *, older_than: timedelta) -> int:
        """Remove snapshots of that age; how many."""
        with self._writing("removing old snapshots") as connection:
            return self._run(connection, "expire_snapshots", projection=projection, age=older_than).rowcount

    def _snapshot(self, connection: Connection, projection: str, id: UUID) -> Snapshot | None:
        row = self._run(connection, "read_snapshot", projection=projection, snapshot=id).fetchone()
        if row is None:
            return None
        generation, body, raw, digest, created = row
        content = raw if raw is not None else (body or "").encode()
        if digest_of(projection, generation, str(id), bytes(content)) != digest:
            raise RecordCorrupt(f"Snapshot {id} of {projection!r} does not fit its digest.", hint="take it anew")
        return Snapshot(projection, id, generation, _value(body, raw), created)


def _columns(value: Value) -> dict[str, Any]:
    if isinstance(value, bytes):
        return {"body": None, "bytes": value}
    return {"body": Jsonb(value), "bytes": None}


def _value(body: str | None, raw: bytes | None) -> Value:
    value: Value = bytes(raw) if raw is not None else json.loads(body or "null")
    return value


def _verified(projection: str, generation: int, key: str, body: str | None, raw: bytes | None,
              digest: bytes) -> Document | str:
    """The document, or what is wrong with it."""
    content = bytes(raw) if raw is not None else (body or "").encode()
    if digest_of(projection, generation, key, content) != bytes(digest):
        return "does not fit its digest"
    try:
        return Document(key, _value(body, raw))
    except (InvalidValue, ValueError):
        return "has a value that is none"
