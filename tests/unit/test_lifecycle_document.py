"""docs/lifecycle.md says what the code does."""

import re
from pathlib import Path

from rebuilder.domain.lifecycle import EDGES
from rebuilder.domain.ticket import Health, Stage

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "lifecycle.md").read_text(encoding="utf-8")


def test_the_tickets_edges_are_those_of_the_document():
    """Every row of the table is an edge of the code, and every edge has a row."""
    rows = re.findall(r"^\| (\w+) \| ([A-Z]\w+) \| (\w+) \|$", TEXT, re.MULTILINE)
    assert {(str(stage), step.__name__): str(to) for (stage, step), to in EDGES.items()} == {
        (stage, step): to for stage, step, to in rows}
    assert len(rows) == len(EDGES)


def test_every_stage_and_health_is_drawn():
    """None is forgotten in a drawing, and none that the code does not have."""
    drawings = re.findall(r"```\n(.*?)```", TEXT, re.DOTALL)
    for words, drawing in ((Stage, drawings[0]), (Health, drawings[1])):
        assert {str(word) for word in words} <= set(re.findall(r"\w+", drawing))
