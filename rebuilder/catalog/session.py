"""Who reads the catalog, on what server: version differences as named questions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from rebuilder.catalog.reader import QUERIES, fact, rows


@dataclass(frozen=True, slots=True)
class Session:
    """The role that will run the swap, and the server."""

    user: str
    role: str  # the setting "role": "none", or what SET ROLE chose
    version: int
    database: str
    superuser: bool
    table_privileges: tuple[str, ...]  # what an owner has of a table when nothing was granted
    sequence_privileges: tuple[str, ...]
    default_grantees: tuple[str, ...]  # whom default privileges of this role give something; "" is PUBLIC

    @property
    def publication_filters(self) -> bool:
        """Row filters, column lists and FOR TABLES IN SCHEMA came with 15."""
        return self.version >= 150_000

    @property
    def memberships_without_set(self) -> bool:
        """A member of a role may lack SET from 16 on."""
        return self.version >= 160_000

    @property
    def keys_on_partitioned_not_valid(self) -> bool:
        """A partitioned table's foreign key may be added NOT VALID from 18 on."""
        return self.version >= 180_000

    @property
    def named_not_null(self) -> bool:
        """NOT NULL is a constraint with a name from 18 on."""
        return self.version >= 180_000

    @property
    def back(self) -> sql.Composed:
        """The statement that ends a SET LOCAL ROLE."""
        name = sql.SQL("NONE") if self.role == "none" else sql.Identifier(self.role)
        return sql.SQL("SET LOCAL ROLE {}").format(name)


def read_session(connection: psycopg.Connection[Any]) -> Session:
    return fact(Session, rows(connection, QUERIES["session"])[0])
