#!/usr/bin/env python3
"""Compares the default policy with `--policy fcfs` on the real CPU server, with users in closed loops, and writes the
table into docs/performance.md.

    cargo build --release && python3 benches/closed_loop.py [--runs N] [USERS...]

Every user is of the standard tier, sends a prompt of 128 tokens, asks for 128 tokens, and sends the next request when
the answer is complete. Runs of the two policies alternate, each against a fresh server with no setting but its policy.
A second series of `fcfs` shows how far equal servers differ. Five runs of each series take an hour; nothing else should
run on the machine meanwhile. Needs nothing beyond Python 3."""

import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

from overload import PAGE, TIERCEL, URL, wait_until_ready

USERS = [1, 4, 16, 64, 200]
# Seconds for which the users send requests, by number of users; requests still running then are waited for. With 64
# slots, the first requests of 200 users take a minute.
SECONDS = {1: 15, 4: 15, 16: 20, 64: 30, 200: 60}
SERIES = ["tiercel", "fcfs", "fcfs again"]
FIGURES = [(metric, q) for metric in ("ttft_ms", "e2e_ms") for q in ("p50", "p90", "p99")]
ALLOWED = 0.03

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
    """Runs one load against a fresh server and returns the totals that `tiercel bench` reports."""
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
            subprocess.run([TIERCEL, *words], check=True, stdout=subprocess.DEVNULL)
            return json.loads((folder / "out.json").read_text())["total"]
    finally:
        server.terminate()
        server.wait()


def figures(totals):
    """Returns the figures of a series, each the mean over its runs: tok/s, then the percentiles of TTFT and E2E."""
    rate = statistics.mean(total["output_tokens_per_s"] for total in totals)
    return [rate] + [statistics.mean(total[metric][q] for total in totals) for metric, q in FIGURES]


def worse(ours, theirs):
    """Returns for each figure how much worse `ours` is than `theirs`, as a share of `theirs`; negative where it is
    better."""
    rate = theirs[0] / ours[0] - 1
    return [rate] + [mine / other - 1 for mine, other in zip(ours[1:], theirs[1:])]


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
        for name, share, noise in zip(["tok/s", *(f"{m.removesuffix('_ms')} {q}" for m, q in FIGURES)], worse(ours, theirs), spread)
        if share > max(ALLOWED, noise)
    ]
    verdict = f"- {users} users: " + ("worse in " + ", ".join(over) if over else "no figure worse than allowed")
    return lines, verdict


def main():
    words = sys.argv[1:]
    runs = int(words[words.index("--runs") + 1]) if "--runs" in words else 5
    chosen = [int(word) for at, word in enumerate(words) if word.isdigit() and words[at - 1 : at] != ["--runs"]] or USERS
    lines = [
        "| users | policy | sent | refused | failed | output tok/s | TTFT p50 / p90 / p99, ms | E2E p50 / p90 / p99, s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    verdicts = []
    for users in chosen:
        results = {series: [] for series in SERIES}
        for seed in range(1, runs + 1):
            for series in SERIES:
                results[series].append(run(series, users, seed))
        table, verdict = rows(users, results)
        lines += table
        verdicts.append(verdict)
        print("\n".join([*table, verdict]), file=sys.stderr)
    begin, end = "<!-- closed loop -->\n", "<!-- end of closed loop -->"
    head, rest = PAGE.read_text().split(begin)
    table = "\n".join([*lines, "", f"{runs} runs of each series; counts are sums over the runs, other figures are means.", "", *verdicts])
    PAGE.write_text(head + begin + table + "\n" + end + rest.split(end)[1])


if __name__ == "__main__":
    main()
