"""A log's definition is checked as far as it can be without a server."""

from datetime import UTC, datetime
from decimal import Decimal
from uuid import UUID

import pytest
from psycopg.types.json import Json

from rebuilder.errors import DefinitionError, HandlerFailed, LogDefinitionError
from rebuilder.eventlog import Columns, DecodeError, Expression, Selection, TableLog
from rebuilder.eventlog.columns import is_plain, render

COLUMNS = Columns(position="id", stream="stream", type="type", data="data")
LOG = TableLog("events", columns=COLUMNS)


@pytest.mark.parametrize("value, plain", [
    ("aggregate_id", True), ("_x", True), ("Größe", True), ("a$1", True),
    ("payload->>'kind'", False), ('"Odd name"', False), ("a.b", False), ("1", False), ("a b", False),
    (Expression("aggregate_id"), False),
])
def test_text_shaped_like_a_name_is_a_column(value, plain):
    assert is_plain(value) is plain


def test_a_column_is_quoted_and_an_expression_is_taken_as_it_is():
    assert render("type").as_string(None) == '"event"."type"'
    assert render("data->>'type' -- kind").as_string(None) == "(data->>'type' -- kind\n)"


def test_items_are_the_roles_that_are_given():
    assert dict(Columns(position="id", stream="s", type="t", data="d", tenant="x").items()) == {
        "position": "id", "stream": "s", "type": "t", "data": "d", "tenant": "x"}


@pytest.mark.parametrize("position", ["id + 1", Expression("id"), ""])
def test_the_position_is_a_plain_column(position):
    with pytest.raises(LogDefinitionError, match="position"):
        Columns(position=position, stream="stream", type="type", data="data")


def test_an_empty_column_is_refused():
    with pytest.raises(LogDefinitionError, match="category"):
        Columns(position="id", stream="stream", type="type", data="data", category=" ")


@pytest.mark.parametrize("wrong, why", [
    ({"relation": " "}, "name of a table"),
    ({"columns": "id"}, "takes a Columns"),
    ({"only": " "}, "only"),
    ({"archived": ""}, "archived"),
    ({"completeness": "maybe"}, "'maybe'"),
    ({"decode": "orjson"}, "'orjson'"),
    ({"decode_metadata": "yaml"}, "'yaml'"),
])
def test_a_definition_that_can_not_work_is_refused(wrong, why):
    given = {"relation": "events", "columns": COLUMNS, **wrong}
    with pytest.raises(LogDefinitionError, match=why):
        TableLog(given.pop("relation"), **given)


# --- events of the live application ----------------------------------------------------------------------------------


def test_an_event_is_made_from_a_row():
    log = TableLog("events", columns=Columns(
        position="id", stream="stream", type="type", data="data", category="data->>'kind'", tenant="tenant",
        stream_version="v", schema_version="s", metadata="meta", recorded_at="at"))
    event = log.event({
        "id": 7, "stream": UUID(int=10), "type": "opened", "data": b'{"n": 1}', "category": "account", "tenant": 3,
        "v": 2, "s": 1, "meta": Json({"by": "x"}), "at": "2024-05-06T07:08:00+00:00", "more": "ignored"})
    assert (event.position, event.stream, event.type) == (7, "00000000-0000-0000-0000-00000000000a", "opened")
    assert (event.category, event.tenant, event.stream_version, event.schema_version) == ("account", "3", 2, 1)
    assert (event.data, event.metadata, event.replaying) == ({"n": 1}, {"by": "x"}, False)
    assert event.recorded_at == datetime(2024, 5, 6, 7, 8, tzinfo=UTC)


@pytest.mark.parametrize("data, seen", [
    ('{"n": 1}', {"n": 1}), (b"[1]", [1]), (memoryview(b"[1]"), [1]), (bytearray(b"[1]"), [1]), (None, None),
    ({"n": (1, 2)}, {"n": [1, 2]}), (Json("text"), "text"), (10**30, 10**30), ({"d": Decimal("1.10")}, {"d": 1.1}),
])
def test_payloads_may_be_as_stored_or_as_decoded(data, seen):
    assert LOG.event({"id": 1, "stream": "a", "type": "t", "data": data}).data == seen


def test_fractions_stay_exact_where_that_was_asked_for():
    log = TableLog("events", columns=COLUMNS, decode="json-decimal")
    row = {"id": 1, "stream": "a", "type": "t"}
    assert str(log.event({**row, "data": {"d": Decimal("1.10")}}).data["d"]) == "1.10"
    assert str(log.event({**row, "data": '{"d": 1.10}'}).data["d"]) == "1.10"


def test_data_and_metadata_may_have_decoders_of_their_own():
    columns = Columns(position="id", stream="stream", type="type", data="data", metadata="meta")
    row = {"id": 1, "stream": "a", "type": "t", "data": b"abc", "meta": '{"n": 1.5}'}
    event = TableLog("events", columns=columns, decode=bytes.upper).event(row)
    assert (event.data, event.metadata) == (b"ABC", {"n": 1.5})
    event = TableLog("events", columns=columns, decode=bytes.upper, decode_metadata="json-decimal").event(row)
    assert event.metadata == {"n": Decimal("1.5")}


def test_what_a_row_lacks_is_named():
    with pytest.raises(DefinitionError, match="lacks id, data") as caught:
        LOG.event({"id": None, "stream": "a", "type": "t"})
    assert caught.value.columns == ["id", "data"]


def test_a_payload_that_is_no_json_is_named_by_its_event():
    with pytest.raises(DecodeError, match="position 9") as caught:
        LOG.event({"id": 9, "stream": "a", "type": "t", "data": "not json"})
    assert isinstance(caught.value, HandlerFailed)
    assert (caught.value.position, caught.value.stream, caught.value.type) == (9, "a", "t")


def test_a_payload_that_can_not_be_written_as_json_is_a_definition_error():
    with pytest.raises(DefinitionError, match="JSON"):
        LOG.event({"id": 9, "stream": "a", "type": "t", "data": {"f": object()}})


def test_a_selection_is_a_value():
    assert Selection(("a",)) == Selection(("a",), ())
