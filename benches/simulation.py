#!/usr/bin/env python3
"""Runs every simulation that docs/simulation.md reports and writes its tables anew.

    cargo build --release && python3 benches/simulation.py [--quick] [SECTION...]

Needs nothing beyond Python 3. Sections are those of the page, such as `overload`; without any, all are written. `--quick` runs three minutes of everything, to try the script: what it writes is
no result. Runs are spread over the cores; equal programs write equal tables, whatever the machine."""

import concurrent.futures
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/simulation.md"
TIERCEL = ROOT / "target/release/tiercel"
QUICK = "--quick" in sys.argv
POLICIES = "benches/policies"
# Seeds that nothing was tuned on.
SEEDS = "21..22" if QUICK else "21..24"
AGREES = 0.15


def share(part, whole):
    return 100.0 * part / whole if whole else 0.0


class Runs:
    """Runs of one workload under several policies: the command, and what came of it."""

    def __init__(self, workload, policies, *options, seeds=SEEDS, duration=900, changes=None):
        self.workload, self.policies, self.changes = workload, policies, changes or {}
        duration = min(duration, 180) if QUICK else duration
        self.options = ["--duration", str(duration), *options]
        if seeds:
            self.options += ["--seeds", seeds]

    def command(self):
        words = ["tiercel simulate --workload", f"benches/workloads/{self.workload}.toml"]
        return " ".join(words + ["--policy", ",".join(self.policies), *self.options])

    def run(self):
        with tempfile.TemporaryDirectory() as folder:
            workload = ROOT / f"benches/workloads/{self.workload}.toml"
            if self.changes:
                text = workload.read_text()
                for pattern, replacement in self.changes.items():
                    text, count = re.subn(pattern, replacement, text)
                    assert count, f"{workload}: nothing matches {pattern}"
                workload = pathlib.Path(folder) / workload.name
                workload.write_text(text)
            out = pathlib.Path(folder) / "out.json"
            words = [TIERCEL, "simulate", "--workload", workload, "--json", out]
            words += ["--policy", ",".join(self.policies), *self.options]
            done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
            if done.returncode:
                sys.exit(f"{self.command()}: {done.stderr}")
            self.text = done.stdout
            self.result = json.loads(out.read_text())
        print(self.command(), file=sys.stderr)
        return self

    def mean(self, policy, value):
        values = [value(run) for run in self.runs(policy)]
        return sum(values) / len(values)

    def work(self):
        """About how long it takes, to begin with the longest."""
        return len(self.policies) * float(self.options[1]) * (float(self.options[self.options.index("--load") + 1]) if "--load" in self.options else 1)

    def worst(self, policy, value):
        return min(value(run) for run in self.runs(policy))

    def runs(self, policy):
        name = pathlib.Path(policy).stem if policy.endswith(".toml") else policy
        return next(p["runs"] for p in self.result["policies"] if p["policy"] == name)

    def table(self):
        return f"    {self.command()}\n\n" + "".join(f"    {line}".rstrip() + "\n" for line in self.text.splitlines())


def tier(name, *path):
    def value(run):
        found = next(t for t in run["tiers"] if t["tier"] == name) if name != "total" else run["total"]
        for key in path:
            found = found[key]
        return found
    return value


def compliant(name):
    def value(run):
        met = tier(name, "compliance")(run)
        return 100.0 * met["all_met"] / met["requests"]
    return value


def met(name, target):
    def value(run):
        compliance = tier(name, "compliance")(run)
        return share(compliance[target], compliance["requests"])
    return value


def refused(name, key="refused"):
    return lambda run: share(tier(name, key)(run), tier(name, "requests")(run))


def of_run(key):
    return lambda run: run[key]


def of_class(index, *path):
    def value(run):
        found = run["classes"][index]
        for key in path:
            found = found[key]
        return found
    return value


def tokens_per_s(run):
    return run["total"]["output_tokens_per_s"]


def verdict(measured, reference):
    if reference == 0:
        return "yes" if measured < 0.5 else "no"
    off = measured / reference - 1
    return "yes" if abs(off) <= AGREES else f"no, {100 * off:+.0f} %"


