"""What a projection's live tables are made of, and what follows for shadow, fence and swap.

How the engine uses it, in order (``second`` is the autocommit connection, ``main`` the run's transaction):

1. ``read_blueprint(second, relations, shape=None, run_id=…) -> blueprint``, then ``preflight(blueprint, allow)``.
2. The shadow: ``create(table, work, table.name)``, then ``keys`` (upserts need them); the replay goes into that.
3. Freeze: ``create(table, work, other_name)``, COPY, ``positions = shadow_positions(main, table, work)``, drop the
   old copy, rename the fresh one, ``keys``, ``restore_positions(main, table, work, positions)``, ``indexes``,
   ANALYZE, ``dress``.
4. Before the fence: ``generated_keys(main, blueprint, work)`` raises PreflightRefused when the replay drew values
   that a foreign key of another table refers to.
5. Under the fence (``blueprint.locks`` in order): ``current_fingerprint(main, blueprint) == blueprint.fingerprint``
   (else ``changed_parts(main, blueprint)`` names what changed) and ``current_closure(main, blueprint) ==
   blueprint.closure`` (the difference of the two sets names the objects).
6. ``hand_over_sequences(main, blueprint, work)``, then the statements of ``swap(work, retired, keys_owed=False)``; they
   leave ``search_path`` empty. Then ``current_grants(main, blueprint) == blueprint.grants``.
7. After the commit: ``owed(retired, keys_owed=False)``, each in a transaction of its own, under an empty
   ``search_path``. With ``keys_owed=True`` live's own foreign keys were left out of the swap (skip the locks of role
   "referred"); they are added here, and dropped from the retired table.

Statements are complete: executed as they are, without parameters, one at a time. They set ``default_tablespace``
locally where it matters.
"""

from rebuilder.catalog.blueprint import (
    Blueprint,
    Column,
    FenceLock,
    LiveTable,
    LockKind,
    Outcome,
    OwedStatement,
    OwnedSequence,
    Schemas,
    Statement,
    Verdict,
)
from rebuilder.catalog.fingerprint import changed_parts, current_closure, current_fingerprint, current_grants
from rebuilder.catalog.plan import CatalogBlueprint, read_blueprint
from rebuilder.catalog.preflight import generated_keys, preflight, refusals
from rebuilder.catalog.sequences import hand_over_sequences, restore_positions, shadow_positions

__all__ = [
    "Blueprint",
    "CatalogBlueprint",
    "Column",
    "FenceLock",
    "LiveTable",
    "LockKind",
    "Outcome",
    "OwedStatement",
    "OwnedSequence",
    "Schemas",
    "Statement",
    "Verdict",
    "changed_parts",
    "current_closure",
    "current_fingerprint",
    "current_grants",
    "generated_keys",
    "hand_over_sequences",
    "preflight",
    "read_blueprint",
    "refusals",
    "restore_positions",
    "shadow_positions",
]
