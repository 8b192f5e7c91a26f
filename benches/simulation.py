#!/usr/bin/env python3
"""Runs every simulation that docs/simulation.md reports and rewrites the tables of that page.

    cargo build --release && python3 benches/simulation.py [--quick] [SECTION...]

Needs nothing beyond Python 3. SECTION is the name of a section of the page, such as `overload`; without any, all
sections are written. `--quick` simulates only three minutes per run, to try the script: the tables are then no results.
Runs are spread over the CPU cores. The same version of the program writes the same tables on every machine."""

import argparse
import concurrent.futures
import os
import sys

from tables import chunking, floors, recorded, reference, sizes
from tables.runs import ROOT, Runs

PAGE = ROOT / "docs/simulation.md"
SECTIONS = reference.SECTIONS | chunking.SECTIONS | floors.SECTIONS | recorded.SECTIONS | sizes.SECTIONS


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    # The module `tables.runs` reads this option as well.
    parser.add_argument("--quick", action="store_true", help="simulate only three minutes per run")
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"sections to write (default all): {', '.join(SECTIONS)}")
    names = parser.parse_args().sections or list(SECTIONS)
    for unknown in set(names) - set(SECTIONS):
        sys.exit(f"{unknown} is no section; there are {', '.join(SECTIONS)}")
    # A dictionary, because two sections may need the same runs.
    everything = list(dict.fromkeys(runs for name in names for runs in SECTIONS[name][0]))
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        # Start the longest runs first, so that no long run is left to run alone at the end.
        list(pool.map(Runs.run, sorted(everything, key=lambda runs: -runs.work())))
    # Read the page only after the runs: they take a while, and another program may change the page meanwhile.
    page = PAGE.read_text()
    for name in names:
        section = SECTIONS[name][1]
        begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
        start, stop = page.index(begin) + len(begin), page.index(end)
        page = page[:start] + "\n" + section() + "\n" + page[stop:]
    PAGE.write_text(page)


if __name__ == "__main__":
    main()
