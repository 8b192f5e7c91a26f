#!/usr/bin/env python3
"""Ablation: turns off each mechanism of the default policy, halves and doubles each constant, and writes
docs/ablation.md.

    nice python3 benches/ablation.py build
    nice python3 benches/ablation.py run TRACES [--jobs 2]
    python3 benches/ablation.py write

Needs Python 3 and cargo. TRACES is the folder of the recorded traffic (`conv-067-loose.toml` and so on). `build` builds
a program that reads its constants from the environment. `run` appends the figures of each run to
target/ablation/runs.jsonl and skips runs that are already there. Every variant first runs with two seeds; if a
mechanism then changed anything, it runs with four more. `write` makes the tables from the stored figures."""

import concurrent.futures
import json
import pathlib
import subprocess
import sys
import tempfile

from tables import knobs, variants
from tables.ablation import NOTHING, Figures, constants_table, cpu_table, mechanisms_table, noise_table
from tables.runs import ROOT, compliant, of_class, of_run, tier, tokens_per_s

FOLDER = ROOT / "target/ablation"
STORE, PROGRAM, PAGE = FOLDER / "runs.jsonl", FOLDER / "program", ROOT / "docs/ablation.md"
STANDARD = ["w2-memory-tight", "w2b-bursts", "long-prompts", "surge", "prefix-tight", "tenants"]
TRACES = ["conv-067-loose", "conv-067-tight", "conv-100-loose", "code-050-loose"]
FOR_CONSTANTS = ["conv-067-tight", "long-prompts", "w2-memory-tight"]
SCREEN, ALL = 2, 6
# Workload that runs on the profile of a measured CPU server, and the number of seeds of each of its variants.
ON_CPU, CPU_SEEDS = "cpu-overload-x2-600", 24
CPU_OPTIONS = ["--profile", ROOT / "benches/profiles/cpu-smollm2-2-zen4-cores-calibrated.toml",
               "--set", "prefix_cache.enabled=false"]


def seeds(workload, first, end):
    start = 101 if workload in TRACES else 21 if workload == ON_CPU else 31
    return f"{start + first}..{start + end}"


def duration(workload):
    # The overload part of the workload conv-100-loose comes at its end, so the run must be long.
    return {"conv-100-loose": 1740, "tenants": 120}.get(workload, 900 if workload in TRACES else 600)


def figures_of(run):
    """Returns the figures of a run that are compared: share in target by tier and of the modest tenant, %; tok/s;
    preemptions per minute."""
    values = {t["tier"]: compliant(t["tier"])(run) for t in run["tiers"] if t["compliance"] and t["requests"]}
    if list(values) == ["standard"]:
        met = of_class(0, "compliance")(run)
        values["modest tenant"] = 100.0 * met["all_met"] / met["requests"]
    return values | {"tok/s": tokens_per_s(run), "preemptions": of_run("preemptions_per_min")(run)}


def figures_on_cpu(run):
    """Returns the figures that are compared on a CPU: TTFT of premium and standard, tok/s."""
    def ttft_ms(name, quantile):
        return tier(name, "ttft_ms", quantile)(run)
    return {"premium TTFT p50, ms": ttft_ms("premium", "p50"), "premium TTFT p99, ms": ttft_ms("premium", "p99"),
            "standard TTFT p50, ms": ttft_ms("standard", "p50"), "tok/s": tokens_per_s(run)}


def simulate(job):
    """Simulates one workload under one variant with some seeds and appends the figures to the store."""
    traces, workload, changes, first, end = job
    path = pathlib.Path(traces) if workload in TRACES else ROOT / "benches/workloads"
    arguments, environment = [], {}
    for change in changes:
        more, variables = variants.words(change)
        arguments += more
        environment |= variables
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "out.json"
        command = [PROGRAM.read_text(), "simulate", "--workload", path / f"{workload}.toml", "--policy", "tiercel",
                   *(CPU_OPTIONS if workload == ON_CPU else ["--noise", "0.1"]), "--duration", str(duration(workload)), "--seeds", seeds(workload, first, end),
                   "--json", out, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        if done.returncode:
            sys.exit(f"{workload} with {changes}: {done.stderr}")
        runs = json.loads(out.read_text())["policies"][0]["runs"]
    figures = figures_on_cpu if workload == ON_CPU else figures_of
    lines = [{"workload": workload, "changes": changes, "seed": run["seed"], "values": figures(run)} for run in runs]
    with STORE.open("a") as store:
        store.writelines(json.dumps(line) + "\n" for line in lines)


def play(traces, jobs, wanted):
    """Runs the wanted jobs, each (workload, changes, first seed, end seed), whose figures are not in the store yet."""
    known = Figures(STORE)
    missing = [(traces, *job) for job in wanted if len(known.seeds(job[0], job[1])) < job[3]]
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for number, _ in enumerate(pool.map(simulate, missing)):
            print(f"\r{number + 1} of {len(missing)}", end="", file=sys.stderr)
    print(file=sys.stderr)


def on_cpu():
    return {name: variants.MECHANISMS[name][0] for name in variants.ON_CPU}


def run(traces, jobs):
    mechanisms = [(workload, changes) for changes, workloads in variants.MECHANISMS.values() for workload in workloads]
    everywhere = STANDARD + TRACES
    play(traces, jobs, [(w, [], 0, ALL) for w in everywhere])
    play(traces, jobs, [(w, changes, 0, SCREEN) for w, changes in mechanisms])
    play(traces, jobs, [(w, NOTHING, 0, ALL) for w in FOR_CONSTANTS])
    play(traces, jobs, [(w, [change], 0, SCREEN)
                        for *_, changes in variants.of_constants() for change in changes for w in FOR_CONSTANTS])
    play(traces, jobs, [(ON_CPU, changes, 0, CPU_SEEDS) for changes in [[], *on_cpu().values()]])
    known = Figures(STORE)
    play(traces, jobs, [(w, changes, SCREEN, ALL) for w, changes in mechanisms if known.differ(w, changes)])


def write():
    known, page = Figures(STORE), PAGE.read_text()
    tables = {"mechanisms": mechanisms_table(known, variants.MECHANISMS),
              "cpu": cpu_table(known, ON_CPU, on_cpu()),
              "constants": constants_table(known, variants.of_constants(), FOR_CONSTANTS, SCREEN),
              "noise": noise_table(known, FOR_CONSTANTS)}
    for name, table in tables.items():
        begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
        start, stop = page.index(begin) + len(begin), page.index(end)
        page = page[:start] + "\n" + table + "\n" + page[stop:]
    PAGE.write_text(page)


def main():
    match sys.argv[1:]:
        case ["build"]:
            program = knobs.build([(file, name) for file, name, *_ in variants.CONSTANTS],
                                  [(file, name, old, new) for file, name, _, _, old, new in variants.NUMBERS] + variants.SWITCHES)
            PROGRAM.write_text(program)
        case ["run", traces, *options] if PROGRAM.exists() and options[:1] in ([], ["--jobs"]):
            run(traces, int(options[1]) if options else 2)
        case ["write"]:
            write()
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
