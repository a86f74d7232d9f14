"""Step 6: under the fence, apply what is left of the log."""

from __future__ import annotations

from rebuilder.engine import quarantine
from rebuilder.engine.catch_up import rest_that_fits
from rebuilder.engine.fence import Fenced, GiveBack
from rebuilder.engine.replay import Replay, apply_page
from rebuilder.engine.run import Run
from rebuilder.engine.shadow import Shadow, check_writes


def drain(run: Run, fenced: Fenced, shadow: Shadow, replay: Replay) -> None:
    """Apply the remaining events.

    ``inline`` and ``own`` to all that is visible, since what is still open applies itself to the new live; a followed
    projection only to the horizon, or what is in flight would be lost for its follower.

    No page that was read before the fence is used: its statement could not see what was committed while we waited.
    """
    if run.selection.types:
        if run.projection.followed:
            _to_checkpoint(run, fenced, shadow, replay)
        else:
            _to_the_end(run, shadow, replay)
    replay.applied += quarantine.close_segment(run, shadow, replay)
    shadow.applier.settle()
    check_writes(run, shadow, fenced=True)
    check_held(run, fenced)


def _to_the_end(run: Run, shadow: Shadow, replay: Replay) -> None:
    most = max(rest_that_fits(run) * 2, 10)
    with run.reading() as reader:
        tail = run.log.tail(reader, run.selection, above=replay.horizon, limit=most + 1)
    if len(tail) > most:
        raise GiveBack(f"more than {most} events came while the fence was being taken")
    apply_page(run, shadow, replay, tail)
    replay.above = {raw.key for raw in tail}
    for raw in tail:
        stream = quarantine.stream_id(raw)
        replay.versions[stream] = max(replay.versions.get(stream, 0), raw.position)


def _to_checkpoint(run: Run, fenced: Fenced, shadow: Shadow, replay: Replay) -> None:
    """A follower ran on meanwhile: its checkpoint, a settled horizon too, must not run backwards."""
    goal = max(replay.horizon, fenced.checkpoint or 0)
    while goal > replay.horizon:
        with run.reading() as reader:
            page = run.log.page(reader, run.selection, after=replay.cursor, upto=goal, limit=run.settings.batch)
        apply_page(run, shadow, replay, page)
        check_held(run, fenced)
        if len(page) < run.settings.batch:
            break
    replay.horizon = goal


def check_held(run: Run, fenced: Fenced) -> None:
    """Give the fence back when it has been held for as long as it may."""
    if fenced.held() > run.settings.fence_hold:
        raise GiveBack(f"the fence was held for {fenced.held():.2f} s, the cap is {run.settings.fence_hold:g} s")
