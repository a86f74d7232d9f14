"""Which applier serves which kind of handlers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from psycopg import sql

from rebuilder.domain.batch_sql import BatchSql
from rebuilder.domain.projection import SqlHandlers
from rebuilder.engine.apply_batch import BatchApplier
from rebuilder.engine.apply_fold import FoldApplier, Rows
from rebuilder.engine.apply_sql import Lift, SqlApplier
from rebuilder.engine.fold_table import FoldTable, read_columns

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
            return _folds(run, connection, tables, lift)


def _folds(run: Run, connection: Connection, tables: Mapping[str, sql.Identifier], lift: Lift) -> FoldApplier:
    projection, filled = run.projection, []
    by_name = dict(zip(projection.tables, run.blueprint.tables, strict=True))
    for fold in projection.folds:
        name = projection.fold_table(fold)
        live = by_name[name]
        table = FoldTable(connection, tables[name], live.label, fold, primary_key=live.primary_key,
                          columns=read_columns(connection, tables[name], live.stored))
        filled.append((fold, Rows(table, oid=live.oid, sequences=(one.column for one in live.sequences))))
    return FoldApplier(connection, filled, lift, memory=run.settings.fold_memory, page=run.settings.fold_page,
                       doing=f"writing the rows that {projection.name!r} folded")
