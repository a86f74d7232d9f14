"""Which database: who names one, who wins, and who disagrees. A password is never shown."""

from __future__ import annotations

import os
from dataclasses import dataclass

from psycopg import conninfo as libpq
from psycopg import pq

from rebuilder.errors import DefinitionError
from rebuilder.store.conninfo import conninfo_of

_LOOPBACK = {"127.0.0.1", "::1", "localhost"}
_ENVIRONMENT = {"PGHOST": "host", "PGHOSTADDR": "host", "PGPORT": "port", "PGDATABASE": "database"}


@dataclass(frozen=True, slots=True)
class Target:
    """One database as one source names it. ``says`` are the parts that may be compared with another source's."""

    source: str
    conninfo: str
    host: str
    port: str
    database: str
    user: str
    says: frozenset[str] = frozenset({"host", "port", "database"})

    @classmethod
    def of(cls, source: str, dsn: str) -> Target:
        """What libpq would make of a DSN, with its environment's defaults filled in."""
        try:
            conninfo = conninfo_of(dsn)
        except DefinitionError as error:
            raise DefinitionError(f"{source}: {error.message}", hint=error.hint) from None
        values = {**_defaults(), **{k: str(v) for k, v in libpq.conninfo_to_dict(conninfo).items() if v is not None}}
        if "service" in values:
            # What a service means stands in a file that libpq reads when it connects.
            values = {"host": f"service {values['service']}", **values}
        user = values.get("user", "")
        return cls(source, conninfo, values.get("host") or values.get("hostaddr", ""), values.get("port", "5432"),
                   values.get("dbname", user), user)

    def describe(self) -> str:
        """For people: database, server, user, and who says so."""
        where = self.host or "the local socket"
        return f"database {self.database!r} on {where}, port {self.port}, as {self.user!r} (from {self.source})"

    def disagrees(self, other: Target) -> list[str]:
        """The parts in which both have a say and differ."""
        parts = [part for part in ("host", "port", "database") if part in self.says and part in other.says]
        return [part for part in parts if _same(getattr(self, part)) != _same(getattr(other, part))]


def _same(value: str) -> str:
    return "localhost" if value in _LOOPBACK else value


def _defaults() -> dict[str, str]:
    return {option.keyword.decode(): option.val.decode() for option in pq.Conninfo.get_defaults() if option.val}


def targets(option: str | None, own: str | None) -> list[Target]:
    """Every source that names a database, the first of which is used. ``own`` is the application's, if there is one."""
    given = (("--dsn", option), ("REBUILDER_DSN", os.environ.get("REBUILDER_DSN")), ("the application", own),
             ("DATABASE_URL", os.environ.get("DATABASE_URL")))
    found = [Target.of(source, dsn) for source, dsn in given if dsn]
    set_ = [name for name in _ENVIRONMENT if os.environ.get(name)]
    if set_ or not found:
        found.append(_environment(set_))
    return found


def _environment(names: list[str]) -> Target:
    """Libpq's environment. A DSN wins over it part by part, so only what it names itself can disagree."""
    filled = Target.of(", ".join(names) or "libpq's defaults", "")
    return Target(filled.source, "", filled.host, filled.port, filled.database, filled.user,
                  frozenset(_ENVIRONMENT[name] for name in names))


def disagreement(found: list[Target]) -> tuple[Target, Target, list[str]] | None:
    """The source that is used, the first that names another database, and in what they differ."""
    for other in found[1:]:
        parts = found[0].disagrees(other)
        if parts:
            return found[0], other, parts
    return None


def refuse_disagreement(found: list[Target]) -> None:
    """Raise :class:`~rebuilder.errors.DefinitionError` if two sources name different databases."""
    if (two := disagreement(found)) is not None:
        one, other, parts = two
        raise DefinitionError(
            f"Two sources name different databases, and this command changes one: {one.source} says "
            f"{_parts(one)}, {other.source} says {_parts(other)}. Nothing was done.",
            hint=f"make them agree on the {' and '.join(parts)}, or unset the wrong one",
            sources=[one.source, other.source], differ=parts)


def _parts(target: Target) -> str:
    host = {"host": target.host or "the local socket", "port": target.port, "database": target.database}
    return ", ".join(f"{name} {value}" for name, value in host.items() if name in target.says)
