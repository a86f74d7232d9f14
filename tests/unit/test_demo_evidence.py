"""Each claim of the demo's proof falls by its own evidence, and no other."""

from dataclasses import replace

import pytest

from rebuilder import Drift, RebuildReport
from rebuilder.demo.bank import Past
from rebuilder.demo.measure import Moments, Summary, Tally
from rebuilder.demo.proof import Differences, Evidence

RIGHT = Differences(rows=100, events=1030, missing=0, extra=0, changed=0)
WAITS = [(0.5, 0.001), (1.5, 0.002), (2.95, 0.2), (4.0, 0.003)]
GOOD = Evidence(
    past=Past.of(1000, seed=1), server="PostgreSQL 18", wrong=replace(RIGHT, missing=1, extra=2, changed=3),
    report=RebuildReport(
        projection="account", ticket="t", generation=1, version=2, events_applied=1010, dead_letters=0, position=1010,
        rows={"account": 100}, drift=Drift(missing=1, extra=2, changed=3), attempts=1, late_events=0,
        seconds={"fence_held_seconds": 0.02}),
    moments=Moments(began=1.0, fence=3.0, ended=3.5), at_cut_over=RIGHT, at_end=RIGHT, reads=Tally(waits=WAITS),
    writes=Tally(waits=WAITS, committed=4, events=30), fence_cap=1.0, seconds=5.0)


def fallen(evidence):
    assert evidence.proved == all(claim.held for claim in evidence.claims()) == evidence.to_json()["proved"]
    return {claim.name for claim in evidence.claims() if not claim.held}


def test_good_evidence_proves_all():
    assert fallen(GOOD) == set()
    assert GOOD.proved


@pytest.mark.parametrize("claim, change", [
    ("drift_reported", {"report": replace(GOOD.report, drift=Drift(1, 2, 4))}),
    ("right_after_cut_over", {"at_cut_over": replace(RIGHT, changed=1)}),
    ("right_at_end", {"at_end": replace(RIGHT, missing=1)}),
    ("writers_went_on", {"writes": replace(GOOD.writes, waits=WAITS[:3])}),
    ("no_write_lost", {"at_end": replace(RIGHT, events=1029)}),
    ("no_failed_write", {"writes": replace(GOOD.writes, failed=1)}),
    ("no_failed_read", {"reads": replace(GOOD.reads, failed=1)}),
    ("no_failed_read", {"reads": replace(GOOD.reads, waits=[])}),
    ("no_empty_read", {"reads": replace(GOOD.reads, empty=1)}),
    ("no_short_read", {"reads": replace(GOOD.reads, short=1)}),
    ("steady_reads", {"reads": replace(GOOD.reads, unsteady=1)}),
    ("fence_within_cap", {"report": replace(GOOD.report, seconds={"fence_held_seconds": 1.01})}),
    ("fence_within_cap", {"report": replace(GOOD.report, seconds={})}),
])
def test_a_claim_falls_by_its_own_evidence(claim, change):
    assert fallen(replace(GOOD, **change)) == {claim}


def test_a_demo_that_had_nothing_to_mend_proves_nothing():
    untouched = replace(GOOD, wrong=RIGHT, report=replace(GOOD.report, drift=Drift()))
    assert fallen(untouched) == {"wrong_before"}


def test_a_wait_that_touches_the_cut_over_is_the_cut_overs():
    periods = GOOD.waits()["reads"]
    assert {name: summary.longest for name, summary in periods.items()} == {
        "before": 1.0, "replay": 2.0, "cut-over": 200.0, "after": 3.0, "all": 200.0}


def test_percentiles_are_waits_that_happened():
    summary = Summary.of((0.0, seconds / 1000) for seconds in range(1, 101))
    assert (summary.count, summary.p50, summary.p99, summary.longest) == (100, 50.0, 99.0, 100.0)
    assert Summary.of([]) == Summary(0, 0.0, 0.0, 0.0)


def test_tallies_add_up_to_one():
    total = Tally(waits=[(1.0, 2.0)], failed=1, failures=["a"]) + Tally(waits=[(3.0, 4.0)], committed=2)
    assert total == Tally(waits=[(1.0, 2.0), (3.0, 4.0)], failed=1, failures=["a"], committed=2)
