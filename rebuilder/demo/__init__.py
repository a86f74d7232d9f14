"""The demo: a bank whose read model is wrong, rebuilt while its writers and readers go on, and proved right."""

from __future__ import annotations


def run(*, events: int = 200_000, writers: int = 4, readers: int = 3, json: bool = False, dsn: str | None = None,
        seed: int | None = None) -> int:
    """Show a rebuild under traffic and prove its outcome; the exit code, 0 only if every claim held.

    Without a ``dsn`` it starts a PostgreSQL of its own, which the extra ``embedded`` brings; on a given server it
    makes a database of its own. Either is removed at the end, also by Ctrl-C. The proof goes to stdout, as a table or
    one JSON object; talk goes to stderr.
    """
    # Late, so that the processes of the traffic, which are modules of this package, load only what they need.
    from rebuilder.demo.show import perform

    return perform(events=events, writers=writers, readers=readers, json=json, dsn=dsn, seed=seed)