def comparison(rows):
    """Rows of (what, measured, reference, digits) as a table with a verdict."""
    lines = ["| | measured | reference | within 15 % |", "|---|---|---|---|"]
    for what, measured, reference, digits in rows:
        lines.append(f"| {what} | {measured:.{digits}f} | {reference:.{digits}f} | {verdict(measured, reference)} |")
    return "\n".join(lines) + "\n"


UP_FRONT = ["--set", "scheduler.allocation=up-front"]
W1 = Runs("w1-mixed", ["fcfs", "priority", "priority+preempt"], *UP_FRONT)
W1_OURS = Runs("w1-mixed", ["fcfs", "tiercel"], "--noise", "0.1")
SWAP, BY_SWAP = f"{POLICIES}/fcfs-swap.toml", f"{POLICIES}/preempt-swap.toml"
W2 = Runs("w2-memory-tight", [SWAP, "priority", BY_SWAP, "vllm-v0", "vllm-v1", "tiercel", "throughput", "latency", "fairness"], "--noise", "0.1")
W4_POLICIES = ["static", "request-level", "orca", "sarathi", f"{POLICIES}/sarathi-256.toml", f"{POLICIES}/sarathi-128.toml", "adaptive"]
# Memory is not what W4 is about, and the reference allocates on demand.
W4 = Runs("w4-chunking", W4_POLICIES, "--profile", "llama70b-h100", "--set", "scheduler.allocation=on-demand", seeds="21..22", duration=600)
BUDGETS = [128, 256, 512, 1024, 2048, 4096]
BUDGET = Runs("w4-chunking", [f"{POLICIES}/budget-{n}.toml" for n in BUDGETS], "--profile", "llama70b-h100", seeds="21..22", duration=600)
STATIC = Runs("static-four", [f"{POLICIES}/static-by-token.toml"], "--set", "scheduler.max_num_batched_tokens=4", seeds=None, duration=60)
# What is promised is shown with six seeds of half an hour.
SIX, HALF_HOUR = "21..27", 1800
FLOORS = {name: Runs(name, ["tiercel"], "--noise", "0.1", seeds=SIX, duration=HALF_HOUR)
          for name in ("w1-mixed", "w2-memory-tight", "surge", "w2b-bursts", "long-prompts")}
# What a policy that turns nobody away and preempts nobody for a tier makes of the same traffic.
PLAIN = {name: Runs(name, [policy], "--noise", "0.1", seeds=SIX, duration=HALF_HOUR)
         for name, policy in (("w1-mixed", "fcfs"), ("w2-memory-tight", SWAP))}
LOADS = [0.5, 0.75, 1, 1.25, 1.5, 2, 3, 4]
OVERLOAD = {load: Runs("w1-mixed", ["tiercel"], "--noise", "0.1", "--load", str(load), seeds=SIX, duration=HALF_HOUR)
            for load in LOADS}
# The most that is possible if the mean step is not longer than premium's target: share of standard requests, tok/s.
FLUID = {1.25: (1.0, 4593), 1.5: (1.0, 4400), 2: (1.0, 4013), 3: (0.69, 3595), 4: (0.43, 3349)}
AFTER_BURST = Runs("overload-burst", ["tiercel"], "--noise", "0.1", seeds=SIX, duration=1500)
WITHIN_BURST = Runs("overload-burst", ["tiercel"], "--noise", "0.1", seeds=SIX, duration=1200,
                    changes={r"warmup_s = 960": "warmup_s = 600", r"cooldown_s = 90": "cooldown_s = 300"})
IN_DRIFT = Runs("w1-mixed", ["tiercel"], "--noise", "0.1", "--drift=300..360", seeds=SIX, duration=450,
                changes={r"warmup_s = 60": "warmup_s = 300"})
AFTER_DRIFT = Runs("w1-mixed", ["tiercel"], "--noise", "0.1", "--drift=300..360", seeds=SIX, duration=900,
                   changes={r"warmup_s = 60": "warmup_s = 480"})
