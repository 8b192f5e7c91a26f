"""Tables of the sizes of a step: slots, and tokens."""

from tables.recorded import TRACES, WORKLOADS
from tables.runs import Runs, compliant, share, tier, tokens_per_s

H100 = ["--profile", "benches/profiles/llama8b-h100-calibrated.toml"]
# Slots and tokens of a step.
SIZES = [(64, 256), (64, 512), (128, 1024), (256, 512), (256, 1024), (256, 2048), (256, 4096)]
TOKENS = [512, 1024, 2048]
# Workloads, their folders, and the simulated time, s.
FILES = [("conv-067-tight", TRACES, 1740), *((name, TRACES, 1740) for name in WORKLOADS if name != "conv-067-tight"),
         ("long-prompts", "benches/workloads", 900), ("w2-memory-tight", "benches/workloads", 900)]


def sized(workload, seeds, slots, tokens, *options, **where):
    sizes = ["--set", f"scheduler.max_num_seqs={slots}", "--set", f"scheduler.max_num_batched_tokens={tokens}"]
    return Runs(workload, ["tiercel"], "--noise", "0.1", *sizes, *options, seeds=seeds, **where)


GPU = {size: sized("gpu/w2", "101..104", *size, *H100, duration=75) for size in SIZES}
A100 = {(name, tokens): sized(name, "101..103", 256, tokens, duration=seconds, folder=folder)
        for name, folder, seconds in FILES for tokens in TOKENS}


def sizes_section():
    lines = [f"    {GPU[256, 1024].command()}\n",
             "| slots, tokens | tok/s | TTFT, ms: premium p50 / p99 | standard p90 | background p50 | background completed, % |",
             "|---|---|---|---|---|---|"]
    for (slots, tokens), runs in GPU.items():
        mean = lambda *path: runs.mean("tiercel", tier(*path))
        completed = runs.mean("tiercel", lambda run: share(tier("background", "completed")(run), tier("background", "requests")(run)))
        cells = [f"{runs.mean('tiercel', tokens_per_s):,.0f}",
                 f"{mean('premium', 'ttft_ms', 'p50'):.0f} / {mean('premium', 'ttft_ms', 'p99'):.0f}",
                 f"{mean('standard', 'ttft_ms', 'p90'):.0f}", f"{mean('background', 'ttft_ms', 'p50'):,.0f}", f"{completed:.1f}"]
        lines.append(f"| {slots}, {tokens:,} | " + " | ".join(cells) + " |")
    lines += ["", "Requests that are not completed still ran or waited when the run ended. On `llama70b-tp8-a100`, with 256 slots, seeds 101",
              "and 102; in target, % of premium / standard / background, and tok/s:", "",
              "| workload | " + " | ".join(f"{tokens:,} tokens" for tokens in TOKENS) + " |", "|---" * (len(TOKENS) + 1) + "|"]
    for name, *_ in FILES:
        cells = []
        for tokens in TOKENS:
            runs = A100[name, tokens]
            shares = " / ".join(f"{runs.mean('tiercel', compliant(tier)):.1f}" for tier in ("premium", "standard", "background"))
            cells.append(f"{shares}, {runs.mean('tiercel', tokens_per_s):.0f}")
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n\n"


SECTIONS = {"sizes": ([*GPU.values(), *A100.values()], sizes_section)}
