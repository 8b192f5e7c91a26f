#!/usr/bin/env python3
"""Overloads the real CPU server for ten minutes per run and writes the latencies of its clients into
docs/performance.md.

    cargo build --release && python3 benches/overload.py [--seconds N] [--keep DIR] [LOAD...]

For each load, a server with the default policy and then one with `--policy fcfs` get the same arrivals. Before that,
premium requests run alone, for comparison. If their own p99 TTFT exceeds the limit for premium, the machine is too
unsteady to judge a policy, and the script stops there. On a virtual machine, a run is repeated if the hypervisor takes
more than a little processor time from the machine meanwhile, whatever the latencies are (Linux only; counted as "steal"
in /proc/stat). Takes about an hour without repeats; nothing else should run on the machine meanwhile.

If loads are named, only premium alone and these are measured, and the table rows of the other loads stay; they should
be of the same machine. `--seconds` shortens every run, to try the script: the table is then no result. `--keep` stores
three files of each run in DIR: the report, the latency targets that the server derived, and the profile that
`tiercel bench --calibrate` fits to the steps of the run. `benches/calibration.py --out DIR --runs 0 LOAD... compare`
compares these runs with their simulations. Needs nothing beyond Python 3."""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import urllib.request

from calibration import keep_targets, profile_of, reports_of

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/performance.md"
TIERCEL = ROOT / "target/release/tiercel"
URL = "http://127.0.0.1:8089"
ALONE = "premium-unloaded"
# Largest share of the processor time of a run that the hypervisor may take from the machine. In a run of ten minutes on
# two processors, a share of 0.5 % is 6 s of processor time: both processors would stand still for 3 s.
STOLEN_MAX = 0.005
# Number of times that a disturbed run is repeated.
REPEATS = 4
# Limit on premium's p99 TTFT, as a multiple of the median TTFT of premium alone.
LIMIT_MEDIANS = 3
LOADS = ["cpu-overload-600", "cpu-overload-x2-600"]
POLICIES = ["tiercel", "fcfs"]


def wait_until_ready(server):
    for _ in range(600):
        if server.poll() is not None:
            sys.exit(f"the server ended with {server.returncode}")
        try:
            with urllib.request.urlopen(f"{URL}/health", timeout=1) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.1)
    sys.exit("the server is not ready after a minute")


class Disturbed(Exception):
    """A run from which the hypervisor took too much processor time."""


def stolen_s():
    """Returns the processor time that the hypervisor took from all processors since the machine's start, seconds; 0 if
    the system does not count it."""
    try:
        with open("/proc/stat") as file:
            return int(file.readline().split()[8]) / os.sysconf("SC_CLK_TCK")
    except OSError:
        return 0.0


def run_undisturbed(workload, policy, arguments):
    """Runs a workload until a run is not disturbed, and returns the report of that run."""
    for _ in range(1 + REPEATS):
        try:
            return run(workload, policy, arguments)
        except Disturbed as disturbed:
            print(disturbed, file=sys.stderr)
    sys.exit(f"{workload} under {policy} was disturbed {1 + REPEATS} times: this machine is too unsteady; try again later "
             "or elsewhere")


def wait_until_done(bench, most_s):
    """Waits for the end of the load client. If the hypervisor takes more than `most_s` meanwhile, ends the client and raises
    `Disturbed`."""
    before_s = stolen_s()
    try:
        while bench.poll() is None:
            time.sleep(1)
            taken_s = stolen_s() - before_s
            if taken_s > most_s:
                raise Disturbed(f"the hypervisor took {taken_s:.1f} s of processor time, more than {most_s:.1f} s")
    finally:
        if bench.poll() is None:
            bench.kill()
            bench.wait()
    if bench.returncode:
        sys.exit(f"the load client ended with {bench.returncode}")


def run(workload, policy, arguments):
    """Runs a workload against a fresh server and returns the report of `tiercel bench`. Raises `Disturbed` if the
    hypervisor takes more than `STOLEN_MAX` of the processor time."""
    print(f"{workload} under {policy}", file=sys.stderr)
    words = ["serve", "--listen", URL.removeprefix("http://"), "--policy", policy]
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        text = (ROOT / f"benches/workloads/{workload}.toml").read_text()
        if arguments.seconds:
            text = re.sub(r"duration_s = \d+", f"duration_s = {arguments.seconds}", text)
        (folder / "w.toml").write_text(text)
        with open(folder / "log", "w") as log:
            server = subprocess.Popen([TIERCEL, *words, "--set", "prefix_cache.enabled=false"], stderr=log)
        try:
            wait_until_ready(server)
            words = ["bench", "--url", URL, "--workload", folder / "w.toml", "--json", folder / "out.json"]
            if arguments.keep:
                words += ["--calibrate", folder / "profile.toml"]
            duration_s = int(re.search(r"duration_s = (\d+)", text)[1])
            most_s = STOLEN_MAX * os.cpu_count() * duration_s
            wait_until_done(subprocess.Popen([TIERCEL, *words], stdout=subprocess.DEVNULL), most_s)
        finally:
            server.terminate()
            server.wait()
        report = (folder / "out.json").read_text()
        if arguments.keep:
            keep(arguments.keep, workload, policy, (report, (folder / "log").read_text(), (folder / "profile.toml").read_text()))
        return json.loads(report)


