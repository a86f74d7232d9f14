"""Which applier serves which kind of handlers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from psycopg import sql

from rebuilder.domain.batch_sql import BatchSql
from rebuilder.domain.projection import SqlHandlers
from rebuilder.engine.apply_batch import BatchApplier
from rebuilder.engine.apply_fold import FoldApplier
from rebuilder.engine.apply_sql import Lift, SqlApplier

if TYPE_CHECKING:
    from rebuilder.engine.applier import Applier
    from rebuilder.engine.run import Run
    from rebuilder.store.sessions import Connection


def make_applier(run: Run, connection: Connection, tables: Mapping[str, sql.Identifier], lift: Lift) -> Applier:
    """The applier of a run's projection; ``tables`` are the shadow's, by their names in the projection."""
    match run.projection.handlers:
        case SqlHandlers() as handlers:
            return SqlApplier(handlers, connection, tables, lift, page=run.settings.batch)
        case BatchSql() as handlers:
            return BatchApplier(handlers, run, connection)
        case _:
            return FoldApplier(run, connection, tables, lift)
