"""Tables that compare measured figures with floors: the values that are promised."""

from tables.runs import SWAP, Runs, compliant, met, of_class, of_run, refused, share, tier, tokens_per_s

# Promises are checked with six seeds of half an hour of simulated time.
SIX, HALF_HOUR = "21..27", 1800
FLOORS = {name: Runs(name, ["tiercel"], "--noise", "0.1", seeds=SIX, duration=HALF_HOUR)
          for name in ("w2-memory-tight", "surge", "w2b-bursts", "long-prompts")}
# Policies that are the columns of the first source document's table; `tiercel` is ours.
COLUMNS = ["fcfs", "priority", "priority+preempt", "priority+preempt+slo", "tiercel"]
W1 = Runs("w1-mixed", COLUMNS, "--noise", "0.1", seeds=SIX, duration=HALF_HOUR)
# Reference for tok/s where memory is tight: a policy that turns no request away and preempts none for a higher tier.
W2_PLAIN = Runs("w2-memory-tight", [SWAP], "--noise", "0.1", seeds=SIX, duration=HALF_HOUR)
LOADS = [0.5, 0.75, 1, 1.25, 1.5, 2, 3, 4]
OVERLOAD = {load: Runs("w1-mixed", ["tiercel"], "--noise", "0.1", "--load", str(load), seeds=SIX, duration=HALF_HOUR)
            for load in LOADS}
# Upper bounds if the mean step is not longer than premium's TPOT target, by load: share of standard requests in target,
# and tok/s.
FLUID = {1.25: (1.0, 4593), 1.5: (1.0, 4400), 2: (1.0, 4013), 3: (0.69, 3595), 4: (0.43, 3349)}
AFTER_BURST = Runs("overload-burst", ["tiercel"], "--noise", "0.1", seeds=SIX, duration=1500)
WITHIN_BURST = Runs("overload-burst", ["tiercel"], "--noise", "0.1", seeds=SIX, duration=1200,
                    changes={r"warmup_s = 960": "warmup_s = 600", r"cooldown_s = 90": "cooldown_s = 300"})
IN_DRIFT = Runs("w1-mixed", ["tiercel"], "--noise", "0.1", "--drift=300..360", seeds=SIX, duration=450,
                changes={r"warmup_s = 60": "warmup_s = 300"})
AFTER_DRIFT = Runs("w1-mixed", ["tiercel"], "--noise", "0.1", "--drift=300..360", seeds=SIX, duration=900,
                   changes={r"warmup_s = 60": "warmup_s = 480"})
# Runs with two tenants. The greedy tenant sends as much as the modest tenant (EVEN) or ten times as much.
EVEN = Runs("tenants", ["tiercel"], "--noise", "0.1", seeds=SIX, duration=900, changes={r"rate_per_s = 100.0": "rate_per_s = 10.0"})
GREEDY = Runs("tenants", ["tiercel"], "--noise", "0.1", seeds=SIX, duration=900)
UNFAIR = Runs("tenants", ["tiercel"], "--noise", "0.1", "--set", "scheduler.fair_tenants=false", seeds=SIX, duration=900)
# At this load, premium and standard alone use 0.95 of the fluid bound. A load of 2.31 times w1-mixed would use 1.0 of
# it.
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
    "30 % reserved for premium, hard": [*KEPT, "reservation.kind=hard"],
    "30 % reserved for premium, lent, mirroring": [*KEPT, "reservation.kind=lent", *MIRROR],
}
VARIED = {(name, workload): Runs(workload, ["tiercel"], "--noise", "0.1", *options, seeds=SIX, duration=900)
          for name, options in VARIANTS.items() for workload in ("w2-memory-tight", "w2b-bursts")}


def floors(rows):
    """Makes a table with a verdict from rows of (what, measured, floor, digits, higher is better)."""
    lines = ["| | simulated | floor | met |", "|---|---|---|---|"]
    for what, measured, floor, digits, higher in rows:
        met = measured >= floor if higher else measured <= floor
        sign = "at least" if higher else "at most"
        lines.append(f"| {what} | {measured:.{digits}f} | {sign} {floor:g} | {'yes' if met else 'no'} |")
    return "\n".join(lines) + "\n"