# Two tenants: the greedy one sends as much as the modest one, or ten times that.
EVEN = Runs("tenants", ["tiercel"], "--noise", "0.1", seeds=SIX, duration=900, changes={r"rate_per_s = 80.0": "rate_per_s = 8.0"})
GREEDY = Runs("tenants", ["tiercel"], "--noise", "0.1", seeds=SIX, duration=900)
UNFAIR = Runs("tenants", ["tiercel"], "--noise", "0.1", "--set", "scheduler.fair_tenants=false", seeds=SIX, duration=900)
# Premium and standard alone are 0.95 of what the fluid bound leaves room for (1.0 of it is 2.31 times w1-mixed).
NEARLY_FULL = Runs("w1-mixed", ["tiercel"], "--noise", "0.1", "--load", "2.195", seeds=SIX, duration=HALF_HOUR)
RETURNING = Runs("background-only", ["tiercel"], "--noise", "0.1", "--returning", "1", seeds=SIX, duration=HALF_HOUR)
ALL_RETURNING = Runs("background-only", ["tiercel"], "--noise", "0.1", "--returning", "100", seeds=SIX, duration=HALF_HOUR)
LIMIT = ["--set", "preemption.max_per_request=2", "--set"]
MIRROR = ["--set", "preemption.mirror_percent=20"]
KEPT = ["--set", "reservation.premium_blocks_percent=30", "--set", "reservation.premium_slots_percent=30", "--set"]
VARIANTS = {
    "default": [],
    "at most 2 preemptions, then promoted": [*LIMIT, "preemption.at_limit=promote"],
    "at most 2 preemptions, then dropped": [*LIMIT, "preemption.at_limit=drop"],
    "mirroring, 20 % of the link": MIRROR,
    "30 % kept for premium, hard": [*KEPT, "reservation.kind=hard"],
    "30 % kept for premium, lent, mirroring": [*KEPT, "reservation.kind=lent", *MIRROR],
}
VARIED = {(name, workload): Runs(workload, ["tiercel"], "--noise", "0.1", *options, seeds=SIX, duration=900)
          for name, options in VARIANTS.items() for workload in ("w2-memory-tight", "w2b-bursts")}
PREFIX = Runs("prefix", [SWAP, "vllm-v1", "tiercel"], "--noise", "0.1", seeds="21..23")
CACHE_BLIND = f"{POLICIES}/tiercel-cache-blind.toml"
# What is compared there is what becomes of those who are let in, so everybody is.
NOBODY_REFUSED = ["--set", "shedding.late=wait", "--set", "shedding.max_wait_s=0", "--set", "shedding.give_up_s=0"]
PREFIX_TIGHT = Runs("prefix-tight", [CACHE_BLIND, f"{POLICIES}/tiercel-by-rank.toml", "tiercel", f"{POLICIES}/tiercel-as-needed.toml"],
                    "--noise", "0.1", *NOBODY_REFUSED, seeds="21..26")
SIZES = [0.3, 0.5, 0.7, 1.0, 1.5, 3.0]
MODES = [f"{POLICIES}/preempt-swap.toml", f"{POLICIES}/preempt-recompute.toml", "tiercel"]
# Blocks in use under `fcfs` without a limit, means of a run: the working sets.
WORKING_SETS = {"w1-mixed": 3740, "long-prompts": 4500}
SWEEPS = {(mix, size): Runs(mix, MODES, *NOBODY_REFUSED, seeds="21..22", duration=300,
                            changes={r"device_blocks = \d+": f"device_blocks = {int(size * blocks)}"})
          for mix, blocks in WORKING_SETS.items() for size in SIZES}


def w1_section():
    ttft = lambda name, policy: W1.mean(policy, tier(name, "ttft_ms", "p99"))
    rows = []
    for policy, figures in {"fcfs": (2376, 2458, 2482), "priority": (153, 294, 3660), "priority+preempt": (123, 165, 3696)}.items():
        for name, figure in zip(("premium", "standard", "background"), figures):
            rows.append((f"`{policy}`: {name} p99 TTFT, ms", ttft(name, policy), figure, 0))
    for policy, figure in {"fcfs": 4148, "priority": 4148, "priority+preempt": 4148}.items():
        rows.append((f"`{policy}`: tok/s", W1.mean(policy, tokens_per_s), figure, 0))
    for policy, figure in {"fcfs": 72.1, "priority": 82.9, "priority+preempt": 83.2}.items():
        rows.append((f"`{policy}`: premium in target, %", W1.mean(policy, compliant("premium")), figure, 1))
    return W1.table() + "\n" + comparison(rows) + "\n" + W1_OURS.table()


