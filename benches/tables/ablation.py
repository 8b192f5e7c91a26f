"""Results of an ablation: paired differences to the default, their confidence intervals, and the tables of them."""

import json
import math

# A change without practical effect (EARLY_TOKENS 1.501 instead of 1.5). The differences that it causes measure the noise.
NOTHING = ["scheduler/budget/slack EARLY_TOKENS=1.501"]
# Quantiles of Student's t distribution, two-sided 95 %, by degrees of freedom.
T95 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 23: 2.069}
# Smallest differences that count, whatever their confidence interval: a share of tok/s, preemptions per minute, and
# LEAST_POINTS in percentage points for the other figures.
LEAST = {"tok/s": 0.002, "preemptions": 0.5}
LEAST_POINTS = 0.1
ORDER = ["premium", "standard", "background", "modest tenant", "tok/s", "preemptions"]
BETTER_IF_LESS = {"preemptions"}


class Figures:
    """Figures of all runs, by (workload, changes) and then by seed."""

    def __init__(self, store):
        self.runs = {}
        for line in store.read_text().splitlines() if store.exists() else []:
            run = json.loads(line)
            self.seeds(run["workload"], run["changes"])[run["seed"]] = run["values"]

    def seeds(self, workload, changes):
        return self.runs.setdefault((workload, tuple(changes)), {})

    def differ(self, workload, changes):
        """Whether the changes moved any figure of the workload, in any seed."""
        default = self.seeds(workload, [])
        return any(values != default[seed] for seed, values in self.seeds(workload, changes).items())

    def differences(self, workload, changes, value):
        default = self.seeds(workload, [])
        return [values[value] - default[seed][value] for seed, values in sorted(self.seeds(workload, changes).items())]

    def values(self, workload):
        return [value for value in ORDER if value in next(iter(self.seeds(workload, []).values()))]

    def mean(self, workload, value):
        values = [run[value] for run in self.seeds(workload, []).values()]
        return sum(values) / len(values)

    def counts(self, workload, value, moved):
        """Whether a difference of this size is large enough to count."""
        return abs(moved) >= LEAST_POINTS if value not in LEAST else \
            abs(moved) >= LEAST[value] * (self.mean(workload, value) if value == "tok/s" else 1.0)


def spread(differences):
    mean = sum(differences) / len(differences)
    return math.sqrt(sum((x - mean) ** 2 for x in differences) / (len(differences) - 1))


def interval(differences):
    """Returns the mean of the differences and half the width of its 95 % confidence interval."""
    mean, count = sum(differences) / len(differences), len(differences)
    return mean, T95[count - 1] * spread(differences) / math.sqrt(count)


def number(value, moved):
    if abs(moved) < 0.005:
        return "+0"
    return f"{moved:+.0f}" if value == "tok/s" and abs(moved) >= 10 else f"{moved:+.1f}" if abs(moved) >= 1 else f"{moved:+.2f}"


def mechanisms_table(known, mechanisms):
    """Makes a row for each mechanism and workload where a figure moved beyond noise, and one row for a mechanism's
    other workloads."""
    lines = ["| off (or on) | workload (seeds) | " + " | ".join(ORDER) + " |", "|---" * (len(ORDER) + 2) + "|"]
    for name, (changes, workloads) in mechanisms.items():
        rows, noise, open_, same = [], [], [], []
        for workload in workloads:
            count = len(known.seeds(workload, changes))
            if count and not known.differ(workload, changes):
                same.append(workload)
            if count < 2 or workload in same:
                continue
            cells, beyond = [], False
            for value in ORDER:
                if value not in known.values(workload):
                    cells.append("")
                    continue
                differences = known.differences(workload, changes, value)
                if not any(differences):
                    cells.append("0")
                    continue
                mean, half = interval(differences)
                clear = abs(mean) > half and known.counts(workload, value, mean)
                beyond |= clear
                text = f"{number(value, mean)} ± {number(value, half)[1:]}"
                cells.append(f"**{text}**" if clear else text)
            (rows if beyond else open_ if count < 3 else noise).append((f"{workload} ({count})", cells))
        lines += [f"| {name} | {workload} | " + " | ".join(cells) + " |" for workload, cells in rows]
        names = lambda found: ", ".join(workload for workload, _ in found)
        within = ([f"within noise: {names(noise)}"] if noise else []) + ([f"left open: {names(open_)}"] if open_ else [])
        within += ["no effect anywhere" if len(same) == len(workloads) else f"no effect: {', '.join(same)}"] if same else []
        if within:
            lines.append(f"| {name} | {'; '.join(within)} |" + " |" * len(ORDER))
    return "\n".join(lines) + "\n"


def cpu_table(known, workload, mechanisms):
    """Makes a row for the default, and a row of differences to it for each mechanism."""
    values = list(next(iter(known.seeds(workload, []).values())))
    lines = ["| off | " + " | ".join(values) + " |", "|---" * (len(values) + 1) + "|",
             "| nothing (the default) | " + " | ".join(f"{known.mean(workload, value):.0f}" for value in values) + " |"]
    for name, changes in mechanisms.items():
        cells = []
        for value in values:
            mean, half = interval(known.differences(workload, changes, value))
            text = f"{mean:+.1f} ± {half:.1f}"
            cells.append("0" if not mean and not half else f"**{text}**" if abs(mean) > half else text)
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def constants_table(known, constants, workloads, count):
    """Makes a row for each constant: figures that moved beyond noise at half and at twice its value, in `count`
    seeds."""
    lines = ["| constant | unit | value | first value: moves | second value: moves |", "|---|---|---|---|---|"]
    for name, unit, value, changes in constants:
        cells = [f"{change.split('=')[1]}: {moves(known, [change], workloads, count)}" for change in changes]
        lines.append(f"| {name} | {unit} | {value:g} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def moves(known, changes, workloads, count):
    found, seen = [], False
    for workload in workloads:
        if not known.seeds(workload, changes):
            found.append(f"{workload}: not run")
            continue
        seen |= known.differ(workload, changes)
        moved = []
        for value in known.values(workload):
            differences = known.differences(workload, changes, value)[:count]
            mean = sum(differences) / len(differences)
            if abs(mean) > noise(known, workload, value, len(differences)) and known.counts(workload, value, mean):
                moved.append(f"{value} {number(value, mean)}")
        found += [f"{workload}: {', '.join(moved)}"] if moved else []
    return "; ".join(found) or ("nothing beyond noise" if seen else "no effect")


def noise(known, workload, value, count):
    """Returns half the width of the 95 % confidence interval of a mean of `count` differences that are pure noise."""
    return T95[5] * spread(known.differences(workload, NOTHING, value)) / math.sqrt(count)


def noise_table(known, workloads):
    lines = ["| workload | " + " | ".join(ORDER) + " |", "|---" * (len(ORDER) + 1) + "|"]
    for workload in workloads:
        cells = [f"{known.mean(workload, value):.1f} ± {noise(known, workload, value, 1):.2f}" if value in known.values(workload) else ""
                 for value in ORDER]
        lines.append(f"| {workload} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"