def promises_section():
    w1, (w2, surge, bursts, long) = W1, FLOORS.values()
    ours = lambda runs, value: runs.mean("tiercel", value)
    tokens = lambda runs, plain, policy: share(ours(runs, tokens_per_s), plain.mean(policy, tokens_per_s))
    all_done = ours(w1, lambda run: share(tier("background", "completed")(run), tier("background", "requests")(run)))
    rows = [
        ("w1-mixed: premium in target, %", ours(w1, compliant("premium")), 99.95, 2, True),
        ("w1-mixed: premium p99 TTFT, ms", ours(w1, tier("premium", "ttft_ms", "p99")), 165, 0, False),
        ("w1-mixed: standard in target, %", ours(w1, compliant("standard")), 99.9, 2, True),
        ("w1-mixed: background p99 TTFT, ms", ours(w1, tier("background", "ttft_ms", "p99")), 5000, 0, False),
        ("w1-mixed: background completed, %", all_done, 100, 2, True),
        ("w1-mixed: tok/s, % of `fcfs`", tokens(w1, w1, "fcfs"), 99.5, 2, True),
        ("w2-memory-tight: premium in target, %", ours(w2, compliant("premium")), 99.95, 2, True),
        ("w2-memory-tight: premium p99 TTFT, ms", ours(w2, tier("premium", "ttft_ms", "p99")), 165, 0, False),
        ("w2-memory-tight: standard in target, %", ours(w2, compliant("standard")), 99.9, 2, True),
        ("w2-memory-tight: preemptions a minute", ours(w2, of_run("preemptions_per_min")), 20, 1, False),
        ("w2-memory-tight: tok/s, % of `fcfs-swap`", tokens(w2, W2_PLAIN, SWAP), 99.5, 2, True),
        ("surge: premium TTFT in target, %", ours(surge, met("premium", "ttft_met")), 99.9, 2, True),
        ("surge: premium in all targets, %", ours(surge, compliant("premium")), 99.4, 2, True),
        ("w2b-bursts: premium in target, %", ours(bursts, compliant("premium")), 99.9, 2, True),
        ("w2b-bursts: standard in target, %", ours(bursts, compliant("standard")), 99, 2, True),
        ("long-prompts: premium in target, %", ours(long, compliant("premium")), 99.5, 2, True),
    ]
    return "\n".join([floors(rows), five_columns()] + [runs.table() for runs in (W1, *FLOORS.values())])


