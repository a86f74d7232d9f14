"""The tree of errors: exit codes, JSON, pickles, words."""

import copy
import inspect
import json
import pickle
import re

import pytest

import rebuilder.eventlog
from rebuilder import errors
from rebuilder.errors import RebuilderError

EXIT_CODES = {
    "RebuilderError": 1, "DefinitionError": 2, "RefusedError": 3, "NotNow": 4, "RebuildError": 1, "RebuildCancelled": 7,
    "OutcomeUnknown": 8, "StoreError": 1,
}


def below(kind):
    for child in kind.__subclasses__():
        if child.__module__.startswith("rebuilder"):
            yield child
            yield from below(child)


EVERY = [RebuilderError, *below(RebuilderError)]
each = pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.__name__)


def family(kind):
    """The child of the root that an error belongs to."""
    return next(ancestor for ancestor in kind.__mro__ if ancestor.__name__ in EXIT_CODES)


def test_the_tree_at_the_top_of_the_module_is_the_tree():
    """Each class of the module is drawn under its parent, with its family's exit code."""
    drawn, path = [], []
    for line in errors.__doc__.splitlines():
        found = re.match(r"    ([│├└─ ]*)(\w+)(?:.*exit (\d+))?$", line)
        if found:
            depth = len(found[1]) // 4
            path[depth:] = [found[2]]
            drawn.append((found[2], path[depth - 1] if depth else "Exception"))
            if found[3]:
                assert getattr(errors, found[2]).exit_code == int(found[3]), line
    there = [(name, kind.__base__.__name__) for name, kind in vars(errors).items()
             if inspect.isclass(kind) and issubclass(kind, RebuilderError)]
    assert sorted(drawn) == sorted(there)


@each
def test_the_exit_code_is_the_family_s(kind):
    """A shell can act on a family without knowing its leaves; none of ours looks like success."""
    assert kind.exit_code == EXIT_CODES[family(kind).__name__]


def test_every_code_is_its_own():
    """Codes are what a ticket and `--json` keep: two errors must not share one."""
    codes = [kind.code for kind in EVERY]
    assert len(set(codes)) == len(codes)
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", code) for code in codes)


@each
def test_an_error_without_a_message_says_what_its_class_is(kind):
    """Its docstring, as one sentence."""
    error = kind()
    assert str(error) == error.message == inspect.cleandoc(kind.__doc__)
    assert error.message.endswith((".", ")."))


@each
def test_an_error_crosses_a_process_border_whole(kind):
    """Class, message, hint and fields survive a pickle and a copy (workers raise in processes of their own)."""
    error = kind("It went wrong.", hint="mend it", position=7, blockers=[{"pid": 1}])
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):  # noqa: S301  # our own
        assert type(again) is kind
        assert (again.message, again.hint, again.fields, str(again)) == (
            error.message, error.hint, error.fields, str(error))
        assert (again.position, again.blockers) == (7, [{"pid": 1}])


@each
def test_an_error_can_be_printed_as_json(kind):
    """Code, message, hint and the fields beside them."""
    error = kind("It went wrong.", hint="mend it", position=7)
    assert json.loads(json.dumps(error.to_json())) == {
        "error": kind.code, "message": "It went wrong.", "hint": "mend it", "position": 7}
    assert kind().to_json()["hint"] is None


def test_a_hint_is_the_second_line():
    """What to do next comes after what happened; without a hint nothing comes."""
    assert str(errors.NotNow("Busy.", hint="repeat")) == "Busy.\n  next: repeat"
    assert str(errors.NotNow("Busy.")) == "Busy."


def test_a_field_that_is_not_there_is_an_attribute_error():
    """And not something that looks like an answer."""
    error = errors.GuardTripped("Stop.", guard="shrink")
    assert error.guard == "shrink"
    with pytest.raises(AttributeError, match="rows"):
        _ = error.rows


def test_a_writer_behind_a_cut_over_may_be_repeated_like_a_serialization_failure():
    """Frameworks that repeat a transaction look for that SQLSTATE."""
    assert errors.CutOverDuringTransaction().sqlstate == "40001"


def test_an_event_that_can_not_be_read_failed_like_one_that_can_not_be_handled():
    """So that whoever catches the one gets the other."""
    assert issubclass(rebuilder.eventlog.DecodeError, errors.HandlerFailed)
