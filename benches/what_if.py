#!/usr/bin/env python3
"""Measures how well a recording of live traffic predicts a real CPU server: under the policy that it was recorded
under, and under another one.

    cargo build --release && python3 benches/what_if.py [--minutes N] [--load K] [--keep FOLDER]

A server with the default model runs under `fcfs` while `tiercel bench` sends it traffic of three tiers at the edge of
what it can do. `tiercel ctl record` records that traffic. Then a server under `tiercel` gets the same arrivals, and is
recorded too. Both runs are made once more, to see how far real runs of the same arrivals differ. The first recording is
replayed under both policies, and the predicted percentiles of the TTFT are compared with the measured ones. A prediction fits
if its error is within the allowed one; a p99 also fits if its error is not larger than the difference of the two real runs. A
machine may be faster in one run than in the other; the last column has the errors of a replay of the first arrivals at the speed
of the second run. Five minutes of traffic take 25 minutes; nothing else should run on the machine meanwhile. Needs nothing
beyond Python 3."""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

from overload import TIERCEL, URL, wait_until_ready

CONTROL = "http://127.0.0.1:8090"
TIERS = ["premium", "standard", "background"]
POLICIES = ["fcfs", "tiercel"]
QUANTILES = ["p50", "p90", "p99"]
SEEDS = range(1, 11)
# Allowed error of a predicted percentile, as a share of the measured one, by policy.
ALLOWED = {"fcfs": 0.10, "tiercel": 0.15}
# Minimum number of requests of a tier for its p99 to be judged.
LEAST_FOR_P99 = 300

# At load 1 a server on two cores has about as much work as it can do. The bursts make queues.
WORKLOAD = """name = "what-if"
seed = {seed}
duration_s = {seconds}
drain_s = 300

[[class]]
tier = "premium"
arrival = {{ poisson = {{ rate_per_s = {premium}, bursts = {{ factor = 3, length_s = 5, period_s = 30 }} }} }}
prompt_tokens = {{ log_normal = {{ mean = 64, sigma = 0.6, min = 16, cap = 256 }} }}
output_tokens = {{ log_normal = {{ mean = 32, sigma = 0.6, min = 4, cap = 96 }} }}
ignore_eos = true

[[class]]
tier = "standard"
arrival = {{ poisson = {{ rate_per_s = {standard}, bursts = {{ factor = 3, length_s = 5, period_s = 30 }} }} }}
prompt_tokens = {{ log_normal = {{ mean = 96, sigma = 0.6, min = 16, cap = 384 }} }}
output_tokens = {{ log_normal = {{ mean = 48, sigma = 0.6, min = 4, cap = 128 }} }}
ignore_eos = true

[[class]]
tier = "background"
arrival = {{ poisson = {{ rate_per_s = {background} }} }}
prompt_tokens = {{ log_normal = {{ mean = 96, sigma = 0.6, min = 16, cap = 384 }} }}
output_tokens = {{ log_normal = {{ mean = 96, sigma = 0.6, min = 8, cap = 256 }} }}
ignore_eos = true
"""
RATE_PER_S = 1.75
# Settings of both servers. All requests are accepted, because a refused one has no TTFT to compare. The targets are stated,
# because derived ones follow from the speed that a server measures at its start, which differs from start to start.
SETTINGS = [
    "admission.max_queued_requests_per_tier=2000",
    "admission.max_requests=6000",
    "slo.premium.ttft_ms=500",
    "slo.premium.tpot_ms=80",
    "slo.premium.e2e_ms=14000",
    "slo.standard.ttft_ms=1300",
    "slo.standard.tpot_ms=210",
    "slo.standard.e2e_ms=36000",
    "slo.background.e2e_ms=140000",
]


def ctl(*words):
    subprocess.run([TIERCEL, "ctl", "--url", CONTROL, *words], check=True, stdout=subprocess.DEVNULL)


