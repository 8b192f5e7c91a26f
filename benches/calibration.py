#!/usr/bin/env python3
"""Calibrates the simulator on the real server and compares the latencies that clients measured with the simulated ones.

    cargo build --release
    python3 benches/calibration.py [--policy P] [--seconds N] [--runs N] [--out DIR] [--like LOAD] [STEP...]

All steps of this list run in its order, or only the steps that STEP names:

calibrate  measures a server and writes the profile DIR/P.toml: under a built-in load, or with --like LOAD under 120 s
           of that workload with another seed. A profile predicts best what is like the load that it was made with.
LOAD       runs a workload of benches/workloads --runs times, each time against a fresh server without stated targets.
           Each run writes the report DIR/LOAD-P-N.json, and the latency targets that the run's server derived from its
           speed to DIR/LOAD-P-N-targets.json.
compare    simulates each run of each load with the profile and with the targets of the run's server, and prints a table.
           If a profile of the run's own steps lies beside its report (from `benches/overload.py --keep DIR`), the run is
           simulated with that profile.

Derived targets differ from server to server, because the speed that a shared machine measures at a server's start
differs by a fifth and more. Nothing else should run on the machine during these steps. The script needs nothing beyond
Python 3."""

import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
TIERCEL = ROOT / "target/release/tiercel"
URL = "http://127.0.0.1:8089"
LOADS = ["cpu-overload", "streams-16"]
SETTINGS = ["--set", "prefix_cache.enabled=false"]
QUANTILES = ["p50", "p90", "p99"]
# Duration, seconds, and seed of the workload of a calibration with --like. The seed differs from the seeds of the
# workloads, so that a profile is not made from the very requests that it shall predict.
LIKE_SECONDS, LIKE_SEED = 120, 1001


# The lines of a server's log that tell its derived targets.
FIRST = re.compile(
    r"targets of (\w+): first token within ([\d.]+) ms for a prompt of (\d+) tokens "
    r"\(([\d.]+) ms less for each token fewer, ([\d.]+) ms more for each further token\), "
    r"([\d.]+) ms per output token, last token within ([\d.]+) ms"
)
WHOLE = re.compile(r"targets of (\w+): last token within ([\d.]+) ms")
NAMES = ["ttft_ms", "ttft_prompt_tokens", "ttft_ms_per_token_fewer", "ttft_ms_per_token", "tpot_ms", "e2e_ms"]


def targets_in(log):
    """Returns the targets that a server has derived and written to its log: by tier a number for each name of a
    setting."""
    told = {tier: dict(zip(NAMES, values)) for tier, *values in FIRST.findall(log)}
    told |= {tier: {"e2e_ms": value} for tier, value in WHOLE.findall(log)}
    if len(told) != 3:
        lines = [line for line in log.splitlines() if "targets of" in line]
        sys.exit("\n".join(["these lines of the server's log do not tell the targets of three tiers:", *lines]))
    return told


def reports_of(folder, load, policy):
    """Returns the paths of the reports of a load; files of simulations and of targets are left out."""
    paths = folder.glob(f"{load}-{policy}-*.json")
    return sorted(path for path in paths if path.stem.rsplit("-", 1)[1].isdigit())


def targets_of(report):
    """Returns the path of the file with the targets of the server of a run."""
    return report.with_name(f"{report.stem}-targets.json")


def profile_of(report):
    """Returns the path of the file with the profile of the run's own steps."""
    return report.with_name(f"{report.stem}-profile.toml")


def keep_targets(report, log):
    """Writes the targets in the log of a server beside the report of a run against this server."""
    targets_of(report).write_text(json.dumps(targets_in(log), indent=1))


def serve(policy, log):
    words = [TIERCEL, "serve", "--listen", URL.removeprefix("http://"), "--policy", policy, *SETTINGS]
    server = subprocess.Popen(words, stderr=log)
    for _ in range(600):
        if server.poll() is not None:
            log.seek(0)
            sys.exit(f"{log.read()}\nthe server ended with {server.returncode}")
        try:
            with urllib.request.urlopen(f"{URL}/health", timeout=1) as answer:
                if answer.status == 200:
                    return server
        except OSError:
            time.sleep(0.1)
    server.terminate()
    sys.exit("the server is not ready after a minute")


