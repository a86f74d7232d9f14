"""What a rebuild or a verification found, for people."""

from __future__ import annotations

from rebuilder.cli.output import cell, pairs, seconds
from rebuilder.domain.report import Drift, RebuildReport, VerifyReport
from rebuilder.engine.deep import LogReport

_TIMES = ("fence_wait_seconds", "fence_held_seconds", "total")


def rebuild_text(report: RebuildReport) -> str:
    """The report of a rebuild that is committed."""
    attempts = f"{report.attempts} attempt{'' if report.attempts == 1 else 's'}"
    late = f", {report.late_events:,} of them late" if report.late_events else ""
    fence = (f"tried for {seconds(report.fence_wait_seconds)} ({attempts}), held for "
             f"{seconds(report.fence_held_seconds)}")
    if report.longest_wait_seconds:
        fence += f"; the longest wait behind it {seconds(report.longest_wait_seconds)}"
    phases = ", ".join(f"{name} {seconds(took)}" for name, took in report.seconds.items() if name not in _TIMES)
    lines = [
        f"{report.projection} is rebuilt: version {report.version}, generation {report.generation}.",
        pairs([
            ("ticket", report.ticket), ("events", f"{report.events_applied:,} applied{late}"),
            ("position", report.position), ("rows", _rows(report.rows)), ("drift", drift_text(report.drift)),
            ("fence", fence),
            ("old snapshots", f"see the read model as of {seconds(report.freeze_age_seconds)} before the cut-over"
             if report.freeze_age_seconds else None),
            ("took", f"{seconds(report.seconds.get('total'))} ({phases})"),
            ("dead letters", _dead_letters(report) if report.dead_letters else None),
            ("retired", ", ".join(report.retired) or None),
        ]),
        *_samples(report.drift),
        *(f"warning: {warning}" for warning in report.warnings),
        *(f"owed: {owed.kind} {owed.label}; next: {owed.command}" for owed in report.owed),
    ]
    return "\n".join(lines)


def log_text(report: LogReport) -> str:
    """What a deep look at the log found."""
    lines = [f"log {report.log}: {report.segments:,} closed segments compared, {report.closed:,} closed now"]
    lines += [f"  altered: positions {each.first_position:,} to {each.last_position:,}, {each.events_before:,} events "
              f"before, {each.events_now:,} now (next: find who edits old events, then rebuild)"
              for each in report.altered]
    return "\n".join(lines)


def verify_text(report: VerifyReport) -> str:
    """The report of a verification."""
    verdict = "differs from its log" if report.drift.total else "equals a replay of its log"
    rows = [("version", report.version), ("events", report.events), ("position", report.position),
            ("rows", _rows(report.rows)), ("drift", drift_text(report.drift)), ("took", seconds(report.seconds))]
    lines = [f"{report.projection} {verdict}.", pairs(rows), *_samples(report.drift)]
    if report.drift.total:
        lines.append(f"  next: rebuilder rebuild {report.projection}")
    return "\n".join(lines)


def drift_text(drift: Drift) -> str:
    """How many rows differ, and how."""
    if not drift.total:
        return "none"
    return f"{drift.missing:,} missing, {drift.extra:,} extra, {drift.changed:,} changed"


def _rows(rows: dict[str, int]) -> str:
    return ", ".join(f"{table} {cell(count)}" for table, count in rows.items())


def _dead_letters(report: RebuildReport) -> str:
    return f"{report.dead_letters:,}; next: rebuilder dead-letters list {report.projection}"


def _samples(drift: Drift) -> list[str]:
    lines = []
    for row in drift.sample:
        key = ", ".join(f"{column}={value}" for column, value in row.key.items())
        columns = f" in {', '.join(row.columns)}" if row.columns else ""
        lines.append(f"  {row.kind:<8} {row.table} ({key}){columns}")
    if drift.total > len(drift.sample):
        lines.append(f"  ... and {drift.total - len(drift.sample):,} more")
    return lines
