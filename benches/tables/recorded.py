"""Tables of recorded traffic: the default policy and other presets, beside bounds that serve only some of the tiers, and the
dial `slo.premium.assurance`."""

from tables.runs import Runs, compliant, refused, share, tier, tokens_per_s

TRACES = "../shared/workloads/traces"
WORKLOADS = ["conv-067-loose", "conv-067-tight", "conv-100-loose", "code-050-loose"]
SEEDS = "101..105"
OTHERS = ["fcfs", "vllm-v1", "throughput"]
# Presets of which the better one gives the bound "premium alone": the best two of all presets.
ALONE = ["tiercel", "adaptive"]


def without(*tiers):
    """Returns the changes that leave out the requests of these tiers."""
    return {rf'\[\[class\]\]\ntier = "{name}"[^\[]*': "" for name in tiers}


def runs(name, policies, *options, left_out=()):
    changes = without(*left_out)
    return Runs(name, policies, "--noise", "0.1", *options, seeds=SEEDS, duration=1740, folder=TRACES, changes=changes)


WHOLE = {name: runs(name, ["tiercel", *OTHERS]) for name in WORKLOADS}
PREMIUM = {name: runs(name, ALONE, left_out=["standard", "background"]) for name in WORKLOADS}
BOTH = {name: runs(name, ["tiercel"], left_out=["background"]) for name in WORKLOADS}
# Values of `slo.premium.assurance`; the default, 0.999, is in WHOLE.
ASSURANCES = {name: [0.9, 0.99, 0.9999] for name in WORKLOADS} | {"conv-067-tight": [0.9, 0.97, 0.99, 0.9993, 0.9999]}
DIAL = {(name, assurance): runs(name, ["tiercel"], "--set", f"slo.premium.assurance={assurance}")
        for name, assurances in ASSURANCES.items() for assurance in assurances}


def in_target(runs, policy, tiers=("premium", "standard", "background")):
    """Returns the share of requests in target by tier, and the tokens per second."""
    shares = " / ".join(f"{runs.mean(policy, compliant(name)):.1f}" for name in tiers)
    return f"{shares} ({runs.mean(policy, tokens_per_s):.0f})"


def completed(name):
    return lambda run: share(tier(name, "completed")(run), tier(name, "requests")(run))


def recorded_section():
    lines = ["| in target, %: premium / standard / background (tok/s) | `tiercel` | "
             + " | ".join(f"`{policy}`" for policy in OTHERS) + " | premium alone | premium, standard alone |",
             "|---" * (len(OTHERS) + 4) + "|"]
    for name in WORKLOADS:
        whole = WHOLE[name]
        alone = max(PREMIUM[name].mean(policy, compliant("premium")) for policy in ALONE)
        cells = [in_target(whole, policy) for policy in ["tiercel", *OTHERS]]
        cells += [f"{alone:.1f}", in_target(BOTH[name], "tiercel", ["premium", "standard"])]
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    lines += ["", "| under `tiercel`, % | premium completed | standard completed | background completed | standard refused "
              "| background refused | tok/s, of the most under the other three | standard completed without background |",
              "|---|---|---|---|---|---|---|---|"]
    for name in WORKLOADS:
        ours = lambda value: WHOLE[name].mean("tiercel", value)
        cells = [f"{ours(completed(tier)):.2f}" for tier in ("premium", "standard", "background")]
        cells += [f"{ours(refused(tier)):.2f}" for tier in ("standard", "background")]
        most = max(WHOLE[name].mean(policy, tokens_per_s) for policy in OTHERS)
        cells += [f"{share(ours(tokens_per_s), most):.1f}"]
        cells += [f"{BOTH[name].mean('tiercel', completed('standard')):.2f}"]
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    command = WHOLE[WORKLOADS[0]].command()
    return f"    {command}\n\n" + "\n".join(lines) + "\n\n"


def dial_section():
    lines = ["| workload | assurance | premium in target, % | standard, % | background, % | tok/s |", "|---|---|---|---|---|---|"]
    for name in ["conv-067-tight", *(name for name in WORKLOADS if name != "conv-067-tight")]:
        for assurance in sorted([0.999, *ASSURANCES[name]]):
            found = DIAL.get((name, assurance), WHOLE[name])
            shares = [f"{found.mean('tiercel', compliant(tier)):.1f}" for tier in ("premium", "standard", "background")]
            default = " (default)" if assurance == 0.999 else ""
            lines.append(f"| `{name}` | {assurance}{default} | {' | '.join(shares)} | {found.mean('tiercel', tokens_per_s):.0f} |")
    return f"    {DIAL['conv-067-tight', 0.9].command()}\n\n" + "\n".join(lines) + "\n\n"


SECTIONS = {
    "recorded": ([*WHOLE.values(), *PREMIUM.values(), *BOTH.values()], recorded_section),
    "dial": ([*DIAL.values(), *WHOLE.values()], dial_section),
}
