"""Step 7: is the shadow what a replay of every event makes, and is live still what the plan saw?

What grows with the table or the log is checked before the fence; under it only what writers could have touched since.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rebuilder import errors
from rebuilder.catalog import changed_parts, current_closure, current_fingerprint, generated_keys
from rebuilder.domain.report import Drift
from rebuilder.engine import quarantine
from rebuilder.engine.catch_up import one_round
from rebuilder.engine.drain import check_held
from rebuilder.engine.drift import Comparison, compare, look_again, settle_candidates
from rebuilder.engine.fence import Fenced, GiveBack
from rebuilder.engine.replay import Replay, apply_page
from rebuilder.engine.row_guards import check_guards, ghost_among
from rebuilder.engine.run import Run
from rebuilder.engine.shadow import Shadow, check_writes
from rebuilder.store.sessions import translated

if TYPE_CHECKING:
    from rebuilder.eventlog import LogState


@dataclass(slots=True)
class Findings:
    """What the checks established; ``log`` is how the log looked at the start."""

    log: LogState
    comparisons: list[Comparison] = field(default_factory=list)
    drift: Drift = field(default_factory=Drift)
    rows: dict[str, int] = field(default_factory=dict)
    checked_at: float | None = None
    cost: float = 0.0

    def stale(self, least: float) -> bool:
        """Whether to compare again before the next attempts: older than ten times its cost, and than ``least``."""
        return self.checked_at is None or time.monotonic() - self.checked_at > max(10 * self.cost, least)


def check_before_fence(run: Run, shadow: Shadow, replay: Replay, findings: Findings) -> None:
    """Count, comparison and guards, once the bulk is frozen; raises what they find."""
    began = time.monotonic()
    check_writes(run, shadow)
    generated_keys(run.main, run.blueprint, shadow.work)
    _check_log(run, findings, whole=True)
    check_count(run, replay)
    shadow.applier.settle()
    findings.comparisons = compare(run, run.main, shadow)
    one_round(run, shadow, replay)
    shadow.applier.settle()
    settle_candidates(run.main, findings.comparisons)
    check_guards(run, run.main, findings.comparisons)
    findings.rows = {comparison.table.label: comparison.shadow_rows for comparison in findings.comparisons}
    check_live(run)
    findings.checked_at = time.monotonic()
    findings.cost = findings.checked_at - began


def recheck(run: Run, fenced: Fenced, shadow: Shadow, replay: Replay, findings: Findings) -> None:
    """Under the fence: the events above the horizon are as a set those applied; log and live are what they were."""
    if not run.projection.followed:
        _check_tail(run, shadow, replay)
    if not run.log.complete:
        # No horizon proves such a log complete; that this grows with the log was accepted with completeness="count".
        check_count(run, replay, whole=not run.projection.followed)
    check_held(run, fenced)
    _check_log(run, findings, whole=False)
    check_live(run)
    _check_moving(run, findings)
    check_writes(run, shadow, fenced=True)
    check_held(run, fenced)


def check_count(run: Run, replay: Replay, *, whole: bool = False) -> None:
    """Below the horizon (or in the whole log) every event was read exactly once."""
    if not run.selection.types:
        return
    with translated("counting the events"), run.reading() as reader:
        there = run.log.count(reader, run.selection, upto=None if whole else replay.horizon)
    if there != replay.read:
        raise errors.LogChanged(
            f"The log has {there} events up to position {replay.horizon}, the replay read {replay.read}: events were "
            "deleted, archived or inserted below the horizon while it ran. Live is as it was.",
            hint="repeat; if it happens again, find who changes old events", expected=there, read=replay.read)


def check_live(run: Run) -> None:
    """Live's definition and all that depends on it are what the plan saw."""
    # The dependents first: a foreign key that was born shows in live's own definition as a nameless trigger only.
    with translated("comparing what depends on live with the plan"):
        now = current_closure(run.main, run.blueprint)
    if now != run.blueprint.closure:
        moved = sorted(now ^ run.blueprint.closure)
        raise errors.LiveChanged(
            f"Objects that depend on {_labels(run)} came or went during the run: {', '.join(moved)}. Live is as it "
            "was.", hint="repeat: the next run takes them into account", changed=moved)
    with translated("comparing live's definition with the plan's"):
        if current_fingerprint(run.main, run.blueprint) != run.blueprint.fingerprint:
            changed = changed_parts(run.main, run.blueprint)
            raise errors.LiveChanged(
                f"The definition of {_labels(run)} changed during the run: {', '.join(changed)}. Swapping would undo "
                "that. Live is as it was.", hint="repeat: the next run builds the shadow from the new definition",
                changed=list(changed))


def _check_tail(run: Run, shadow: Shadow, replay: Replay) -> None:
    """A count can be right while the set is wrong: compare the sets."""
    if not run.selection.types:
        return
    with translated("comparing the tail of the log with what was applied"), run.reading() as reader:
        there = run.log.keys(reader, run.selection, above=replay.horizon)
    if gone := replay.above - there:
        raise GiveBack(f"{len(gone)} applied events are gone from the log's tail")
    missing = there - replay.above
    if not missing:
        return
    with translated("reading late events"), run.reading() as reader:
        tail = run.log.tail(reader, run.selection, above=replay.horizon)
    late = [raw for raw in tail if raw.key in missing]
    out_of_order = run.projection.order != "stream" and any(raw.position < replay.position for raw in late)
    overtaken = any(raw.position < replay.versions.get(quarantine.stream_id(raw), 0) for raw in late)
    if out_of_order or overtaken:
        raise GiveBack(f"{len(late)} events became visible after later ones had been applied")
    apply_page(run, shadow, replay, late)
    replay.applied += quarantine.close_segment(run, shadow, replay)
    shadow.applier.settle()
    replay.late += len(late)
    replay.above |= missing


def _check_log(run: Run, findings: Findings, *, whole: bool) -> None:
    """The log stayed append-only."""
    with translated("looking at the log"), run.reading() as reader:
        differences = findings.log.differences(run.log.state(reader, streams=whole))
    if differences:
        raise errors.LogChanged(
            f"The event log {run.log.label} did not stay append-only during the run: {'; '.join(differences)}. Live is "
            "as it was.", hint="repeat: the next run reads it as it is now", differences=differences)


def _check_moving(run: Run, findings: Findings) -> None:
    """The rows that writers were changing, now that they stand still."""
    total = Drift()
    for comparison in findings.comparisons:
        with translated("comparing live with the shadow"):
            found = look_again(run.main, comparison, comparison.moving)
        ghost_among(run, run.main, comparison, found)
        total += comparison.drift(comparison.table.label, run.settings.drift_sample, found)
    findings.drift = total


def _labels(run: Run) -> str:
    return ", ".join(table.label for table in run.blueprint.tables)
