"""The proof: what the rebuild promises, held against what the server, the writers and the readers saw."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import psycopg

from rebuilder.demo.bank import REPLAY, Past
from rebuilder.demo.measure import Moments, Summary, Tally
from rebuilder.domain.report import RebuildReport

_SHOWN = 3

# EXCEPT both ways, over whole rows; one statement, so that log and read model are those of one instant.
_COMPARE = f"""
WITH replay AS MATERIALIZED ({REPLAY}),
expected AS (SELECT * FROM replay EXCEPT ALL SELECT id, owner, balance, movements FROM account),
found AS (SELECT id, owner, balance, movements FROM account EXCEPT ALL SELECT * FROM replay),
differing AS (
    SELECT id, expected.balance AS in_log, found.balance AS in_live, expected.id IS NULL AS is_missing,
           found.id IS NULL AS is_extra
    FROM expected FULL JOIN found USING (id)
)
SELECT (SELECT count(*) FROM account), (SELECT count(*) FROM bank_event),
       count(*) FILTER (WHERE is_missing), count(*) FILTER (WHERE is_extra),
       count(*) FILTER (WHERE NOT is_missing AND NOT is_extra),
       (SELECT coalesce(json_agg(json_build_array(id, in_live, in_log)), '[]')
        FROM (SELECT * FROM differing ORDER BY is_missing OR is_extra, id LIMIT %s) AS few)
FROM differing
"""  # noqa: S608 (both halves are constants)


@dataclass(frozen=True, slots=True)
class Differences:
    """Rows of the read model against a replay: counted as a rebuild counts drift, seen from live."""

    rows: int
    events: int
    missing: int
    extra: int
    changed: int
    sample: tuple[tuple[int, int | None, int | None], ...] = ()
    """Account, balance in live, balance by the log."""

    @property
    def total(self) -> int:
        """All rows that differ."""
        return self.missing + self.extra + self.changed

    def describe(self) -> str:
        """The numbers in words."""
        if not self.total:
            return f"all {self.rows:,} rows as a replay of {self.events:,} events in SQL has them"
        return f"{self.changed:,} rows wrong, {self.extra:,} lacking, {self.missing:,} too many"


def compare(connection: psycopg.Connection[Any]) -> Differences:
    """Compare the read model with a replay, in one REPEATABLE READ transaction. The connection is in autocommit."""
    with connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        row = connection.execute(_COMPARE, (_SHOWN,)).fetchone()
    assert row is not None
    rows, events, missing, extra, changed, sample = row
    return Differences(rows, events, missing, extra, changed, tuple(tuple(each) for each in sample))


@dataclass(frozen=True, slots=True)
class Claim:
    """One thing that must be so."""

    name: str
    text: str
    held: bool
    found: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What was seen from the first row to the last."""

    past: Past
    server: str
    wrong: Differences
    report: RebuildReport
    moments: Moments
    at_cut_over: Differences
    at_end: Differences
    reads: Tally
    writes: Tally
    fence_cap: float
    seconds: float

    def claims(self) -> list[Claim]:
        """Each promise, and whether it was kept."""
        reads, writes, drift, wrong = self.reads, self.writes, self.report.drift, self.wrong
        written = self.past.events + writes.events
        went_on = len(self.moments.split(writes.waits)["after"])
        held = self.report.fence_held_seconds
        return [
            Claim("wrong_before", "The read model was wrong before", wrong.total > 0, wrong.describe()),
            Claim("drift_reported", "The rebuild reported exactly those rows as drift",
                  (drift.missing, drift.extra, drift.changed) == (wrong.missing, wrong.extra, wrong.changed),
                  f"{drift.changed:,} changed, {drift.extra:,} extra, {drift.missing:,} missing"),
            Claim("right_after_cut_over", "After the cut-over it equals the log, writers going on",
                  self.at_cut_over.total == 0, self.at_cut_over.describe()),
            Claim("right_at_end", "It still does after more writes, at the end", self.at_end.total == 0,
                  self.at_end.describe()),
            Claim("writers_went_on", "Writers went on through the cut-over", went_on > 0,
                  f"{writes.committed:,} transactions committed, {went_on:,} begun after the cut-over"),
            Claim("no_write_lost", "The log has every event that a writer committed, and no other",
                  self.at_end.events == written,
                  f"{self.at_end.events:,} events: {self.past.events:,} + {writes.events:,}"
                  + ("" if self.at_end.events == written else " do not add up")),
            Claim("no_failed_write", "No write failed", writes.failed == 0 and writes.committed > 0, _failures(writes)),
            Claim("no_failed_read", "No read failed", reads.failed == 0 and len(reads.waits) > 0, _failures(reads)),
            Claim("no_empty_read", "No read found the table empty", reads.empty == 0, f"{reads.empty:,}"),
            Claim("no_short_read", "No read found fewer accounts than were always there", reads.short == 0,
                  f"{reads.short:,}"),
            Claim("steady_reads", "No REPEATABLE READ transaction saw the table change", reads.unsteady == 0,
                  f"{reads.unsteady:,}"),
            Claim("fence_within_cap", "The fence was held within its cap", 0 < held <= self.fence_cap,
                  f"{held * 1000:.1f} ms of {self.fence_cap * 1000:,.0f} ms"),
        ]

    @property
    def proved(self) -> bool:
        """Whether every claim held."""
        return all(claim.held for claim in self.claims())

    def waits(self) -> dict[str, dict[str, Summary]]:
        """Waits of readers and of writers by period, and over all."""
        return {
            who: {name: Summary.of(waits) for name, waits in
                  [*self.moments.split(tally.waits).items(), ("all", tally.waits)]}
            for who, tally in (("reads", self.reads), ("writes", self.writes))
        }

    def to_json(self) -> dict[str, Any]:
        """All of it as strings, numbers and objects."""
        waits = self.waits()
        return {
            "proved": self.proved,
            "claims": {claim.name: {"held": claim.held, "claim": claim.text, "found": claim.found}
                       for claim in self.claims()},
            "seed": self.past.seed,
            "server": self.server,
            "events": self.past.events,
            "accounts": self.past.accounts,
            "fence_held_ms": round(self.report.fence_held_seconds * 1000, 3),
            "fence_wait_ms": round(self.report.fence_wait_seconds * 1000, 3),
            "longest_read_ms": waits["reads"]["all"].longest,
            "longest_write_ms": waits["writes"]["all"].longest,
            "waits_ms": {who: {name: asdict(summary) for name, summary in periods.items()}
                         for who, periods in waits.items()},
            "reads": _counts(self.reads, "failed", "empty", "short", "unsteady", "failures"),
            "writes": _counts(self.writes, "committed", "events", "slow", "rolled_back", "repeated", "failed",
                              "failures"),
            "rebuild_seconds": round(self.moments.ended - self.moments.began, 3),
            "seconds": round(self.seconds, 3),
            "report": self.report.to_json(),
        }


def _counts(tally: Tally, *names: str) -> dict[str, Any]:
    return {name: getattr(tally, name) for name in names}


def _failures(tally: Tally) -> str:
    if tally.failed:
        return f"{tally.failed:,} of {len(tally.waits):,}: {'; '.join(tally.failures)}"
    return f"0 of {len(tally.waits):,}"
