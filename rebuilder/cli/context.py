"""What a command works on: the application where it is needed or known, and the database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches

from rebuilder.app import Rebuilder
from rebuilder.cli.application import find_application, load_application
from rebuilder.cli.output import Output
from rebuilder.cli.target import disagreement, refuse_disagreement, targets
from rebuilder.errors import DefinitionError, UnknownProjection
from rebuilder.settings import Settings
from rebuilder.store.ledger import Bookkeeping
from rebuilder.store.sessions import Connection, connect


@dataclass(frozen=True, slots=True)
class Place:
    """A database and its bookkeeping, with the application if that is known."""

    conninfo: str
    settings: Settings
    application: Rebuilder | None

    @contextmanager
    def books(self, role: str) -> Iterator[tuple[Connection, Bookkeeping]]:
        """A connection and the installed bookkeeping."""
        books = Bookkeeping(self.settings)
        with connect(self.conninfo, role=role, autocommit=True) as connection:
            books.check_installed(connection)
            yield connection, books

    def check_name(self, name: str | None, connection: Connection, books: Bookkeeping) -> None:
        """Raise :class:`~rebuilder.errors.UnknownProjection` unless the application or the bookkeeping knows it."""
        if name is None:
            return
        known = {row[0] for row in books.run(connection, "known_projections").fetchall()}
        if self.application is not None:
            known |= {projection.name for projection in self.application.registry}
        if name not in known:
            close = get_close_matches(name, sorted(known), n=3, cutoff=0.5)
            raise UnknownProjection(
                f"No projection is called {name!r}. Known: {', '.join(sorted(known)) or 'none'}.",
                hint=f"did you mean {' or '.join(map(repr, close))}?" if close else "see `rebuilder status`",
                name=name, known=sorted(known))


def place(output: Output, *, app: str | None, dsn: str | None, schema: str | None, changing: bool) -> Place:
    """The database for a command that can do without an application."""
    named = find_application(app)
    application = None
    if named is not None:
        try:
            application = load_application(named)
        except DefinitionError as error:
            # A database administrator has the DSN and the checkout, but not what the code needs to be imported.
            if app or not dsn:
                raise
            output.warn(f"{error.message} Going on with the DSN alone.")
    return _placed(output, application, dsn=dsn, schema=schema, changing=changing)


def application(output: Output, *, app: str | None, dsn: str | None, schema: str | None, changing: bool) -> Rebuilder:
    """The application, set to the database that the command works on."""
    loaded = load_application(find_application(app))
    found = _placed(output, loaded, dsn=dsn, schema=schema, changing=changing)
    assert found.application is not None
    return found.application


def _placed(output: Output, loaded: Rebuilder | None, *, dsn: str | None, schema: str | None,
            changing: bool) -> Place:
    found = targets(dsn, loaded.conninfo if loaded is not None else None)
    if changing:
        refuse_disagreement(found)
    elif (two := disagreement(found)) is not None:
        output.warn(f"{two[0].source} and {two[1].source} name different databases; {two[0].source} is used.")
    output.say(f"target: {found[0].describe()}")
    settings = loaded.settings if loaded is not None else Settings()
    if schema is not None:
        settings = replace(settings, schema=schema)
    if loaded is not None and (loaded.conninfo != found[0].conninfo or settings != loaded.settings):
        loaded = _set_to(loaded, found[0].conninfo, settings)
    return Place(found[0].conninfo, settings, loaded)


def _set_to(loaded: Rebuilder, conninfo: str, settings: Settings) -> Rebuilder:
    return Rebuilder(conninfo, log=loaded.log, registry=loaded.registry, settings=settings, observer=loaded.observer,
                     hooks=loaded.hooks)
