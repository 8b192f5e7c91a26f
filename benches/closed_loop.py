#!/usr/bin/env python3
"""Compares the default policy with `--policy fcfs` on the real CPU server, with users in closed loops, and writes the
table into docs/performance.md.

    cargo build --release && python3 benches/closed_loop.py [--runs N] [USERS...]

Every user is of the standard tier, sends a prompt of 128 tokens, asks for 128 tokens, and sends the next request when
the answer is complete. Runs of the two policies alternate, each against a fresh server with no setting but its policy.
A second series of `fcfs` shows how far equal servers differ. The speed of a shared machine changes from one second to the
next, so each run also tells its decode time: the device time of a decoded token in steps without prompts in which nearly
all users decode. This work is the same under every policy. A run whose decode time exceeds the least one of its load by
more than 7 % is disturbed, and is repeated, in at most three times the asked number of rounds. Undisturbed runs count
first, then the runs with the least decode times. Besides, the script prints the figures of all runs at equal decode
times, for a machine that is too unsteady for undisturbed runs. If USERS are named, only these loads run, and the table
rows of the other loads stay. Five runs of each series take one to three hours; nothing else should run on the machine meanwhile.
Needs nothing beyond Python 3."""

import argparse
import csv
import json
import math
import pathlib
import statistics
import subprocess
import sys
import tempfile
import urllib.request

from overload import PAGE, TIERCEL, URL, wait_until_ready

USERS = [1, 4, 16, 64, 200]
# Seconds for which the users send requests, by number of users; requests still running then are waited for. With 64
# slots, the first requests of 200 users take a minute.
SECONDS = {1: 15, 4: 15, 16: 20, 64: 30, 200: 60}
SERIES = ["tiercel", "fcfs", "fcfs again"]
METRICS = ["ttft_ms", "e2e_ms"]
FIGURES = [(metric, percent) for metric in METRICS for percent in (50, 90, 99)]
ALLOWED = 0.03
# Most sequences that a server with default settings decodes in one step.
PLACES = 64
# A run is disturbed if its decode time exceeds the least decode time of the load by more than this share.
DISTURBED = 0.07
# Most rounds of runs, as a multiple of the asked number.
ROUNDS = 3

WORKLOAD = """name = "closed-loop-{users}"
seed = {seed}
duration_s = {seconds}
drain_s = 300

[[class]]
tier = "standard"
arrival = {{ closed = {{ streams = {users} }} }}
prompt_tokens = {{ fixed = 128 }}
output_tokens = {{ fixed = 128 }}
ignore_eos = true
"""


def run(series, users, seed):
    """Runs one load against a fresh server. Returns the totals that `tiercel bench` reports, and under the names of
    `METRICS` the latencies of all requests, ms."""
    print(f"{users} users, {series}, run {seed}", file=sys.stderr)
    policy = [] if series == "tiercel" else ["--policy", "fcfs"]
    words = ["serve", "--listen", URL.removeprefix("http://"), *policy]
    server = subprocess.Popen([TIERCEL, *words], stderr=subprocess.DEVNULL)
    try:
        wait_until_ready(server)
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            text = WORKLOAD.format(users=users, seed=seed, seconds=SECONDS[users])
            (folder / "w.toml").write_text(text)
            words = ["bench", "--url", URL, "--workload", folder / "w.toml", "--json", folder / "out.json"]
            words += ["--requests", folder / "rows.csv"]
            subprocess.run([TIERCEL, *words], check=True, stdout=subprocess.DEVNULL)
            total = json.loads((folder / "out.json").read_text())["total"]
            total["decode_us"] = decode_us(users)
            with open(folder / "rows.csv", newline="") as file:
                requests = [row for row in csv.DictReader(file) if row["in_window"] == "true"]
            return total | {metric: [float(row[metric]) for row in requests if row[metric]] for metric in METRICS}
    finally:
        server.terminate()
        server.wait()


def decode_us(users):
    """Returns the mean device time of a decoded token in the server's steps without prompts in which at least nine
    tenths of the users (or of the places of a step) decode, us."""
    with urllib.request.urlopen(f"{URL}/debug/steps?after=0") as answer:
        steps = json.load(answer)["steps"]
    full = [step for step in steps if not step["prefill_tokens"] and step["decode_tokens"] >= 0.9 * min(users, PLACES)]
    decoded = sum(step["decode_tokens"] for step in full)
    # A run without such a step counts as disturbed.
    return sum(step["device_us"] for step in full) / decoded if decoded else math.inf


def undisturbed(totals, least_us):
    return [total for total in totals if total["decode_us"] <= least_us * (1 + DISTURBED)]


def rounds(users, runs):
    """Runs rounds of all series until each series has `runs` undisturbed runs, or there were too many rounds. Returns by
    series the runs that count, and by series all runs."""
    results = {series: [] for series in SERIES}
    for seed in range(1, ROUNDS * runs + 1):
        # The series take turns at running first, so that the order of runs favours no series.
        first = seed % len(SERIES)
        for series in SERIES[first:] + SERIES[:first]:
            total = run(series, users, seed)
            rate, *times = figures([total])
            print(f"  {rate:.0f} tok/s, TTFT and E2E p50 / p90 / p99, ms: {' / '.join(f'{ms:.0f}' for ms in times)}; "
                  f"decode time {total['decode_us']:.0f} us", file=sys.stderr)
            results[series].append(total)
        least_us = min(total["decode_us"] for totals in results.values() for total in totals)
        if least_us == math.inf:
            sys.exit(f"no run of {users} users has a step in which nine tenths of them decode")
        if all(len(undisturbed(totals, least_us)) >= runs for totals in results.values()):
            break
    counting = {series: sorted(totals, key=lambda total: total["decode_us"] > least_us * (1 + DISTURBED) and total["decode_us"])[:runs]
                for series, totals in results.items()}
    return counting, results