def with_server(policy, *of_bench):
    """Runs `tiercel bench` against a fresh server and returns the server's log."""
    with tempfile.TemporaryFile("w+") as log:
        server = serve(policy, log)
        try:
            subprocess.run([TIERCEL, "bench", "--url", URL, *of_bench], check=True)
        finally:
            server.terminate()
            server.wait()
        log.seek(0)
        return log.read()


def calibrate(arguments):
    words = ["--calibrate", arguments.out / f"{arguments.policy}.toml"]
    if arguments.like:
        path = workload(arguments.out, arguments.like, LIKE_SECONDS, "-calibration")
        path.write_text(re.sub(r"^seed = \d+", f"seed = {LIKE_SEED}", path.read_text(), flags=re.MULTILINE))
        words += ["--workload", path]
    with_server(arguments.policy, *words)


def workload(folder, load, seconds, suffix="", targets=None):
    """Writes a copy of the workload file into the folder, with another duration if `seconds` is a number and with
    targets for each class, and returns its path."""
    text = (ROOT / f"benches/workloads/{load}.toml").read_text()
    if seconds:
        text = re.sub(r"duration_s = \d+", f"duration_s = {seconds}", text)
    for tier, values in (targets or {}).items():
        stated = ", ".join(f"{name} = {value}" for name, value in values.items())
        text = re.sub(rf'^tier = "{tier}"$', f'tier = "{tier}"\ntargets = {{ {stated} }}', text, flags=re.MULTILINE)
    path = folder / f"{load}{suffix}.toml"
    path.write_text(text)
    return path


def simulated(arguments, load, report):
    """Simulates a run on the calibrated device and returns the outcome. The workload's seed makes the same requests. The
    profile of the run's own steps, if there is one, replaces the calibration's, and the simulated server derives its
    targets from the speeds that the run's server measured at its start, as that server did, and again while it serves.
    Otherwise the simulation has the targets of the run's server at its start."""
    own = profile_of(report)
    if not (own.exists() or targets_of(report).exists()):
        sys.exit(f"{report} has no targets beside it ({targets_of(report).name}): remove it")
    targets = None if own.exists() else json.loads(targets_of(report).read_text())
    out = report.with_name(f"{report.stem}-simulated.json")
    path = workload(arguments.out, load, arguments.seconds, "-simulated", targets)
    profile = own if own.exists() else arguments.out / f"{arguments.policy}.toml"
    words = ["simulate", "--workload", path, "--profile", profile]
    words += ["--policy", arguments.policy, *SETTINGS, "--json", out]
    subprocess.run([TIERCEL, *words], check=True, stdout=subprocess.DEVNULL)
    return json.loads(out.read_text())["policies"][0]["runs"][0]


def tiers(report):
    return {tier["tier"]: tier for tier in [*report["tiers"], report["total"]]}


def row(load, name, what, real, made):
    """Returns a table row that compares real runs with their simulations: means, difference, and spread of the real
    runs."""
    pairs = [pair for pair in zip(real, made) if None not in pair]
    if not pairs:
        return None
    real, made = zip(*pairs)
    mean, made = sum(real) / len(real), sum(made) / len(made)
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
        reports = reports_of(arguments.out, load, arguments.policy)
        if not reports:
            sys.exit(f"{arguments.out} has no run of {load} under {arguments.policy} to compare; name other loads, with --runs 0 "
                     "to compare runs that are already there")
        real = [tiers(json.loads(report.read_text())) for report in reports]
        made = [tiers(simulated(arguments, load, report)) for report in reports]
        for name in real[0]:
            def add(what, *path):
                def value(run):
                    found = run.get(name)
                    for key in path:
                        found = found and found[key]
                    return found
                rows.append(row(load, name, what, [value(run) for run in real], [value(run) for run in made]))
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
    parser.add_argument("--like", metavar="LOAD")
    parser.add_argument("steps", nargs="*", default=["calibrate", *LOADS, "compare"])
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    loads = [step for step in arguments.steps if step not in ("calibrate", "compare")]
    if "calibrate" in arguments.steps:
        calibrate(arguments)
    for load in loads:
        for _ in range(arguments.runs):
            out = arguments.out / f"{load}-{arguments.policy}-{len(reports_of(arguments.out, load, arguments.policy)) + 1}.json"
            log = with_server(arguments.policy, "--workload", workload(arguments.out, load, arguments.seconds), "--json", out)
            keep_targets(out, log)
    if "compare" in arguments.steps:
        compare(arguments, loads or LOADS)


if __name__ == "__main__":
    main()
