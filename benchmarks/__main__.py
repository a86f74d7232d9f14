"""`make bench`, or `python -m benchmarks [NAME …] [--quick]`: what is measured and not tested, as ratios in one run.

Exit code 1 if a ratio is not what it has to be. `--scale 0.1` makes every log a tenth as long, `--quick` a fortieth;
a short log measures mostly what a rebuild costs beside its events, so bounds are for the full one.
"""

import argparse
import importlib
import json
import os
import platform
import sys
from pathlib import Path

from benchmarks.measure import Database

NAMES = ("kinds", "rare", "throughput", "memory", "fence")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; by default all")
    parser.add_argument("--scale", type=float, default=1.0, help="length of the logs, 1 being the full one")
    parser.add_argument("--quick", action="store_true", help="short logs: does everything still run?")
    parser.add_argument("--dsn", default=os.environ.get("REBUILDER_TEST_DSN"),
                        help="a server to use; by default one is started")
    parser.add_argument("--out", type=Path, default=Path("build/bench"), metavar="FOLDER",
                        help="where results.json, results.md and results.png go")
    given = parser.parse_args()
    if unknown := set(given.names) - set(NAMES):
        parser.error(f"no benchmark called {', '.join(sorted(unknown))}")
    good, rows = True, []
    for name in given.names or NAMES:
        with Database(given.dsn) as database:
            print(f"--- {name}", flush=True)
            for result in importlib.import_module(f"benchmarks.{name}").run(
                    database, 0.025 if given.quick else given.scale):
                print(f"    {result}", flush=True)
                good &= result.good
                if result.row is not None:
                    rows.append({**result.row, "good": result.good})
    _keep(given.out, rows, given)
    return 0 if good or given.quick else 1


def _keep(folder: Path, rows: list[dict], given: argparse.Namespace) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    about = {"python": platform.python_version(), "cores": os.cpu_count(), "load": os.getloadavg(),
             "scale": 0.025 if given.quick else given.scale}
    (folder / "results.json").write_text(json.dumps({"about": about, "results": rows}, indent=1), encoding="utf-8")
    (folder / "results.md").write_text(_table(rows), encoding="utf-8")
    if not any("rate" in row for row in rows):
        return  # the chart shows rates, and nothing here measured one
    try:
        from benchmarks.chart import draw

        draw(rows, folder / "results.png")
    except ModuleNotFoundError:
        print("no chart: pip install 'rebuilder[bench]'", file=sys.stderr)
    print(f"results: {folder}/results.json, results.md, results.png")


def _table(rows: list[dict]) -> str:
    lines = ["| what | events a second | peak MiB | fence waited, held ms | WAL MiB |",
             "| --- | ---: | ---: | ---: | ---: |"]
    for row in (row for row in rows if "rate" in row):
        fence = "" if "total" not in row else f"{row['fence_wait_ms']:.0f}, {row['fence_held_ms']:.0f}"
        more = f"{row['peak_mib']:.0f} | {fence} | {row['wal_mib']:.0f} |" if fence else "| | |"
        lines.append(f"| {row['name']} | {row['rate']:,.0f} | {more}")
    lines += ["", "| ratio | found | has to be |", "| --- | ---: | --- |"]
    for row in (row for row in rows if "ratio" in row):
        bound = f"at least {row['least']:g}" if row["least"] is not None else f"at most {row['most']:g}"
        lines.append(f"| {row['name']} | {row['ratio']:.2f}{'' if row['good'] else ' (missed)'} | {bound} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