def figures(totals):
    """Returns the figures of a series: tok/s, the mean over its runs; then percentiles of TTFT and E2E over the requests
    of all runs."""
    rate = statistics.mean(total["output_tokens_per_s"] for total in totals)
    pooled = {metric: sorted(ms for total in totals for ms in total[metric]) for metric in METRICS}
    return [rate] + [percentile(pooled[metric], percent) for metric, percent in FIGURES]


def percentile(values, percent):
    """Returns the smallest of the sorted values that at least `percent` percent of the values do not exceed."""
    return values[-(-len(values) * percent // 100) - 1]


def worse(ours, theirs):
    """Returns for each figure how much worse `ours` is than `theirs`, as a share of `theirs`; negative where it is
    better."""
    rate = theirs[0] / ours[0] - 1
    return [rate] + [mine / other - 1 for mine, other in zip(ours[1:], theirs[1:])]


def at_equal_speed(results):
    """Returns a table of the figures of all runs at their mean decode time: by series, mean and standard error. A figure is
    taken to change linearly with the decode time (tok/s with its inverse), by the slope that fits the runs within all
    series best. So differences of the machine's speed between the series do not count, and differences between policies
    do."""
    lines = ["| at equal decode times | runs | tok/s | TTFT p50 / p90 / p99, ms | E2E p50 / p90 / p99, s |", "|---|---|---|---|---|"]
    cells = {series: [] for series in SERIES}
    for number in range(1 + len(FIGURES)):
        points = {series: [(total["decode_us"] if number else 1 / total["decode_us"], figures([total])[number])
                           for total in totals if total["decode_us"] < math.inf] for series, totals in results.items()}
        means = {series: [statistics.mean(values) for values in zip(*of_series)] for series, of_series in points.items()}
        within = [(x - means[series][0], y - means[series][1]) for series, of_series in points.items() for x, y in of_series]
        slope = sum(x * y for x, y in within) / sum(x * x for x, y in within)
        middle = statistics.mean(x for of_series in points.values() for x, _ in of_series)
        for series, of_series in points.items():
            adjusted = [y - slope * (x - middle) for x, y in of_series]
            error = statistics.stdev(adjusted) / math.sqrt(len(adjusted))
            scale, digits = (1, 0) if number <= 3 else (1000, 2)
            cells[series].append(f"{statistics.mean(adjusted) / scale:.{digits}f} +- {error / scale:.{digits}f}")
    for series, (rate, *times) in cells.items():
        lines.append(f"| {series} | {len(results[series])} | {rate} | {' / '.join(times[:3])} | {' / '.join(times[3:])} |")
    return lines


def rows(users, results):
    lines = []
    for series in SERIES:
        totals = results[series]
        rate, *times = figures(totals)
        sent, refused = (sum(total[name] for total in totals) for name in ("sent", "refused"))
        failed = sent - refused - sum(total["completed"] for total in totals)
        ttft, e2e = times[:3], times[3:]
        lines.append(
            f"| {users} | {series} | {sent} | {refused} | {failed} | {rate:.0f} | {' / '.join(f'{ms:.0f}' for ms in ttft)} "
            f"| {' / '.join(f'{ms / 1000:.2f}' for ms in e2e)} |"
        )
    ours, theirs, again = (figures(results[series]) for series in SERIES)
    spread = [abs(share) for share in worse(again, theirs)]
    over = [
        f"{name} by {100 * share:.1f} %"
        for name, share, noise in zip(["tok/s", *(f"{m.removesuffix('_ms')} p{percent}" for m, percent in FIGURES)], worse(ours, theirs), spread)
        if share > max(ALLOWED, noise)
    ]
    verdict = f"- {users} users: " + ("worse in " + ", ".join(over) if over else "no figure worse than allowed")
    return lines, verdict


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, metavar="N", help="runs of each series (default 5)")
    parser.add_argument("users", type=int, nargs="*", metavar="USERS", help=f"numbers of users (default {USERS})")
    arguments = parser.parse_args()
    for unknown in set(arguments.users) - set(USERS):
        sys.exit(f"there is no load of {unknown} users; choose from {USERS}")
    runs, chosen = arguments.runs, arguments.users or USERS
    lines = [
        "| users | policy | sent | refused | failed | output tok/s | TTFT p50 / p90 / p99, ms | E2E p50 / p90 / p99, s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    begin, end = "<!-- closed loop -->\n", "<!-- end of closed loop -->"
    kept = PAGE.read_text().split(begin)[1].split(end)[0].splitlines()
    verdicts = []
    for users in USERS:
        if users not in chosen:
            lines += [line for line in kept if line.startswith(f"| {users} |")]
            verdicts += [line for line in kept if line.startswith(f"- {users} users:")]
            continue
        results, all_runs = rounds(users, runs)
        table, verdict = rows(users, results)
        decodes = ", ".join(f"{statistics.mean(total['decode_us'] for total in results[series]):.0f}" for series in SERIES)
        verdict += f" ({len(all_runs[SERIES[0]])} rounds; decode times {decodes} us)"
        lines += table
        verdicts.append(verdict)
        print("\n".join([*table, verdict, "", *at_equal_speed(all_runs)]), file=sys.stderr)
    # Read the page again: another program may have changed it during the runs.
    head, rest = PAGE.read_text().split(begin)
    note = (f"{runs} runs of each series. Counts are sums over the runs, tok/s are means; percentiles are of the requests of all "
            "runs.")
    table = "\n".join([*lines, "", note, "", *verdicts])
    PAGE.write_text(head + begin + table + "\n" + end + rest.split(end)[1])


if __name__ == "__main__":
    main()