def w2_section():
    rows = []
    figures = {SWAP: (5879, 4147, 143, 0), BY_SWAP: (128, 4146, 144, 0), "vllm-v1": (128, 3965, 192, 12.4), "tiercel": (157, 4143, 15, 0)}
    for policy, (ttft, tokens, preemptions, recomputed) in figures.items():
        name = pathlib.Path(policy).stem if policy.endswith(".toml") else policy
        rows += [
            (f"`{name}`: premium p99 TTFT, ms", W2.mean(policy, tier("premium", "ttft_ms", "p99")), ttft, 0),
            (f"`{name}`: tok/s", W2.mean(policy, tokens_per_s), tokens, 0),
            (f"`{name}`: preemptions a minute", W2.mean(policy, of_run("preemptions_per_min")), preemptions, 0),
            (f"`{name}`: recomputed, %", W2.mean(policy, of_run("recomputed_percent")), recomputed, 2),
        ]
    fairness = "\n".join(
        f"| `{name}` | {W2.mean(name, tokens_per_s):.0f} | {W2.mean(name, tier('premium', 'ttft_ms', 'p99')):.0f} | {W2.mean(name, of_run('fairness')):.4f} |"
        for name in ("throughput", "latency", "fairness"))
    corners = "| corner | tok/s | premium p99 TTFT, ms | Jain's index |\n|---|---|---|---|\n" + fairness + "\n"
    ours, swap = W2.mean("tiercel", tokens_per_s), W2.mean(SWAP, tokens_per_s)
    share = f"`tiercel` makes {100 * ours / swap:.2f} % of the tokens of `fcfs-swap`.\n"
    return W2.table() + "\n" + comparison(rows) + "\n" + share + "\n" + corners


def w4_section():
    reference = {"static": (761, None), "orca": (2683, 365), "sarathi": (2655, 89), "sarathi-256": (2614, 64), "sarathi-128": (2446, 51), "adaptive": (2626, 67)}
    lines = ["| | tok/s | reference | within 15 % | TBT p50, ms | TBT p99, ms | reference | within 15 % | TTFT p50, ms | p99, ms | slots used, % |", "|---|---|---|---|---|---|---|---|---|---|---|"]
    for policy in W4_POLICIES:
        name = pathlib.Path(policy).stem if policy.endswith(".toml") else policy
        tokens, gaps = W4.mean(policy, tokens_per_s), W4.mean(policy, lambda run: run["gaps_ms"]["p99"])
        known = reference.get(name, (None, None))
        cells = [f"{tokens:.0f}", *([f"{known[0]}", verdict(tokens, known[0])] if known[0] else ["-", "-"])]
        cells += [f"{W4.mean(policy, lambda run: run['gaps_ms']['p50']):.0f}", f"{gaps:.0f}"]
        cells += [f"{known[1]}", verdict(gaps, known[1])] if known[1] else ["-", "-"]
        cells += [f"{W4.mean(policy, tier('total', 'ttft_ms', key)):.0f}" for key in ("p50", "p99")]
        cells += [f"{W4.mean(policy, of_run('slots_used_percent')):.0f}"]
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    return f"    {W4.command()}\n\n" + "\n".join(lines) + "\n"


def budget_section():
    lines = ["| prompt tokens a step | tok/s | TBT p50, ms | TBT p99, ms | TTFT p50, ms | TTFT p99, ms |", "|---|---|---|---|---|---|"]
    for n in BUDGETS:
        policy = f"{POLICIES}/budget-{n}.toml"
        gaps = [f"{BUDGET.mean(policy, lambda run, key=key: run['gaps_ms'][key]):.0f}" for key in ("p50", "p99")]
        waits = [f"{BUDGET.mean(policy, tier('total', 'ttft_ms', key)):.0f}" for key in ("p50", "p99")]
        lines.append(f"| {n} | {BUDGET.mean(policy, tokens_per_s):.0f} | " + " | ".join(gaps + waits) + " |")
    return f"    {BUDGET.command()}\n\n" + "\n".join(lines) + "\n"


