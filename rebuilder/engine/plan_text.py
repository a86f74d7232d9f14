"""A plan for people."""

from __future__ import annotations

from rebuilder.engine.plan import Plan


def plan_text(plan: Plan) -> str:
    """The plan as lines of text: verdicts, locks in order, price, and what is in the way."""
    live = "never built" if plan.live_version is None else f"live has version {plan.live_version}"
    lines = [f"Rebuild of {plan.projection!r}, version {plan.version} ({live}): {', '.join(plan.tables)}", ""]
    if plan.refused:
        lines.append("REFUSED:")
        for error in plan.refused:
            lines += [f"  {line}" for line in str(error["message"]).splitlines()]
            if error.get("hint"):
                lines.append(f"  next: {error['hint']}")
        lines.append("")
    lines.append("What hangs off the tables:")
    for verdict in plan.verdicts:
        reason = f": {verdict.reason}" if verdict.reason else ""
        lines.append(f"  {verdict.outcome:<7} {verdict.kind} {verdict.name}{reason}")
        if verdict.hint:
            lines.append(f"          next: {verdict.hint}")
    lines += ["", "Built beforehand, where nobody sees it:", *(f"  {text};" for text in plan.build)]
    lines += ["", "Locks of the fence, in order:"]
    lines += [f"  {n}. {lock.object} ({lock.role}): {lock.statement}" for n, lock in enumerate(plan.locks, 1)]
    lines += ["", "Under the fence:", *(f"  {text};" for text in plan.swap)]
    lines += ["", "Owed after the commit:", *(f"  {text}" for text in plan.owed or ("nothing",))]
    lines += ["", *_price(plan)]
    if plan.read is not None:
        indexes = ", ".join(plan.read.indexes)
        how = f"by index {indexes}" if plan.read.index_scan else "WITHOUT an index in reading order"
        lines += ["", f"The log is read {how}."]
        lines += [f"  faster with: {statement}" for statement in plan.read.advice]
    lines += [f"  {note}" for note in plan.notes]
    lines += ["", "In the way of the fence right now:"]
    lines += [f"  {blocker.describe()}" for blocker in plan.blockers] or ["  nobody"]
    return "\n".join(lines)


def _price(plan: Plan) -> list[str]:
    price = plan.price
    seconds = price.estimated_seconds
    took = "unknown until a first rebuild" if seconds is None else f"about {seconds:.0f} s"
    limit = "" if price.slot_limit_bytes is None else f" (kept WAL limited to {_size(price.slot_limit_bytes)})"
    lines = [
        "The price of one transaction:",
        f"  {price.events} events to replay, {took}; a transaction id is held that long: vacuum removes nothing newer,",
        "  and consumers that read up to the oldest transaction see nothing new",
        f"  WAL about {_size(price.wal_bytes)}, disk at the peak {_size(price.peak_bytes)} more (live + 2 x shadow)",
        f"  {price.logical_slots} logical replication slots{limit}, {price.replicas} replicas",
        f"  {price.connections} connections (one more to count the events, one if upcasters look things up)",
        "  when the fence budget ends the replay is lost",
        "  a snapshot from before the cut-over that waits for it sees the read model as of the last freeze,",
        f"  which is at most {price.freeze_age_seconds:.0f} s old, or ten times what the freeze took",
    ]
    if price.wal_level == "minimal":
        lines.append("  wal_level is minimal: COMMIT syncs the whole table under the fence")
    if price.guarded_consumers:
        lines.append(f"  consumers of {', '.join(price.guarded_consumers)} stand still meanwhile")
    lines += [f"  CREATE INDEX CONCURRENTLY ({each}) would wait for the whole run"
              for each in price.indexing_concurrently]
    return lines


def _size(count: int) -> str:
    return f"{count / 2**20:.1f} MiB" if count < 2**30 else f"{count / 2**30:.1f} GiB"
