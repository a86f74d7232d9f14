"""What a live table may have of its own that nothing can carry, with the way out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from rebuilder.catalog.blueprint import Outcome, Verdict
from rebuilder.catalog.dependents import Dependents
from rebuilder.catalog.facts import TableFacts, written
from rebuilder.catalog.grants import orphaned
from rebuilder.catalog.reader import QUERIES, rows
from rebuilder.catalog.session import Session


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Something of a live table that nothing can carry."""

    live: int
    obstacle: str
    name: str
    detail: str = ""


KINDS = {
    "v": ("view", "Name the table that holds the rows."),
    "m": ("materialized view", "Make it a table that the projection fills."),
    "f": ("foreign table", "A projection's tables must be local ones."),
    "p": ("partitioned table", "Rebuild into an ordinary table; partitioned read models are not supported yet."),
    "S": ("sequence", "Name a table."),
    "i": ("index", "Name its table."),
    "c": ("composite type", "Name a table."),
    "t": ("toast table", "Name the table it belongs to."),
}

# obstacle: (kind, reason, hint); {name}, {detail} and {table} are filled in, in hints as SQL writes them.
OBSTACLES = {
    "extension": (
        "extension",
        "{table} belongs to extension {name}, which keeps it by its OID",
        "ALTER EXTENSION {name} DROP TABLE {table}, if the extension does not need it.",
    ),
    "partition": (
        "partition",
        "{table} is a partition of {name}; the new table would not be one",
        "Detach it (ALTER TABLE {name} DETACH PARTITION {table}) or project into a table of its own.",
    ),
    "child": (
        "inheritance",
        "{table} inherits from {name}; the new table would not",
        "ALTER TABLE {table} NO INHERIT {name}.",
    ),
    "parent": (
        "inheritance",
        "{name} inherits from {table} and would stay with the old one",
        "ALTER TABLE {name} NO INHERIT {table}.",
    ),
    "security-label": (
        "security-label",
        "{detail} has a security label of provider {name}, which can only be set with the provider loaded",
        "Remove the label and set it again after the rebuild (SECURITY LABEL FOR {name} ON …).",
    ),
    "row-type": (
        "type",
        "the row type of {table} has {detail} of its own, which pg_dump does not keep either",
        "REVOKE the grants on the type, or COMMENT ON TYPE {name} IS NULL.",
    ),
    "publication-all": (
        "publication",
        "publication {name} is FOR ALL TABLES: it would publish the replay into the work schema",
        "Make it a publication FOR TABLE …, or drop it for the time of the rebuild and resync its subscribers.",
    ),
    "publication-schema": (
        "publication",
        "publication {name} publishes all tables of the schema: its subscribers would keep the old rows",
        "Drop the schema from the publication for the time of the rebuild, and resync its subscribers afterwards.",
    ),
    "publication-slot": (
        "publication",
        "publication {name} may be subscribed (slot {detail}): subscribers would keep the old rows for ever",
        "Drop the table from the publication; rebuild; add it; on the subscriber TRUNCATE it and REFRESH PUBLICATION.",
    ),
    "subscription": (
        "subscription",
        "subscription {name} writes into {table} by its OID",
        "Drop the table from the subscription: what is replicated is not projected.",
    ),
    "internal-trigger": (
        "trigger",
        "the triggers that enforce {name} are not in their usual state ({detail})",
        "ALTER TABLE {table} ENABLE TRIGGER ALL.",
    ),
}


def refuse(table: TableFacts, kind: str, name: str, reason: str, hint: str) -> Verdict:
    return Verdict(Outcome.REFUSE, kind, name, table.label, reason, hint)


def own_refusals(tables: Sequence[TableFacts]) -> Iterator[Verdict]:
    identities = {s.oid: s for t in tables for s in t.sequences if s.identity}
    for table in tables:
        if table.kind != "r":
            what, hint = KINDS.get(table.kind, ("relation", "Name a table."))
            yield refuse(table, what, table.label, f"{table.label} is a {what}, not a table", hint)
            continue
        if table.persistence == "t":
            yield refuse(table, "table", table.label, "it is temporary and seen by one session only", "Use a table.")
        if not table.of_kind("p"):
            yield refuse(
                table,
                "table",
                table.label,
                "it has no primary key, by which rows are copied and compared",
                f"ALTER TABLE {table.written} ADD PRIMARY KEY (…).",
            )
        for index in table.indexes:
            if not index.valid:
                yield refuse(
                    table,
                    "index",
                    index.name,
                    "it is invalid (a CREATE INDEX CONCURRENTLY failed or is running); a copy would be valid",
                    f"REINDEX INDEX CONCURRENTLY {written(table.schema, index.name)}, or drop it.",
                )
        if table.replica_identity == "i" and not any(i.replica_identity for i in table.indexes):
            yield refuse(
                table,
                "replica-identity",
                table.label,
                "its replica identity was an index that has been dropped",
                f"ALTER TABLE {table.written} REPLICA IDENTITY DEFAULT (or name another index).",
            )
        for sequence in table.sequences:
            if sequence.used and not sequence.identity and sequence.oid in identities:
                yield refuse(
                    table,
                    "sequence",
                    f"{sequence.schema}.{sequence.name}",
                    f"the default of {sequence.column} draws from an identity column's sequence",
                    f"Give {table.label}.{sequence.column} a sequence of its own.",
                )
        for grant in orphaned(table):
            yield refuse(
                table,
                "grant",
                f"{grant.privilege} to {grant.grantee or 'PUBLIC'} by {grant.grantor}",
                "its grantor holds no grant option any more, so it could not be given again",
                f"REVOKE it, or grant {grant.privilege} to {written(grant.grantor)} WITH GRANT OPTION.",
            )


def read_obstacles(
    connection: psycopg.Connection[Any], lives: Iterable[int], dependents: Dependents, session: Session
) -> Iterator[Obstacle]:
    oids = list(lives)
    for row in rows(connection, QUERIES["obstacles"], oids=oids):
        yield Obstacle(**row)
    if session.publication_filters:
        for row in rows(connection, QUERIES["schema_publications"], oids=oids):
            yield Obstacle(row["live"], "publication-schema", row["name"])
    if dependents.publications:
        slots = ", ".join(row["name"] for row in rows(connection, QUERIES["slots"]))
        for publication in dependents.publications if slots else ():
            yield Obstacle(publication.table, "publication-slot", publication.name, slots)


def obstacle_verdict(table: TableFacts, obstacle: Obstacle) -> Verdict:
    kind, reason, hint = OBSTACLES[obstacle.obstacle]
    told = {"name": obstacle.name, "detail": obstacle.detail, "table": table.label}
    written = {**told, "table": table.written}
    return refuse(table, kind, obstacle.name, reason.format(**told), hint.format(**written))
