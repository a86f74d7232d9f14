"""The event tables that some known stores create, as logs.

Each takes what differs between installations; ``dataclasses.replace`` changes the rest. Where a category or a time is
an expression, a row for ``TableLog.event`` holds it under ``category`` or ``recorded_at``.

Not here, since a log read in the order of one unique position would not be right for them: Emmett (its messages are
partitioned so that no unique index on the position is possible), Sequent (no position over all streams), Rails Event
Store and Commanded (an event is linked to streams in a table of its own: name a view), Axon with JPA (ids are drawn
ahead, fifty at a time), Marten with ``UseTenantPartitionedEvents`` (each tenant has a sequence; opening refuses it).
"""

from __future__ import annotations

from rebuilder.eventlog.columns import Columns, Expression
from rebuilder.eventlog.decoding import Decode
from rebuilder.eventlog.table_log import TableLog


def marten(schema: str = "public", *, binary: bool = False, skipped: bool = False, headers: bool = False,
           decode: Decode = "json") -> TableLog:
    """Marten's ``mt_events``. It has no category: projections select by type.

    ``binary``: the table has ``bdata`` (version 9); events that use it reach ``decode`` as those bytes, the others as
    JSON. ``skipped``: it has ``is_skipped``. ``headers``: it has ``headers``, which become the metadata.
    """
    return TableLog(
        f"{schema}.mt_events",
        columns=Columns(
            position="seq_id", stream="stream_id", tenant="tenant_id", stream_version="version", type="type",
            data=Expression("coalesce(bdata, convert_to(data::text, 'UTF8'))") if binary else "data",
            metadata="headers" if headers else None, recorded_at="timestamp"),
        only="NOT is_skipped" if skipped else None, archived="is_archived",
        sequence=f"{schema}.mt_events_sequence", decode=decode)


def eventsourcing(table: str = "stored_events", *, decode: Decode = "json") -> TableLog:
    """The recorder table of Python's eventsourcing: ``stored_events``, or ``<application>_events``.

    The type is the topic, the data what the transcoder wrote: ``decode`` undoes a cipher or a compressor first.
    """
    return TableLog(
        table, columns=Columns(position="notification_id", stream="originator_id", stream_version="originator_version",
                               type="topic", data="state"), decode=decode)


def message_db(schema: str = "message_store", *, decode: Decode = "json") -> TableLog:
    """Message DB's ``messages``; a stream's category is what stands before the first dash, as its own function says."""
    return TableLog(
        f"{schema}.messages",
        columns=Columns(
            position="global_position", stream="stream_name", stream_version="position", type="type", data="data",
            metadata="metadata", category=Expression(f"{schema}.category(stream_name)"),
            recorded_at=Expression("time AT TIME ZONE 'UTC'")),
        decode=decode)


def akka(table: str = "event_journal", *, decode: Decode = "json") -> TableLog:
    """The journal of Akka's and Pekko's persistence-jdbc; entities are named ``Category|id``.

    The type is the serializer's manifest, and ``decode`` must know its format (``"json"`` for Jackson's JSON).
    """
    return TableLog(
        table,
        columns=Columns(
            position="ordering", stream="persistence_id", stream_version="sequence_number", type="event_ser_manifest",
            data="event_payload", category=Expression("split_part(persistence_id, '|', 1)"),
            recorded_at=Expression("to_timestamp(write_timestamp / 1000.0)")),
        only="NOT deleted", decode=decode)


def axon(table: str = "domainevententry", *, decode: Decode = "json") -> TableLog:
    """Axon 4's JDBC store. ``decode`` reads payload and metadata alike: ``"json"`` for Jackson, else a function."""
    return TableLog(
        table,
        columns=Columns(
            position="globalindex", stream="aggregateidentifier", category="type", stream_version="sequencenumber",
            type="payloadtype", data="payload", metadata="metadata",
            recorded_at=Expression('"timestamp"::timestamptz')),
        decode=decode, decode_metadata=decode)


def kumiko(schema: str = "public", *, decode: Decode = "json") -> TableLog:
    """Kumiko's ``kumiko_events``, without its archived streams."""
    return TableLog(
        f"{schema}.kumiko_events",
        columns=Columns(
            position="id", stream="aggregate_id", category="aggregate_type", tenant="tenant_id",
            stream_version="version", type="type", schema_version="event_version", data="payload",
            metadata="metadata", recorded_at="created_at"),
        archived=f"EXISTS (SELECT FROM {schema}.kumiko_archived_streams archived"
                 " WHERE archived.tenant_id = event.tenant_id AND archived.aggregate_id = event.aggregate_id)",
        decode=decode)
