"""Tables on chunks and batches that the source documents have but the workloads page lacks."""

import subprocess

from tables.runs import POLICIES, ROOT, Runs, of_class, of_run, tier, tokens_per_s

# Slots of a batch. The workload has more users than slots, so that an empty slot is the effect of the batching.
PLACES = 32
SLOTS = Runs("w4-chunking", ["static", "request-level", "orca", "sarathi"], "--profile", "llama70b-h100",
             "--set", "scheduler.allocation=on-demand", "--set", f"scheduler.max_num_seqs={PLACES}", seeds="21..22", duration=600)
BUDGETS = [128, 256, 512, 1024, 2048, 4096]
FRONTIER = Runs("one-long-prompt", [f"{POLICIES}/budget-{n}.toml" for n in BUDGETS], "--profile", "llama70b-h100",
                seeds="21..22", duration=600)


def example():
    """Runs the example chunk_times and returns its command and the rows of its two tables."""
    words = ["cargo", "run", "--quiet", "--release", "-p", "tiercel-simulation", "--example", "chunk_times"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    cut = next(at for at, line in enumerate(lines) if line.startswith("chunk,"))
    return f"    {' '.join(words)}\n\n", [line.split(",") for line in lines[1:cut]], [line.split(",") for line in lines[cut + 1:]]


def iteration_section():
    command, rows, _ = example()
    source_ms = [21, 72, 126, 237, 460]
    lines = ["| tokens in the step | streams | prompt tokens | step, ms | article, ms |", "|---|---|---|---|---|"]
    lines += [f"| {budget} | 32 | {prefill} | {ms} | {source} |" for (budget, prefill, ms), source in zip(rows, source_ms)]
    return command + "\n".join(lines) + "\n"


def chunks_section():
    command, _, rows = example()
    lines = ["| chunk, tokens | steps | prompt of 2,048 tokens, ms | overhead, % | longest step, ms |", "|---|---|---|---|---|"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    return command + "\n".join(lines) + "\n"


def slots_section():
    source = {"static": "-", "request-level": "60-75", "orca": "90-98", "sarathi": "90-98"}
    lines = ["| | batch changes with every | slots used, % | article, % | tok/s | TBT p99, ms | TTFT p50, s |", "|---|---|---|---|---|---|---|"]
    kinds = {"static": "batch", "request-level": "request", "orca": "iteration", "sarathi": "iteration, in chunks"}
    for policy, kind in kinds.items():
        used, tokens = SLOTS.mean(policy, of_run("slots_used_percent")), SLOTS.mean(policy, tokens_per_s)
        gap, wait = SLOTS.mean(policy, lambda run: run["gaps_ms"]["p99"]), SLOTS.mean(policy, tier("total", "ttft_ms", "p50")) / 1000
        lines.append(f"| `{policy}` | {kind} | {used:.0f} | {source[policy]} | {tokens:.0f} | {gap:.0f} | {wait:.1f} |")
    return f"    {SLOTS.command()}\n\n" + "\n".join(lines) + "\n"


def frontier_section():
    lines = ["| prompt tokens a step | long prompt: TTFT p50, s | short ones: TTFT p50, ms | p99, ms | largest gap p50, ms | p99, ms | TPOT p50, ms | tok/s |",
             "|---|---|---|---|---|---|---|---|"]
    for n in BUDGETS:
        mean = lambda *path: FRONTIER.mean(f"{POLICIES}/budget-{n}.toml", of_class(*path))
        cells = [f"{mean(1, 'ttft_ms', 'p50') / 1000:.1f}", f"{mean(0, 'ttft_ms', 'p50'):.0f}", f"{mean(0, 'ttft_ms', 'p99'):.0f}",
                 f"{mean(0, 'max_gap_ms', 'p50'):.0f}", f"{mean(0, 'max_gap_ms', 'p99'):.0f}", f"{mean(0, 'tpot_ms', 'p50'):.0f}",
                 f"{FRONTIER.mean(f'{POLICIES}/budget-{n}.toml', tokens_per_s):.0f}"]
        lines.append(f"| {n} | " + " | ".join(cells) + " |")
    return f"    {FRONTIER.command()}\n\n" + "\n".join(lines) + "\n"


SECTIONS = {
    "iteration": ([], iteration_section),
    "chunks": ([], chunks_section),
    "slots": ([SLOTS], slots_section),
    "frontier": ([FRONTIER], frontier_section),
}