def window_min(runs):
    workload = runs.result["workload"]
    return (workload["duration_s"] - workload["warmup_s"] - workload["cooldown_s"]) / 60


def pool_section():
    lines = ["| mix | pool, working sets | policy | preemptions per 100 requests | E2E p99 over mean | recomputed, % | tok/s |", "|---|---|---|---|---|---|---|"]
    for (mix, size), runs in SWEEPS.items():
        for policy in MODES:
            name = pathlib.Path(policy).stem if policy.endswith(".toml") else policy
            preempted = runs.mean(policy, lambda run: 100 * run["preemptions_per_min"] * window_min(runs) / run["total"]["requests"])
            tail = runs.mean(policy, lambda run: run["total"]["e2e_ms"]["p99"] / run["total"]["e2e_ms"]["mean"])
            lines.append(f"| {mix} | {size} | `{name}` | {preempted:.1f} | {tail:.1f} | {runs.mean(policy, of_run('recomputed_percent')):.2f} | {runs.mean(policy, tokens_per_s):.0f} |")
    return "\n".join(lines) + "\n"


def static_section():
    used = STATIC.mean(f"{POLICIES}/static-by-token.toml", of_run("slots_used_percent"))
    return f"    {STATIC.command()}\n\n" + comparison([("slots used, %", used, 50.2, 1)])


