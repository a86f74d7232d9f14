"""The rates and ratios of a run as a PNG."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Two panels: events a second by kind, and each ratio against its bound."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    rates = [row for row in rows if "rate" in row]
    ratios = [row for row in rows if "ratio" in row]
    figure, (left, right) = plt.subplots(2, 1, figsize=(10, 3 + 0.3 * (len(rates) + len(ratios))))
    left.barh([row["name"] for row in rates], [row["rate"] for row in rates], color="#4a7ebb")
    left.invert_yaxis()
    left.set_xscale("log")
    left.set_xlabel("events a second")
    # Above 1 is good, whichever way the bound goes.
    margin = [row["ratio"] / row["least"] if row["least"] is not None else row["most"] / row["ratio"]
              for row in ratios]
    right.barh([row["name"] for row in ratios], margin, color=["#5a9e5a" if one >= 1 else "#c0504d" for one in margin])
    right.axvline(1, color="black", linewidth=1)
    right.invert_yaxis()
    right.set_xlabel("ratio over its bound (right of the line: as good as promised)")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
