#!/usr/bin/env python3
"""Runs every simulation that docs/simulation.md reports and writes its tables anew.

    cargo build --release && python3 benches/simulation.py [--quick] [SECTION...]

Needs nothing beyond Python 3. Sections are those of the page, such as `overload`; without any, all are written. `--quick`
runs three minutes of everything, to try the script: what it writes is no result. Runs are spread over the cores; equal
programs write equal tables, whatever the machine."""

import concurrent.futures
import os
import sys

from tables import chunking, floors, reference
from tables.runs import ROOT, Runs

PAGE = ROOT / "docs/simulation.md"
SECTIONS = reference.SECTIONS | chunking.SECTIONS | floors.SECTIONS


def main():
    names = [word for word in sys.argv[1:] if not word.startswith("-")] or list(SECTIONS)
    for unknown in set(names) - set(SECTIONS):
        sys.exit(f"{unknown} is no section; there are {', '.join(SECTIONS)}")
    everything = [runs for name in names for runs in SECTIONS[name][0]]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        # The longest first, so that none is left to run alone.
        list(pool.map(Runs.run, sorted(everything, key=lambda runs: -runs.work())))
    # Only now: it takes a while, and somebody may have written on the page meanwhile.
    page = PAGE.read_text()
    for name in names:
        section = SECTIONS[name][1]
        begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
        start, stop = page.index(begin) + len(begin), page.index(end)
        page = page[:start] + "\n" + section() + "\n" + page[stop:]
    PAGE.write_text(page)


if __name__ == "__main__":
    main()
