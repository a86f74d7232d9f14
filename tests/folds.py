"""Definitions that workers import: the bank's fold at the top of a module, and folds that end their process."""

import os

from rebuilder import Fold, Upcasters
from tests.kinds import make_fold

balances = make_fold()

deadly = Fold()


@deadly.on("Deposited", "Withdrawn", "AccountOpened", "OwnerRenamed", "AccountClosed")
def opened(_row, event):
    if event.position == 150:
        os._exit(3)
    return {"id": event.stream, "owner": None, "balance": 0, "changes": 0}


failing = Fold()


@failing.on("Deposited")  # type: ignore[no-redef]
def opened(row, event):  # noqa: F811
    if event.data["amount"] == 13:
        raise ValueError("unlucky")
    return {"id": event.stream, "owner": None, "balance": 0, "changes": (row["changes"] if row else 0) + 1}


upcasters = Upcasters()


@upcasters.on("Deposited", from_version=1)
def asked(data, context):
    row = context.fetch_one("SELECT 100")
    assert row is not None
    return {"amount": data["amount"] * row[0]}
