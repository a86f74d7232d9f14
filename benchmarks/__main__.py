"""`make bench`, or `python -m benchmarks [NAME …] [--scale N]`: what is measured and not tested, as ratios in one run.

Exit code 1 if a ratio is not what it has to be. `--scale 0.1` makes every log a tenth as long.
"""

import argparse
import importlib
import os
import sys

from benchmarks.measure import Database

NAMES = ("throughput", "memory")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; by default all")
    parser.add_argument("--scale", type=float, default=1.0, help="length of the logs, 1 being the full one")
    parser.add_argument("--dsn", default=os.environ.get("REBUILDER_TEST_DSN"),
                        help="a server to use; by default one is started")
    given = parser.parse_args()
    if unknown := set(given.names) - set(NAMES):
        parser.error(f"no benchmark called {', '.join(sorted(unknown))}")
    good = True
    for name in given.names or NAMES:
        with Database(given.dsn) as database:
            print(f"--- {name}", flush=True)
            for result in importlib.import_module(f"benchmarks.{name}").run(database, given.scale):
                print(f"    {result}", flush=True)
                good &= result.good
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
