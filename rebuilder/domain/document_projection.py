"""Projections whose read model is documents, and what a refresh of one did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

from rebuilder.domain.event import Event
from rebuilder.domain.fold import Fold, KeyFunction
from rebuilder.domain.lifecycle import check_name, is_count
from rebuilder.errors import DefinitionError


@dataclass(frozen=True)
class DocumentProjection:
    """A ``Fold`` without a table of its own: each key's row is a document, a JSON object, in the store.

    ``version`` grows with every change of the recipe; a newer one is rebuilt beside live by the next refresh. Keys of
    several parts are joined by ``/``.
    """

    name: str
    _: KW_ONLY
    version: int
    fold: Fold
    categories: Sequence[str] = ()

    def __post_init__(self) -> None:
        check_name(self.name)
        object.__setattr__(self, "categories", tuple(self.categories))
        if not is_count(self.version, 1):
            raise DefinitionError(f"Documents {self.name!r}: version is {self.version!r}; it must be a whole number "
                                  "from 1.")

    def reads(self, type_: str, category: str | None) -> bool:
        """Whether events of that type and category are its own."""
        return bool(self.fold.registrations(type_)) and (not self.categories or category in self.categories)


@dataclass(frozen=True, slots=True)
class Refreshed:
    """``complete``: live has all that is settled; ``partial``: so many batches were allowed, call again."""

    projection: str
    state: Literal["complete", "partial"]
    generation: int
    batches: int
    events: int
    position: int
    rebuilt: bool


def key_of(key: KeyFunction | None, event: Event) -> str:
    """The document's key for an event: its stream, or what the registration says."""
    made: Any = event.stream if key is None else key(event)
    return "/".join(map(str, made)) if isinstance(made, tuple | list) else str(made)
