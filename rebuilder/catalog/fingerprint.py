"""Whether live is still what the plan saw: asked under the fence, on the main transaction.

The questions go to stored catalog rows only. pg_get_*def would give nicer texts, and ACCESS SHARE on every table in
them, which the fence may not have (spec: C4, H1). Each look is a savepoint that is rolled back, so that neither its
search_path nor a lock stays.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import psycopg

from rebuilder.catalog.blueprint import Blueprint
from rebuilder.catalog.dependents import MOVING, Dependent, find
from rebuilder.catalog.reader import QUERIES, read_acls, rows

Parts = Mapping[str, tuple[str, ...]]
"""Digests by part of the definition ("index public.account.account_pkey")."""


@contextmanager
def quiet(connection: psycopg.Connection[Any]) -> Iterator[None]:
    """A look at the catalog that leaves nothing behind: no lock, no setting."""
    with connection.transaction(force_rollback=True):
        rows(connection, QUERIES["quiet"])
        yield


def read_parts(connection: psycopg.Connection[Any], oids: Iterable[int]) -> Parts:
    """The definition of the tables, digested part by part; to be called in ``quiet``."""
    parts: dict[str, tuple[str, ...]] = {}
    for row in rows(connection, QUERIES["fingerprint"], oids=list(oids), moving=MOVING):
        label = f"{row['kind']} {row['table']}" + (f".{row['name']}" if row["name"] else "")
        parts[label] = (*parts.get(label, ()), row["state"])
    return parts


def read_grants(connection: psycopg.Connection[Any], oids: Iterable[int]) -> str:
    """Digest of the privileges on the tables, their columns and their identity sequences."""
    lives = list(oids)
    identities = [row["oid"] for row in rows(connection, QUERIES["owned_sequences"], oids=lives) if row["identity"]]
    acls = read_acls(connection, [*lives, *identities])
    return digest(repr(item) for item in sorted(acls.items()))


def digest(texts: Iterable[str]) -> str:
    """One hash of many texts."""
    total = hashlib.sha256()
    for text in texts:
        total.update(text.encode())
        total.update(b"\0")
    return total.hexdigest()


def fingerprint_of(parts: Parts, grants: str) -> str:
    return digest([grants, *(f"{label} {states}" for label, states in sorted(parts.items()))])


def closure_of(found: Iterable[Dependent]) -> frozenset[str]:
    return frozenset(dependent.mark for dependent in found)


def current_fingerprint(connection: psycopg.Connection[Any], blueprint: Blueprint) -> str:
    """The fingerprint of the live tables as they are now."""
    oids = _oids(blueprint)
    with quiet(connection):
        return fingerprint_of(read_parts(connection, oids), read_grants(connection, oids))


def current_closure(connection: psycopg.Connection[Any], blueprint: Blueprint) -> frozenset[str]:
    """The dependents of the live tables as they are now; what differs from the plan's is named by its elements."""
    with quiet(connection):
        return closure_of(find(connection, _oids(blueprint)))


def current_grants(connection: psycopg.Connection[Any], blueprint: Blueprint) -> str:
    """The grants of the live tables as they are now: asked once more when they have moved, since before 18 a GRANT
    takes no lock that the fence would stop.
    """
    with quiet(connection):
        return read_grants(connection, _oids(blueprint))


def changed_parts(connection: psycopg.Connection[Any], blueprint: Blueprint) -> tuple[str, ...]:
    """The parts of the definition that differ from the plan's, by name."""
    oids = _oids(blueprint)
    with quiet(connection):
        now, grants = read_parts(connection, oids), read_grants(connection, oids)
    before = blueprint.parts
    changed = sorted(label for label in {*before, *now} if before.get(label) != now.get(label))
    return (*changed, *(["grants"] if grants != blueprint.grants else []))


def _oids(blueprint: Blueprint) -> list[int]:
    return [table.oid for table in blueprint.tables]
