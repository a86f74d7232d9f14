"""Somebody whose transaction stands in the way."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocker:
    """A transaction that a run waits for. What the role may not see is None, and ``hidden`` says so.

    A prepared transaction has a ``gid`` and no ``pid``; ``query`` is cut to 80 characters. One that is
    ``waiting_on_us`` can't end while the run is open.
    """

    pid: int | None
    user: str | None = None
    application: str | None = None
    state: str | None = None
    age_seconds: float | None = None
    query: str | None = None
    gid: str | None = None
    waiting_on_us: bool = False
    hidden: bool = False

    def describe(self) -> str:
        """One line for people: who it is, since when, what it does, and how to see more or end it."""
        who = [f"user {self.user}"] if self.user else []
        who += [f"application {self.application}"] if self.application else []
        age = None if self.age_seconds is None else f"{self.age_seconds:.1f} s"
        if self.gid is not None:
            who += [f"prepared {age} ago"] if age else []
            about = f" ({', '.join(who)})" if who else ""
            return f"prepared transaction {self.gid!r}{about}: end it with COMMIT PREPARED or ROLLBACK PREPARED"
        if age or self.state:
            who += [f"{self.state or 'open'} for {age}" if age else str(self.state)]
        text = f"pid {self.pid} ({', '.join(who)})" if who else f"pid {self.pid}"
        if self.waiting_on_us:
            text += ", which waits for this run itself"
        if self.hidden:
            return f"{text}; its query is not visible to this role (GRANT pg_read_all_stats TO it)"
        return f"{text}: {' '.join(self.query.split())}" if self.query else text

    def to_json(self) -> dict[str, Any]:
        """The fields as an object."""
        return asdict(self)
