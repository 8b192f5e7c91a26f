"""Tables that compare measured figures with the reference figures of the workloads page."""

import pathlib
import subprocess

from tables.runs import POLICIES, ROOT, SWAP, Runs, compliant, of_run, tier, tokens_per_s

AGREES = 0.15
UP_FRONT = ["--set", "scheduler.allocation=up-front"]
W1 = Runs("w1-mixed", ["fcfs", "priority", "priority+preempt"], *UP_FRONT)
W1_OURS = Runs("w1-mixed", ["fcfs", "tiercel"], "--noise", "0.1")
BY_SWAP = f"{POLICIES}/preempt-swap.toml"
W2 = Runs("w2-memory-tight", [SWAP, "priority", BY_SWAP, "vllm-v0", "vllm-v1", "tiercel", "throughput", "latency", "fairness"], "--noise", "0.1")
W4_POLICIES = ["static", "request-level", "orca", "sarathi", f"{POLICIES}/sarathi-256.toml", f"{POLICIES}/sarathi-128.toml", "adaptive"]
# Memory does not matter for workload W4, and the reference allocates blocks on demand.
W4 = Runs("w4-chunking", W4_POLICIES, "--profile", "llama70b-h100", "--set", "scheduler.allocation=on-demand", seeds="21..22", duration=600)
BUDGETS = [128, 256, 512, 1024, 2048, 4096]
BUDGET = Runs("w4-chunking", [f"{POLICIES}/budget-{n}.toml" for n in BUDGETS], "--profile", "llama70b-h100", seeds="21..22", duration=600)
STATIC = Runs("static-four", [f"{POLICIES}/static-by-token.toml"], "--set", "scheduler.max_num_batched_tokens=4", seeds=None, duration=60)
PREFIX = Runs("prefix", [SWAP, "vllm-v1", "tiercel"], "--noise", "0.1", seeds="21..23")
CACHE_BLIND = f"{POLICIES}/tiercel-cache-blind.toml"
# Settings under which no request is refused or turned away. The runs compare preemptions of accepted requests, so every
# request is accepted.
NOBODY_REFUSED = ["--set", "shedding.late=wait", "--set", "patience.standard_s=0", "--set", "patience.background_s=0"]
PREFIX_TIGHT = Runs("prefix-tight", [CACHE_BLIND, f"{POLICIES}/tiercel-by-rank.toml", "tiercel", f"{POLICIES}/tiercel-as-needed.toml"],
                    "--noise", "0.1", *NOBODY_REFUSED, seeds="21..26")
SIZES = [0.3, 0.5, 0.7, 1.0, 1.5, 3.0]
MODES = [f"{POLICIES}/preempt-swap.toml", f"{POLICIES}/preempt-recompute.toml", "tiercel"]
# Working set of each workload: mean number of blocks in use under `fcfs` without a limit of memory.
WORKING_SETS = {"w1-mixed": 3740, "long-prompts": 4500}
SWEEPS = {(mix, size): Runs(mix, MODES, *NOBODY_REFUSED, seeds="21..22", duration=300,
                            changes={r"device_blocks = \d+": f"device_blocks = {int(size * blocks)}"})
          for mix, blocks in WORKING_SETS.items() for size in SIZES}


def verdict(measured, reference):
    if reference == 0:
        return "yes" if measured < 0.5 else "no"
    off = measured / reference - 1
    return "yes" if abs(off) <= AGREES else f"no, {100 * off:+.0f} %"


def comparison(rows):
    """Makes a table with a verdict from rows of (what, measured, reference, digits)."""
    lines = ["| | simulated | reference | within 15 % |", "|---|---|---|---|"]
    for what, measured, reference, digits in rows:
        lines.append(f"| {what} | {measured:.{digits}f} | {reference:.{digits}f} | {verdict(measured, reference)} |")
    return "\n".join(lines) + "\n"


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
    lines = ["| workload | pool, working sets | policy | preemptions per 100 requests | E2E p99 over mean | recomputed, % | tok/s |", "|---|---|---|---|---|---|---|"]
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
    verdict = f"Copied and recomputed tokens together: {moved(CACHE_BLIND):.2f} % under `tiercel-cache-blind`, {moved('tiercel'):.2f} % under `tiercel`, {saved:.0f} % fewer.\n"
    return "\n".join([prefix_table(PREFIX), prefix_table(PREFIX_TIGHT), verdict])


SECTIONS = {
    "w1": ([W1, W1_OURS], w1_section),
    "w2": ([W2], w2_section),
    "w4": ([W4], w4_section),
    "budget": ([BUDGET], budget_section),
    "pool": (list(SWEEPS.values()), pool_section),
    "static": ([STATIC], static_section),
    "costs": ([], costs_section),
    "prefix": ([PREFIX, PREFIX_TIGHT], prefix_section),
}
