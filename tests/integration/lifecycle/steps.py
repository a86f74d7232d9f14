"""What tests of the store do again and again."""

import uuid

from rebuilder.domain.lifecycle import (
    Checkpoint,
    Complete,
    LogFingerprint,
    Progressed,
    SourcePosition,
    Start,
    Transition,
)

NAME = "food"


def source_of(store):
    """The log's incarnation."""
    with store._writing("asking") as connection:
        return store._active_source(connection)


def seen(store, tier="count") -> LogFingerprint:
    """The log as it is now."""
    with store._writing("asking") as connection:
        return store.log.fingerprint(connection, store._active_source(connection), tier)


def cp(store, position, events=None, generation=1, name=NAME, **overrides):
    source = SourcePosition(source_of(store), position) if position else None
    return Checkpoint(name, generation, source, position if events is None else events, **overrides)


def adopt(store, position=10, name=NAME):
    """A projection that is there, live at a position."""
    return store.checkpoint(cp(store, position, name=name))


def asked(store, name=NAME, version=1, **overrides):
    """A requested ticket, of a fresh request."""
    store.invalidate(name, "operator_requested")
    return store.request_rebuild(name, uuid.uuid4(), version=version, **overrides)


def step(store, ticket, kind, revision=None):
    return store.transition_rebuild(Transition(ticket.id, revision or ticket.revision, kind))


def started(store, name=NAME, **overrides):
    return step(store, asked(store, name, **overrides), Start())


def progressed(store, ticket, position):
    return step(store, ticket, Progressed(cp(store, position, generation=ticket.generation, name=ticket.projection)))


def complete(store, ticket, source=None, **overrides):
    source = source or seen(store)
    at = Checkpoint(ticket.projection, ticket.generation, source.high_water, source.events, **overrides)
    return step(store, ticket, Complete(at, source))