def costs_section():
    words = ["cargo", "run", "--quiet", "--release", "-p", "tiercel-simulation", "--example", "preemption_costs"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    reference = [(52, 52, 1200), (62, 61, 1800), (214, 210, 2400), (856, 840, 5200), (103, 101, 4500), (3280, 3210, 8000)]
    lines = ["| prompt + output | swap, ms | reference | recompute, ms | reference | drop, ms | reference | within 15 % |", "|---|---|---|---|---|---|---|---|"]
    for row, figures in zip(done.stdout.splitlines()[1:], reference):
        prompt, output, *measured = row.split(",")
        verdicts = ", ".join(verdict(float(m), r) for m, r in zip(measured, figures))
        cells = " | ".join(f"{m} | {r}" for m, r in zip(measured, figures))
        lines.append(f"| {prompt} + {output} | {cells} | {verdicts} |")
    return f"    {' '.join(words)}\n\n" + "\n".join(lines) + "\n"


def prefix_table(runs):
    lines = ["| | copied, % of tokens | recomputed, % | found in the prefix cache, % | preemptions a minute | standard p99 TTFT, ms |",
             "|---|---|---|---|---|---|"]
    for policy in runs.policies:
        name = pathlib.Path(policy).stem if policy.endswith(".toml") else policy
        keys = ("copied_percent", "recomputed_percent", "prefix_hit_percent", "preemptions_per_min")
        cells = [f"{runs.mean(policy, of_run(key)):.2f}" for key in keys]
        cells.append(f"{runs.mean(policy, tier('standard', 'ttft_ms', 'p99')):.0f}")
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    return f"    {runs.command()}\n\n" + "\n".join(lines) + "\n"


def prefix_section():
    moved = lambda policy: sum(PREFIX_TIGHT.mean(policy, of_run(key)) for key in ("copied_percent", "recomputed_percent"))
    saved = 100 * (1 - moved("tiercel") / moved(CACHE_BLIND))
    verdict = f"Copied and recomputed together: {moved(CACHE_BLIND):.2f} % without knowing the cache, {moved('tiercel'):.2f} % knowing it, {saved:.0f} % less.\n"
    return "\n".join([prefix_table(PREFIX), prefix_table(PREFIX_TIGHT), verdict])


def floors(rows):
    """Rows of (what, measured, floor, digits, higher is better) with a verdict."""
    lines = ["| | measured | floor | met |", "|---|---|---|---|"]
    for what, measured, floor, digits, higher in rows:
        met = measured >= floor if higher else measured <= floor
        sign = "at least" if higher else "at most"
        lines.append(f"| {what} | {measured:.{digits}f} | {sign} {floor:g} | {'yes' if met else 'no'} |")
    return "\n".join(lines) + "\n"


def promises_section():
    w1, w2, surge, bursts, long = FLOORS.values()
    ours = lambda runs, value: runs.mean("tiercel", value)
    tokens = lambda name, plain: share(ours(FLOORS[name], tokens_per_s), PLAIN[name].mean(plain, tokens_per_s))
    all_done = ours(w1, lambda run: share(tier("background", "completed")(run), tier("background", "requests")(run)))
    rows = [
        ("w1-mixed: premium in target, %", ours(w1, compliant("premium")), 99.95, 2, True),
        ("w1-mixed: premium p99 TTFT, ms", ours(w1, tier("premium", "ttft_ms", "p99")), 165, 0, False),
        ("w1-mixed: standard in target, %", ours(w1, compliant("standard")), 99.9, 2, True),
        ("w1-mixed: background p99 TTFT, ms", ours(w1, tier("background", "ttft_ms", "p99")), 5000, 0, False),
        ("w1-mixed: background done, %", all_done, 100, 2, True),
        ("w1-mixed: tok/s, % of `fcfs`", tokens("w1-mixed", "fcfs"), 99.5, 2, True),
        ("w2-memory-tight: premium in target, %", ours(w2, compliant("premium")), 99.95, 2, True),
        ("w2-memory-tight: premium p99 TTFT, ms", ours(w2, tier("premium", "ttft_ms", "p99")), 165, 0, False),
        ("w2-memory-tight: standard in target, %", ours(w2, compliant("standard")), 99.9, 2, True),
        ("w2-memory-tight: preemptions a minute", ours(w2, of_run("preemptions_per_min")), 20, 1, False),
        ("w2-memory-tight: tok/s, % of `fcfs-swap`", tokens("w2-memory-tight", SWAP), 99.5, 2, True),
        ("surge: premium TTFT in target, %", ours(surge, met("premium", "ttft_met")), 99.9, 2, True),
        ("surge: premium in all targets, %", ours(surge, compliant("premium")), 99.4, 2, True),
        ("w2b-bursts: premium in target, %", ours(bursts, compliant("premium")), 99.9, 2, True),
        ("w2b-bursts: standard in target, %", ours(bursts, compliant("standard")), 99, 2, True),
        ("long-prompts: premium in target, %", ours(long, compliant("premium")), 99.5, 2, True),
    ]
    document = [("premium p99 TTFT, ms", ours(w1, tier("premium", "ttft_ms", "p99")), 185, 0, False),
                ("standard p99 TTFT, ms", ours(w1, tier("standard", "ttft_ms", "p99")), 480, 0, False),
                ("background p99 TTFT, ms", ours(w1, tier("background", "ttft_ms", "p99")), 18000, 0, False),
                ("premium in target, %", ours(w1, compliant("premium")), 99.9, 2, True),
                ("standard in target, %", ours(w1, compliant("standard")), 97.2, 2, True),
                ("tok/s", ours(w1, tokens_per_s), 3900, 0, True)]
    parts = [floors(rows), "Against the last column of the first source document's table:\n", floors(document)]
    return "\n".join(parts + [runs.table() for runs in FLOORS.values()])


def overload_section():
    lines = ["| load | premium in target, % | worst seed | standard in target, % | worst seed | of the fluid bound, % | premium p99 TTFT, ms | standard refused, % | of these let in first, % | background refused, % | tok/s | of the fluid bound, % |",
             "|---|---|---|---|---|---|---|---|---|---|---|---|"]
    for load, runs in OVERLOAD.items():
        mean = lambda value: runs.mean("tiercel", value)
        tokens, standard = mean(tokens_per_s), mean(compliant("standard"))
        bound = FLUID.get(load)
        late = mean(lambda run: share(tier("standard", "turned_away")(run), tier("standard", "refused")(run)))
        cells = [f"{mean(compliant('premium')):.2f}", f"{runs.worst('tiercel', compliant('premium')):.2f}",
                 f"{standard:.2f}", f"{runs.worst('tiercel', compliant('standard')):.2f}",
                 f"{standard / bound[0]:.1f}" if bound else "-",
                 f"{mean(tier('premium', 'ttft_ms', 'p99')):.0f}", f"{mean(refused('standard')):.1f}", f"{late:.1f}",
                 f"{mean(refused('background')):.1f}", f"{tokens:.0f}", f"{share(tokens, bound[1]):.1f}" if bound else "-"]
        lines.append(f"| {load} | " + " | ".join(cells) + " |")
    at = lambda load, value: OVERLOAD[load].mean("tiercel", value)
    rows = [("premium at 2, %", at(2, compliant("premium")), 99.9, 2, True), ("premium at 4, %", at(4, compliant("premium")), 99.5, 2, True),
            ("standard at 1.5, %", at(1.5, compliant("standard")), 98.5, 2, True), ("standard at 2, %", at(2, compliant("standard")), 93, 2, True),
            ("standard at 3, % of the fluid bound", at(3, compliant("standard")) / 0.69, 80, 1, True),
            ("standard at 4, % of the fluid bound", at(4, compliant("standard")) / 0.43, 75, 1, True)]
    rows += [(f"tok/s at {load}, % of the fluid bound", share(at(load, tokens_per_s), FLUID[load][1]), 95, 1, True) for load in (1.25, 1.5, 2)]
    return f"    {OVERLOAD[4].command()}\n\n" + "\n".join(lines) + "\n\n" + floors(rows)


def recovery_section():
    ours = lambda runs, value: runs.mean("tiercel", value)
    left = sum(tier("total", "unfinished")(run) for run in WITHIN_BURST.runs("tiercel"))
    rows = [("a minute after the burst: premium in target, %", ours(AFTER_BURST, compliant("premium")), 99.95, 2, True),
            ("the same: premium p99 TTFT, ms", ours(AFTER_BURST, tier("premium", "ttft_ms", "p99")), 165, 0, False),
            ("the same: standard in target, %", ours(AFTER_BURST, compliant("standard")), 99.9, 2, True),
            ("requests of the burst neither served nor refused 300 s after it", left, 0, 0, False),
            ("during the drift: premium in target, %", ours(IN_DRIFT, compliant("premium")), 99, 2, True),
            ("from 120 s after it: premium in target, %", ours(AFTER_DRIFT, compliant("premium")), 99.95, 2, True),
            ("the same: premium p99 TTFT, ms", ours(AFTER_DRIFT, tier("premium", "ttft_ms", "p99")), 165, 0, False),
            ("the same: standard in target, %", ours(AFTER_DRIFT, compliant("standard")), 99.9, 2, True)]
    return "\n".join([floors(rows)] + [runs.table() for runs in (AFTER_BURST, WITHIN_BURST, IN_DRIFT, AFTER_DRIFT)])


def fairness_section():
    modest = lambda runs, *path: runs.mean("tiercel", of_class(0, *path))
    lines = ["| greedy tenant sends | turns | modest: TTFT p50, ms | p99 | refused, % | tok/s | greedy: TTFT p50, ms | p99 | refused, % | tok/s |",
             "|---|---|---|---|---|---|---|---|---|---|"]
    for what, turns, runs in (("the same", "yes", EVEN), ("ten times as much", "yes", GREEDY), ("ten times as much", "no", UNFAIR)):
        cells = []
        for index in (0, 1):
            of = lambda *path: runs.mean("tiercel", of_class(index, *path))
            away = runs.mean("tiercel", lambda run: share(of_class(index, "refused")(run), of_class(index, "requests")(run)))
            cells += [f"{of('ttft_ms', 'p50'):.0f}", f"{of('ttft_ms', 'p99'):.0f}", f"{away:.1f}", f"{of('output_tokens_per_s'):.0f}"]
        lines.append(f"| {what} | {turns} | " + " | ".join(cells) + " |")
    against = lambda q: share(modest(GREEDY, "ttft_ms", q), modest(EVEN, "ttft_ms", q)) - 100.0
    started = NEARLY_FULL.runs("tiercel")
    longest_s = max(tier("background", "ttft_ms", "max")(run) for run in started) / 1000.0
    rows = [("modest tenant's p50 TTFT, % more than if the other sends its share", against("p50"), 10, 1, False),
            ("the same of its p99", against("p99"), 10, 1, False),
            ("longest wait for a start of a background request that was let in, s (premium and standard at 0.95)", longest_s, 120, 0, False)]
    commands = "\n".join(f"    {runs.command()}" for runs in (GREEDY, UNFAIR, NEARLY_FULL))
    return f"{commands}\n\n" + "\n".join(lines) + "\n\n" + floors(rows) + "\n" + NEARLY_FULL.table()


def refusals_section():
    runs = RETURNING.runs("tiercel")
    returned, readmitted = (sum(run[key] for run in runs) for key in ("returned", "readmitted"))
    away = RETURNING.mean("tiercel", refused("background"))
    every = ALL_RETURNING.runs("tiercel")
    kept = share(sum(run["readmitted"] for run in every), sum(run["returned"] for run in every))
    rows = [("of those who came back served, %", share(readmitted, returned), 95, 1, True)]
    return (f"    {RETURNING.command()}\n    {ALL_RETURNING.command()}\n\n{away:.1f} % were refused; {returned} of them came back. "
            f"If all of them come back, {kept:.1f} % are served.\n\n" + floors(rows))


def limits_section():
    lines = ["| workload | variant | premium in target, % | p99 TTFT, ms | standard in target, % | background p99 E2E, s | background not done, % | tok/s | preemptions a minute | recomputed, % | copied, % |",
             "|---|---|---|---|---|---|---|---|---|---|---|"]
    for (name, workload), runs in sorted(VARIED.items(), key=lambda item: item[0][1]):
        mean = lambda value: runs.mean("tiercel", value)
        undone = mean(lambda run: 100.0 - share(tier("background", "completed")(run), tier("background", "requests")(run)))
        cells = [f"{mean(compliant('premium')):.2f}", f"{mean(tier('premium', 'ttft_ms', 'p99')):.0f}",
                 f"{mean(compliant('standard')):.2f}", f"{mean(tier('background', 'e2e_ms', 'p99')) / 1000:.1f}", f"{undone:.1f}",
                 f"{mean(tokens_per_s):.0f}", f"{mean(of_run('preemptions_per_min')):.1f}",
                 f"{mean(of_run('recomputed_percent')):.2f}", f"{mean(of_run('copied_percent')):.2f}"]
        lines.append(f"| {workload} | {name} | " + " | ".join(cells) + " |")
    return f"    {VARIED['30 % kept for premium, hard', 'w2b-bursts'].command()}\n\n" + "\n".join(lines) + "\n"


SECTIONS = {
    "w1": ([W1, W1_OURS], w1_section),
    "w2": ([W2], w2_section),
    "w4": ([W4], w4_section),
    "budget": ([BUDGET], budget_section),
    "pool": (list(SWEEPS.values()), pool_section),
    "static": ([STATIC], static_section),
    "costs": ([], costs_section),
    "prefix": ([PREFIX, PREFIX_TIGHT], prefix_section),
    "promises": ([*FLOORS.values(), *PLAIN.values()], promises_section),
    "overload": (list(OVERLOAD.values()), overload_section),
    "fairness": ([EVEN, GREEDY, UNFAIR, NEARLY_FULL], fairness_section),
    "limits": (list(VARIED.values()), limits_section),
    "refusals": ([RETURNING, ALL_RETURNING], refusals_section),
    "recovery": ([AFTER_BURST, WITHIN_BURST, IN_DRIFT, AFTER_DRIFT], recovery_section),
}


def main():
    page = PAGE.read_text()
    names = [word for word in sys.argv[1:] if not word.startswith("-")] or list(SECTIONS)
    for unknown in set(names) - set(SECTIONS):
        sys.exit(f"{unknown} is no section; there are {', '.join(SECTIONS)}")
    everything = [runs for name in names for runs in SECTIONS[name][0]]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        # The longest first, so that none is left to run alone.
        list(pool.map(Runs.run, sorted(everything, key=lambda runs: -runs.work())))
    for name in names:
        section = SECTIONS[name][1]
        begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
        start, stop = page.index(begin) + len(begin), page.index(end)
        page = page[:start] + "\n" + section() + "\n" + page[stop:]
    PAGE.write_text(page)


if __name__ == "__main__":
    main()
