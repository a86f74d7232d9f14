"""Step 8, first half: live to the retired schema, the shadow to its place, dependents rebound."""

from __future__ import annotations

from psycopg import sql

from rebuilder import errors
from rebuilder.catalog import current_grants, hand_over_sequences
from rebuilder.domain.projection import ExternalCheckpoint
from rebuilder.engine.drain import check_held
from rebuilder.engine.fence import Fenced, GiveBack
from rebuilder.engine.replay import Replay
from rebuilder.engine.run import Run
from rebuilder.engine.schemas import ready_made
from rebuilder.engine.shadow import Shadow
from rebuilder.sql import load
from rebuilder.store.sessions import translated

_QUERIES = load("queries")


def swap(run: Run, fenced: Fenced, shadow: Shadow, replay: Replay) -> None:
    """Put the shadow in live's place; nothing here waits for a lock that the fence has not got."""
    main = run.main
    with translated("swapping the shadow in"):
        main.execute("SET CONSTRAINTS ALL IMMEDIATE")
        # Before the swap's own statements: they leave search_path empty, and an application's statement may need it.
        _advance(run, replay)
        hand_over_sequences(main, run.blueprint, shadow.work)
        with main.pipeline():
            for statement in run.blueprint.swap(shadow.work, shadow.retired, keys_owed=run.keys_owed):
                main.execute(statement)
            for schema in shadow.work.values():
                if not ready_made(schema):
                    main.execute(sql.SQL("DROP SCHEMA {}").format(sql.Identifier(schema)))
    # Before 18 a GRANT takes no lock, so one may have landed on the table that has just been retired.
    if current_grants(main, run.blueprint) != run.blueprint.grants:
        raise errors.LiveChanged("The grants of the live tables changed under the fence. Live is as it was.",
                                 hint="repeat: the next run carries the new grants")
    check_held(run, fenced)


def refuse_waiting_dump(run: Run) -> None:
    """Give the fence back to a pg_dump behind it: it has read the old catalog, and its dump would not restore."""
    oids = [lock.oid for lock in run.blueprint.locks]
    for pid, application, waited in run.main.execute(_QUERIES["waiters"], {"oids": oids}).fetchall():
        run.longest_wait = max(run.longest_wait, waited or 0.0)
        if application == "pg_dump":
            raise GiveBack(f"pg_dump (pid {pid}) waits behind the fence: its dump would not restore")


def _advance(run: Run, replay: Replay) -> None:
    feeding = run.projection.feeding
    if isinstance(feeding, ExternalCheckpoint):
        run.main.execute(sql.SQL(feeding.advance), (replay.horizon,))
    elif feeding == "async":
        run.books.run(run.main, "advance_checkpoint", projection=run.projection.name, position=replay.horizon,
                      generation=run.generation, source=run.source, events=replay.read)