def five_columns():
    """Makes the first source document's table: our run of each policy, beside the last column of the document."""
    rows = [("premium p99 TTFT, ms", tier("premium", "ttft_ms", "p99"), 185, 0, False),
            ("standard p99 TTFT, ms", tier("standard", "ttft_ms", "p99"), 480, 0, False),
            ("background p99 TTFT, ms", tier("background", "ttft_ms", "p99"), 18000, 0, False),
            ("premium in target, %", compliant("premium"), 99.9, 2, True),
            ("standard in target, %", compliant("standard"), 97.2, 2, True),
            ("tok/s", tokens_per_s, 3900, 0, True)]
    names = " | ".join(f"`{policy}`" for policy in COLUMNS)
    lines = [f"| | {names} | article | `tiercel` better |", "|---" * (len(COLUMNS) + 3) + "|"]
    for what, value, document, digits, higher in rows:
        figures = [W1.mean(policy, value) for policy in COLUMNS]
        better = figures[-1] > document if higher else figures[-1] < document
        cells = [f"{figure:.{digits}f}" for figure in figures] + [f"{document}", "yes" if better else "no"]
        lines.append(f"| {what} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def overload_section():
    lines = ["| load | premium in target, % | worst seed | standard in target, % | worst seed | of the fluid bound, % | premium p99 TTFT, ms | standard refused, % | of these accepted first, % | background refused, % | tok/s | of the fluid bound, % |",
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
    rows = [("premium in target at load 2, %", at(2, compliant("premium")), 99.9, 2, True), ("premium in target at load 4, %", at(4, compliant("premium")), 99.5, 2, True),
            ("standard in target at load 1.5, %", at(1.5, compliant("standard")), 98.5, 2, True), ("standard in target at load 2, %", at(2, compliant("standard")), 93, 2, True),
            ("standard in target at load 3, % of the fluid bound", at(3, compliant("standard")) / 0.69, 80, 1, True),
            ("standard in target at load 4, % of the fluid bound", at(4, compliant("standard")) / 0.43, 75, 1, True)]
    rows += [(f"tok/s at load {load}, % of the fluid bound", share(at(load, tokens_per_s), FLUID[load][1]), 95, 1, True) for load in (1.25, 1.5, 2)]
    return f"    {OVERLOAD[4].command()}\n\n" + "\n".join(lines) + "\n\n" + floors(rows)


def recovery_section():
    ours = lambda runs, value: runs.mean("tiercel", value)
    left = sum(tier("total", "unfinished")(run) for run in WITHIN_BURST.runs("tiercel"))
    rows = [("a minute after the burst: premium in target, %", ours(AFTER_BURST, compliant("premium")), 99.95, 2, True),
            ("a minute after the burst: premium p99 TTFT, ms", ours(AFTER_BURST, tier("premium", "ttft_ms", "p99")), 165, 0, False),
            ("a minute after the burst: standard in target, %", ours(AFTER_BURST, compliant("standard")), 99.9, 2, True),
            ("requests of the burst neither completed nor refused 300 s after the burst", left, 0, 0, False),
            ("during the drift: premium in target, %", ours(IN_DRIFT, compliant("premium")), 99, 2, True),
            ("120 s after the drift: premium in target, %", ours(AFTER_DRIFT, compliant("premium")), 99.95, 2, True),
            ("120 s after the drift: premium p99 TTFT, ms", ours(AFTER_DRIFT, tier("premium", "ttft_ms", "p99")), 165, 0, False),
            ("120 s after the drift: standard in target, %", ours(AFTER_DRIFT, compliant("standard")), 99.9, 2, True)]
    return "\n".join([floors(rows)] + [runs.table() for runs in (AFTER_BURST, WITHIN_BURST, IN_DRIFT, AFTER_DRIFT)])


def fairness_section():
    modest = lambda runs, *path: runs.mean("tiercel", of_class(0, *path))
    lines = ["| greedy tenant sends | fair queue | modest: TTFT p50, ms | p99 | refused, % | tok/s | greedy: TTFT p50, ms | p99 | refused, % | tok/s |",
             "|---|---|---|---|---|---|---|---|---|---|"]
    for what, turns, runs in (("as much", "yes", EVEN), ("ten times as much", "yes", GREEDY), ("ten times as much", "no", UNFAIR)):
        cells = []
        for index in (0, 1):
            of = lambda *path: runs.mean("tiercel", of_class(index, *path))
            away = runs.mean("tiercel", lambda run: share(of_class(index, "refused")(run), of_class(index, "requests")(run)))
            cells += [f"{of('ttft_ms', 'p50'):.0f}", f"{of('ttft_ms', 'p99'):.0f}", f"{away:.1f}", f"{of('output_tokens_per_s'):.0f}"]
        lines.append(f"| {what} | {turns} | " + " | ".join(cells) + " |")
    against = lambda q: share(modest(GREEDY, "ttft_ms", q), modest(EVEN, "ttft_ms", q)) - 100.0
    started = NEARLY_FULL.runs("tiercel")
    longest_s = max(tier("background", "ttft_ms", "max")(run) for run in started) / 1000.0
    rows = [("modest tenant's TTFT p50, % longer if the greedy tenant sends ten times as much", against("p50"), 10, 1, False),
            ("modest tenant's TTFT p99, % longer if the greedy tenant sends ten times as much", against("p99"), 10, 1, False),
            ("longest TTFT of a background request, s (premium and standard at 0.95 of the fluid bound)", longest_s, 120, 0, False)]
    commands = "\n".join(f"    {runs.command()}" for runs in (GREEDY, UNFAIR, NEARLY_FULL))
    return f"{commands}\n\n" + "\n".join(lines) + "\n\n" + floors(rows) + "\n" + NEARLY_FULL.table()


def refusals_section():
    runs = RETURNING.runs("tiercel")
    returned, readmitted = (sum(run[key] for run in runs) for key in ("returned", "readmitted"))
    away = RETURNING.mean("tiercel", refused("background"))
    every = ALL_RETURNING.runs("tiercel")
    kept = share(sum(run["readmitted"] for run in every), sum(run["returned"] for run in every))
    rows = [("returning requests that are served, %", share(readmitted, returned), 95, 1, True)]
    return (f"    {RETURNING.command()}\n    {ALL_RETURNING.command()}\n\n{away:.1f} % of the requests were refused; {returned} refused requests came back. "
            f"If all refused requests come back, {kept:.1f} % of the returning requests are served.\n\n" + floors(rows))


def limits_section():
    lines = ["| workload | variant | premium in target, % | p99 TTFT, ms | standard in target, % | background p99 E2E, s | background not completed, % | tok/s | preemptions a minute | recomputed, % | copied, % |",
             "|---|---|---|---|---|---|---|---|---|---|---|"]
    for (name, workload), runs in sorted(VARIED.items(), key=lambda item: item[0][1]):
        mean = lambda value: runs.mean("tiercel", value)
        undone = mean(lambda run: 100.0 - share(tier("background", "completed")(run), tier("background", "requests")(run)))
        cells = [f"{mean(compliant('premium')):.2f}", f"{mean(tier('premium', 'ttft_ms', 'p99')):.0f}",
                 f"{mean(compliant('standard')):.2f}", f"{mean(tier('background', 'e2e_ms', 'p99')) / 1000:.1f}", f"{undone:.1f}",
                 f"{mean(tokens_per_s):.0f}", f"{mean(of_run('preemptions_per_min')):.1f}",
                 f"{mean(of_run('recomputed_percent')):.2f}", f"{mean(of_run('copied_percent')):.2f}"]
        lines.append(f"| {workload} | {name} | " + " | ".join(cells) + " |")
    return f"    {VARIED['30 % reserved for premium, hard', 'w2b-bursts'].command()}\n\n" + "\n".join(lines) + "\n"


SECTIONS = {
    "promises": ([W1, W2_PLAIN, *FLOORS.values()], promises_section),
    "overload": (list(OVERLOAD.values()), overload_section),
    "fairness": ([EVEN, GREEDY, UNFAIR, NEARLY_FULL], fairness_section),
    "limits": (list(VARIED.values()), limits_section),
    "refusals": ([RETURNING, ALL_RETURNING], refusals_section),
    "recovery": ([AFTER_BURST, WITHIN_BURST, IN_DRIFT, AFTER_DRIFT], recovery_section),
}
