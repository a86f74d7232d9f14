"""Upcasters lift old data one schema version at a time, when it is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from rebuilder.domain.event import Event
from rebuilder.errors import UpcasterError


class FetchOne(Protocol):
    """A read-only question to the database."""

    def __call__(self, statement: Any, params: Any = None) -> tuple[Any, ...] | None:
        """Return the first row."""


@dataclass(frozen=True, slots=True)
class UpcastContext:
    """What an upcaster may know besides the data: whose event it is, and a read-only look into the database."""

    tenant: str | None
    fetch_one: FetchOne


Upcaster = Callable[[Any, UpcastContext], Any]


class Upcasters:
    """Chains of upcasters, one per event type.

    ``current`` may declare the current schema version of types; a step that leads past it is refused.
    """

    def __init__(self, current: Mapping[str, int] | None = None) -> None:
        self._declared = dict(current or {})
        self._steps: dict[str, dict[int, Upcaster]] = {}
        for name, version in self._declared.items():
            if not is_version(version):
                raise UpcasterError(f"The current schema version of {name!r} is {version!r}; it must be a whole "
                                    "number from 1.")

    def on(self, type_: str, *, from_version: int) -> Callable[[Upcaster], Upcaster]:
        """Register the decorated ``(data, context)`` function as the step from a version to the next.

        Raises :class:`~rebuilder.errors.UpcasterError` for a version below 1, a second step from the same version,
        or a step past the declared current version.
        """
        if not is_version(from_version):
            raise UpcasterError(f"Upcaster of {type_!r}: from_version is {from_version!r}; it must be a whole number "
                                "from 1.")
        if from_version >= self._declared.get(type_, from_version + 1):
            raise UpcasterError(f"Upcaster of {type_!r} from version {from_version} leads past the declared current "
                                f"version {self._declared[type_]}.")

        def register(step: Upcaster) -> Upcaster:
            steps = self._steps.setdefault(type_, {})
            if from_version in steps:
                raise UpcasterError(f"Event type {type_!r} has two upcasters from version {from_version}.")
            steps[from_version] = step
            return step

        return register

    def check(self) -> None:
        """Raise :class:`~rebuilder.errors.UpcasterError` if a chain has a hole."""
        for name in sorted(self._steps.keys() | self._declared.keys()):
            steps = self._steps.get(name, {})
            last = self.current(name)
            first = min(steps, default=last)
            missing = [version for version in range(first, last) if version not in steps]
            if missing:
                raise UpcasterError(f"The upcasters of {name!r} have a hole: no step from version "
                                    f"{', '.join(map(str, missing))}.", hint="add the missing steps", type=name)

    @property
    def types(self) -> tuple[str, ...]:
        """The event types that have upcasters."""
        return tuple(sorted(self._steps))

    def current(self, type_: str) -> int:
        """The version that events of a type have after lifting; 1 for a type without upcasters."""
        return self._declared.get(type_) or max(self._steps.get(type_, {0: None})) + 1

    def lift(self, event: Event, context: UpcastContext) -> Event:
        """The event in its current schema version; the same object if it has that already.

        Raises :class:`~rebuilder.errors.UpcasterError` if the chain does not begin at the event's version.
        """
        steps = self._steps.get(event.type)
        if not steps:
            return event
        version, current = event.schema_version or 1, self.current(event.type)
        if version >= current:
            return event
        data = event.data
        while version < current:
            if version not in steps:
                raise UpcasterError(f"No upcaster of {event.type!r} from version {version}.", type=event.type)
            data = steps[version](data, context)
            version += 1
        return replace(event, data=data, schema_version=version)


def is_version(version: object) -> bool:
    """Whether something is a whole number from 1."""
    return isinstance(version, int) and not isinstance(version, bool) and version >= 1