def keep(folder, workload, policy, outcome):
    """Stores the report of a run, the targets in the log of its server, and the profile of its steps in `folder`."""
    report, log, profile = outcome
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{workload}-{policy}-{len(reports_of(folder, workload, policy)) + 1}.json"
    path.write_text(report)
    profile_of(path).write_text(profile)
    try:
        keep_targets(path, log)
    except SystemExit as problem:
        print(problem, file=sys.stderr)


def cell(tier, field, scale, digits):
    value = tier[field]
    if not value or not value["count"]:
        return "-"
    return " / ".join(f"{value[q] / scale:.{digits}f}" for q in ("p50", "p90", "p99"))


def row(load, policy, tier):
    gone = tier["sent"] - tier["completed"] - tier["refused"]
    met = tier["compliance"]
    share = f"{100 * met['all_met'] / max(tier['sent'], 1):.1f}" if met else "-"
    return (
        f"| {load} | {policy} | {tier['tier']} | {tier['sent']} | {tier['refused']} | {gone} "
        f"| {cell(tier, 'ttft_ms', 1, 0)} | {cell(tier, 'tpot_ms', 1, 0)} | {cell(tier, 'e2e_ms', 1000, 1)} "
        f"| {share} | {tier['output_tokens_per_s']:.0f} |"
    )


def measured(load, arguments):
    """Runs a load under each policy. Returns its table rows and, by policy, the p99 TTFT of premium requests, ms."""
    rows, p99_ms = [], {}
    for policy in POLICIES:
        report = run_undisturbed(load, policy, arguments)
        rows += [row(load, policy, tier) for tier in [*report["tiers"], report["total"]]]
        p99_ms[policy] = report["tiers"][0]["ttft_ms"]["p99"]
    return rows, p99_ms


def measured_alone(arguments):
    """Runs premium requests alone. Returns their table row and the limit on premium's p99 TTFT, ms."""
    premium = run_undisturbed(ALONE, "tiercel", arguments)["tiers"][0]
    p99_ms, limit_ms = premium["ttft_ms"]["p99"], LIMIT_MEDIANS * premium["ttft_ms"]["p50"]
    if p99_ms > limit_ms:
        sys.exit(f"premium alone has a p99 TTFT of {p99_ms:.0f} ms, over the limit of {limit_ms:.0f} ms ({LIMIT_MEDIANS} "
                 "times its median): this machine is too unsteady to judge a policy; try again later or elsewhere")
    return row("premium alone", "tiercel", premium), limit_ms


def verdict(load, policy, p99_ms, limit_ms):
    word = "within" if p99_ms <= limit_ms else "over"
    return (f"- {load}, {policy}: premium p99 TTFT {p99_ms:.0f} ms, {word} {limit_ms:.0f} ms ({LIMIT_MEDIANS} times the median "
            "TTFT of premium alone)")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int)
    parser.add_argument("--keep", type=pathlib.Path, metavar="DIR")
    parser.add_argument("loads", nargs="*", metavar="LOAD")
    arguments = parser.parse_args()
    for unknown in set(arguments.loads) - set(LOADS):
        sys.exit(f"{unknown} is no load; there are {', '.join(LOADS)}")
    begin, end = "<!-- overload -->\n", "<!-- end of overload -->"
    before = PAGE.read_text().split(begin)[1].split(end)[0]
    kept = before.splitlines()
    alone, limit_ms = measured_alone(arguments)
    lines = [
        "| load | policy | tier | sent | refused | failed | TTFT p50 / p90 / p99, ms | TPOT, ms | E2E, s | in target % | output tok/s |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
        alone,
    ]
    verdicts = []
    for load in LOADS:
        if arguments.loads and load not in arguments.loads:
            lines += [line for line in kept if line.startswith(f"| {load} |")]
            verdicts += [line for line in kept if line.startswith(f"- {load},")]
            continue
        rows, p99_ms = measured(load, arguments)
        lines += rows
        verdicts += [verdict(load, policy, p99_ms[policy], limit_ms) for policy in POLICIES]
    table = "\n".join([*lines, "", *verdicts])
    # Read the page again: another program may have changed it during the runs.
    head, rest = PAGE.read_text().split(begin)
    PAGE.write_text(head + begin + table + "\n" + end + rest.split(end)[1])


if __name__ == "__main__":
    main()
