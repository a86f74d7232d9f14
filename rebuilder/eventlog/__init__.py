"""Reading an event log completely: where it is, how far it is settled, page by page."""

from rebuilder.eventlog.columns import Columns, Expression
from rebuilder.eventlog.decoding import DecodeError
from rebuilder.eventlog.horizon import Horizon
from rebuilder.eventlog.open_log import OpenLog, Totals
from rebuilder.eventlog.raw_event import Key, RawEvent
from rebuilder.eventlog.read_plan import ReadPlan
from rebuilder.eventlog.selection import Part, Selection
from rebuilder.eventlog.state import LogState
from rebuilder.eventlog.statements import batch_of
from rebuilder.eventlog.table_log import TableLog

__all__ = [
    "Columns", "DecodeError", "Expression", "Horizon", "Key", "LogState", "OpenLog", "Part", "RawEvent", "ReadPlan",
    "Selection", "TableLog", "Totals", "batch_of",
]
