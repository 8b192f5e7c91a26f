#!/usr/bin/env python3
"""Calibrates the simulator on the real server and compares the latencies that clients measured with the simulated ones.

    cargo build --release && python3 benches/calibration.py [--policy P] [--seconds N] [--runs N] [--out DIR] [STEP...]

Without STEP, all steps run in this order: `calibrate` measures a server and writes the profile DIR/P.toml; `LOAD` (a
workload of benches/workloads) runs --runs times, each time against a fresh server; `compare` simulates the same loads
with that profile and prints a table. Nothing else should run on the machine meanwhile. Needs nothing beyond Python
3."""

import argparse
import json
import pathlib
import re
import subprocess
import sys
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
TIERCEL = ROOT / "target/release/tiercel"
URL = "http://127.0.0.1:8089"
LOADS = ["cpu-overload", "streams-16"]
SETTINGS = ["--set", "prefix_cache.enabled=false"]
QUANTILES = ["p50", "p90", "p99"]


def serve(policy):
    words = [TIERCEL, "serve", "--listen", URL.removeprefix("http://"), "--policy", policy, *SETTINGS]
    server = subprocess.Popen(words, stderr=subprocess.DEVNULL)
    for _ in range(600):
        if server.poll() is not None:
            sys.exit(f"the server ended with {server.returncode}")
        try:
            with urllib.request.urlopen(f"{URL}/health", timeout=1) as answer:
                if answer.status == 200:
                    return server
        except OSError:
            time.sleep(0.1)
    sys.exit("the server is not ready after a minute")


def with_server(policy, *words):
    server = serve(policy)
    try:
        subprocess.run([TIERCEL, "bench", "--url", URL, *words], check=True)
    finally:
        server.terminate()
        server.wait()


def workload(arguments, load):
    """Writes a copy of the workload file, with the duration that --seconds asks for, and returns its path."""
    text = (ROOT / f"benches/workloads/{load}.toml").read_text()
    if arguments.seconds:
        text = re.sub(r"duration_s = \d+", f"duration_s = {arguments.seconds}", text)
    path = arguments.out / f"{load}.toml"
    path.write_text(text)
    return path


def simulated(arguments, load):
    """Simulates the load on the calibrated device and returns the outcome. The workload's seed makes the same
    requests."""
    out = arguments.out / f"{load}-{arguments.policy}-simulated.json"
    words = ["simulate", "--workload", workload(arguments, load), "--profile", arguments.out / f"{arguments.policy}.toml"]
    words += ["--policy", arguments.policy, *SETTINGS, "--json", out]
    subprocess.run([TIERCEL, *words], check=True, stdout=subprocess.DEVNULL)
    return json.loads(out.read_text())["policies"][0]["runs"][0]


def tiers(report):
    return {tier["tier"]: tier for tier in [*report["tiers"], report["total"]]}


def row(load, name, what, real, made):
    """Returns a table row that compares real runs with the simulated one: means, difference, and spread of the real
    runs."""
    real = [value for value in real if value is not None]
    if not real or made is None:
        return None
    mean = sum(real) / len(real)
    off = 100 * (made / mean - 1)
    spread = 100 * (max(real) - min(real)) / mean
    inside = min(real) <= made <= max(real)
    verdict = "yes" if abs(off) <= 10 else "within the spread" if inside else "no"
    ends = f"{min(real):.1f} to {max(real):.1f}"
    return f"| {load} | {name} | {what} | {mean:.1f} | {ends} | {spread:.0f} % | {made:.1f} | {off:+.0f} % | {verdict} |"


def compare(arguments, loads):
    print("| load | tier | | real, mean | least to most | spread | simulated | off | within 10 % |")
    print("|---|---|---|---|---|---|---|---|---|")
    for load in loads:
        files = sorted(arguments.out.glob(f"{load}-{arguments.policy}-[0-9]*.json"))
        real = [tiers(json.loads(file.read_text())) for file in files]
        made = tiers(simulated(arguments, load))
        for name in real[0]:
            def add(what, *path):
                def value(run):
                    found = run.get(name)
                    for key in path:
                        found = found and found[key]
                    return found
                rows.append(row(load, name, what, [value(run) for run in real], value(made)))
            rows = []
            add("tok/s", "output_tokens_per_s")
            if name != "total":
                for metric, label in (("ttft_ms", "TTFT"), ("tpot_ms", "TPOT")):
                    for q in QUANTILES:
                        add(f"{label} {q}, ms", metric, q)
            print("\n".join(found for found in rows if found))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", default="tiercel")
    parser.add_argument("--seconds", type=int)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "target/calibration")
    parser.add_argument("steps", nargs="*", default=["calibrate", *LOADS, "compare"])
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    loads = [step for step in arguments.steps if step not in ("calibrate", "compare")]
    if "calibrate" in arguments.steps:
        with_server(arguments.policy, "--calibrate", arguments.out / f"{arguments.policy}.toml")
    for load in loads:
        for _ in range(arguments.runs):
            done = len(list(arguments.out.glob(f"{load}-{arguments.policy}-[0-9]*.json")))
            out = arguments.out / f"{load}-{arguments.policy}-{done + 1}.json"
            with_server(arguments.policy, "--workload", workload(arguments, load), "--json", out)
    if "compare" in arguments.steps:
        compare(arguments, loads or LOADS)


if __name__ == "__main__":
    main()