def record(policy, workload, file):
    """Sends the workload to a fresh server and records it. Returns the client's report."""
    print(f"{policy}: sending and recording", file=sys.stderr)
    words = ["serve", "--listen", URL.removeprefix("http://"), "--policy", policy]
    words += [word for setting in SETTINGS for word in ("--set", setting)]
    server = subprocess.Popen([TIERCEL, *words], stderr=subprocess.DEVNULL)
    try:
        wait_until_ready(server)
        ctl("record", "start", "--minutes", "120")
        report = file.with_suffix(".client.json")
        subprocess.run(
            [TIERCEL, "bench", "--url", URL, "--workload", workload, "--json", report],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        ctl("record", "stop", file)
        return json.loads(report.read_text())
    finally:
        server.terminate()
        server.wait()


def replay(recording, report):
    """Replays a recording under both policies, once for each seed. Returns the last report, and
    the predicted percentiles of the TTFT by policy and tier: each the mean over the seeds."""
    found = {policy: {} for policy in POLICIES}
    for seed in SEEDS:
        words = ["simulate", recording, "--policy", ",".join(POLICIES), "--seed", str(seed), "--json", report]
        subprocess.run([TIERCEL, *words], check=True, stdout=subprocess.DEVNULL)
        answer = json.loads(report.read_text())
        for one in answer["replays"]:
            for tier, outcome in by_tier(one["outcome"]).items():
                found[one["policy"]].setdefault(tier, []).append(outcome["ttft_ms"])
    mean = lambda samples: {q: statistics.mean(sample[q] for sample in samples) for q in QUANTILES}
    return answer, {policy: {tier: mean(samples) for tier, samples in of.items()} for policy, of in found.items()}


def measured_in(recording, report):
    """Returns the measured outcome that a recording holds."""
    words = ["simulate", recording, "--policy", POLICIES[0], "--json", report]
    subprocess.run([TIERCEL, *words], check=True, stdout=subprocess.DEVNULL)
    return json.loads(report.read_text())["measured"]


def at_speed_of(recording, other, file):
    """Writes a recording with the profile of another recording, for a machine that was faster or slower in the other
    run."""
    head, rows = recording.read_text().split("\n", 1)
    with other.open() as lines:
        profile = json.loads(lines.readline())["profile"]
    header = json.loads(head) | {"profile": profile}
    file.write_text(json.dumps(header, separators=(",", ":")) + "\n" + rows)


def by_tier(outcome):
    return {tier["tier"]: tier for tier in outcome["tiers"]}


def rows(policy, predicted, at_speed, measured, again, clients):
    """Returns the lines of the table about one policy, and whether all judged percentiles of every tier fit."""
    lines, good = [], True
    measured, again, clients = by_tier(measured), by_tier(again), by_tier(clients)
    for tier in TIERS:
        if tier not in measured:
            continue
        for q in QUANTILES:
            real, found = measured[tier]["ttft_ms"][q], predicted[tier][q]
            error, rerun = found / real - 1, again[tier]["ttft_ms"][q] / real - 1
            judged = q != "p99" or measured[tier]["requests"] >= LEAST_FOR_P99
            fits = abs(error) <= max(ALLOWED[policy], abs(rerun) if q == "p99" else 0)
            good &= fits or not judged
            mark = ("yes" if fits else "no") if judged else ""
            client = clients[tier]["ttft_ms"][q]
            same_speed = at_speed[tier][q]
            lines.append(
                f"| `{policy}` | {tier} | {measured[tier]['requests']} | {q} | {client:.0f} | {real:.0f} | {found:.0f} "
                f"| {100 * error:+.1f} | {mark} | {100 * rerun:+.1f} | {100 * (same_speed / real - 1):+.1f} |"
            )
    return lines, good


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--load", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=31)
    parser.add_argument("--keep", type=pathlib.Path, help="folder for the recordings and the reports")
    parser.add_argument("--once", action="store_true", help="leave out the repeated runs: 12 minutes instead of 25")
    parser.add_argument("--replay-only", action="store_true", help="use the recordings in the folder")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.keep or pathlib.Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        rate = RATE_PER_S * options.load
        text = WORKLOAD.format(
            seed=options.seed, seconds=60 * options.minutes, premium=rate, standard=rate, background=rate
        )
        (folder / "workload.toml").write_text(text)
        clients = {}
        for run in POLICIES + [f"{policy}-again" for policy in POLICIES if not options.once]:
            file = folder / f"{run}.jsonl"
            if options.replay_only:
                clients[run] = json.loads(file.with_suffix(".client.json").read_text())
            else:
                clients[run] = record(run.removesuffix("-again"), folder / "workload.toml", file)
        first, replays = replay(folder / "fcfs.jsonl", folder / "fcfs.report.json")
        second, own = replay(folder / "tiercel.jsonl", folder / "tiercel.report.json")
        at_speed_of(folder / "fcfs.jsonl", folder / "tiercel.jsonl", folder / "mixed.jsonl")
        _, mixed = replay(folder / "mixed.jsonl", folder / "mixed.report.json")
        suffix = "" if options.once else "-again"
        again = {policy: measured_in(folder / f"{policy}{suffix}.jsonl", folder / "again.report.json") for policy in POLICIES}
    measured = {"fcfs": first["measured"], "tiercel": second["measured"]}
    at_speed = {"fcfs": replays["fcfs"], "tiercel": mixed["tiercel"]}
    print(
        "| policy | tier | requests | TTFT | client, ms | measured, ms | predicted, ms | error, % | fits | measured again, % "
        "| error at the run's own speed, % |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    all_good = True
    for policy in POLICIES:
        lines, good = rows(policy, replays[policy], at_speed[policy], measured[policy], again[policy], clients[policy])
        all_good &= good
        print("\n".join(lines))
    for tier, predicted in own["tiercel"].items():
        real = by_tier(measured["tiercel"])[tier]["ttft_ms"]
        errors = ", ".join(f"{q} {100 * (predicted[q] / real[q] - 1):+.1f} %" for q in QUANTILES)
        print(f"errors of a replay of the second recording under its own settings, {tier}: {errors}")
    for note in first["recording"]["notes"]:
        print(f"note: {note}")
    return 0 if all_good else 1


if __name__ == "__main__":
    sys.exit(main())
