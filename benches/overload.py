#!/usr/bin/env python3
"""Overloads the real CPU server for ten minutes per run and writes the latencies of its clients into
docs/performance.md.

    cargo build --release && python3 benches/overload.py [--seconds N] [--keep DIR] [LOAD...]

For each load, a server with the default policy and then one with `--policy fcfs` get the same arrivals. Before that,
premium requests run alone, for comparison. If their own p99 TTFT exceeds the limit for premium, the machine is too
unsteady to judge a policy, and the script stops there. Takes about 50 minutes; nothing else should run on the machine
meanwhile. If loads are named, only premium alone and these are measured, and the table rows of the other loads stay;
they should be of the same machine. `--seconds` shortens every run, to try the script: the table is then no result.
`--keep` stores each report, and the latency targets that its server derived, in DIR, where the step `compare` of
`benches/calibration.py --out DIR` finds them. Needs nothing beyond Python 3."""

import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import urllib.request

from calibration import keep_targets, reports_of

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/performance.md"
TIERCEL = ROOT / "target/release/tiercel"
URL = "http://127.0.0.1:8089"
ALONE = "premium-unloaded"
# Length of the run of premium requests alone, seconds. The limit is computed from its median TTFT, and a median needs
# fewer requests than a p99.
ALONE_SECONDS = 180
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


def run(workload, policy, arguments):
    """Runs a workload against a fresh server and returns the report of `tiercel bench`."""
    print(f"{workload} under {policy}", file=sys.stderr)
    words = ["serve", "--listen", URL.removeprefix("http://"), "--policy", policy]
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        text = (ROOT / f"benches/workloads/{workload}.toml").read_text()
        seconds = arguments.seconds or (ALONE_SECONDS if workload == ALONE else None)
        if seconds:
            text = re.sub(r"duration_s = \d+", f"duration_s = {seconds}", text)
        (folder / "w.toml").write_text(text)
        with open(folder / "log", "w") as log:
            server = subprocess.Popen([TIERCEL, *words, "--set", "prefix_cache.enabled=false"], stderr=log)
        try:
            wait_until_ready(server)
            words = ["bench", "--url", URL, "--workload", folder / "w.toml", "--json", folder / "out.json"]
            subprocess.run([TIERCEL, *words], check=True, stdout=subprocess.DEVNULL)
        finally:
            server.terminate()
            server.wait()
        report = (folder / "out.json").read_text()
        if arguments.keep:
            keep(arguments.keep, workload, policy, (report, (folder / "log").read_text()))
        return json.loads(report)


def keep(folder, workload, policy, outcome):
    """Stores the report of a run, and the targets in the log of its server, in `folder`."""
    report, log = outcome
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{workload}-{policy}-{len(reports_of(folder, workload, policy)) + 1}.json"
    path.write_text(report)
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
        report = run(load, policy, arguments)
        rows += [row(load, policy, tier) for tier in [*report["tiers"], report["total"]]]
        p99_ms[policy] = report["tiers"][0]["ttft_ms"]["p99"]
    return rows, p99_ms


def measured_alone(arguments):
    """Runs premium requests alone. Returns their table row and the limit on premium's p99 TTFT, ms."""
    premium = run(ALONE, "tiercel", arguments)["tiers"][0]
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
