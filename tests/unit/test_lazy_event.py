"""An event that a replay reads decodes its data when somebody looks, and is an event like any other."""

import copy
import dataclasses
import pickle

import pytest

from rebuilder import Event
from rebuilder.eventlog.decoding import DecodeError, Decoders, decoder_for, lazily
from rebuilder.eventlog.raw_event import RawEvent

ROW = (7, "a", "Deposited", "account", "t", 3, 2, b'{"amount": 12}', b'{"by": "me"}', None)
EVENT = Event(position=7, stream="a", type="Deposited", category="account", tenant="t", stream_version=3,
              schema_version=2, data={"amount": 12}, metadata={"by": "me"}, replaying=True)


def make(**changes):
    decoded = []

    def decode(stored):
        decoded.append(stored)
        return decoder_for("json")(stored)

    return lazily(Decoders(decode, decode)), RawEvent(*ROW)._replace(**changes), decoded


def test_nothing_is_decoded_before_somebody_looks():
    """A handler that needs only the stream pays for nothing else, and may get data that can't be decoded."""
    event, raw, decoded = make(data=b"{")
    for _ in range(2):
        assert event(raw).stream == "a"
    assert decoded == []
    with pytest.raises(DecodeError, match="position 7"):
        _ = event(raw).data


def test_it_is_equal_to_one_made_of_values_whoever_looks_first():
    """Equality, repr, copies, replace, pickling and asdict see the values."""
    event, raw, _ = make()
    assert event(raw) == EVENT
    assert event(raw) == EVENT
    assert repr(event(raw)) == repr(EVENT)
    assert pickle.loads(pickle.dumps(event(raw))) == EVENT  # noqa: S301
    assert copy.deepcopy(event(raw)) == EVENT
    assert dataclasses.asdict(event(raw)) == dataclasses.asdict(EVENT)
    assert dataclasses.replace(event(raw), position=8) == dataclasses.replace(EVENT, position=8)
    assert event(raw).stream_id == EVENT.stream_id


def test_it_is_frozen_and_has_no_other_attributes():
    """Neither a field nor a new name can be set; an unknown one is an AttributeError."""
    event, raw, _ = make()
    with pytest.raises(dataclasses.FrozenInstanceError):
        event(raw).data = 1
    with pytest.raises(AttributeError):
        _ = event(raw).payload
    with pytest.raises(AttributeError):
        _ = EVENT.payload
    assert not hasattr(event(raw), "__dict__")


def test_what_was_looked_at_once_is_filled_in_for_the_next_of_its_type():
    """Also then data that can't be decoded harms nobody who does not look at it."""
    event, raw, decoded = make()
    first = event(raw)
    assert (first.data, first.data) == ({"amount": 12}, {"amount": 12})
    assert len(decoded) == 1
    broken = event(raw._replace(data=b"{", position=9))
    assert broken.position == 9
    with pytest.raises(DecodeError, match="position 9"):
        _ = broken.data
    assert event(raw._replace(data=None)).data is None
    assert event(raw._replace(type="Other", data=b"{")).type == "Other"
