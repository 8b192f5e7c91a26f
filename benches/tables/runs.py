"""Runs of `tiercel simulate`: their commands, their results, and the values that tables are made of."""

import json
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TIERCEL = ROOT / "target/release/tiercel"
QUICK = "--quick" in sys.argv
POLICIES = "benches/policies"
# Seeds that were not used for tuning.
SEEDS = "21..22" if QUICK else "21..24"
# A policy that preempts no request for a higher tier and swaps its victims: the reference where memory is tight.
SWAP = f"{POLICIES}/fcfs-swap.toml"


def share(part, whole):
    return 100.0 * part / whole if whole else 0.0


class Runs:
    """Runs of one workload under several policies: the command and the results. `folder` holds the workload."""

    def __init__(self, workload, policies, *options, seeds=SEEDS, duration=900, changes=None, folder="benches/workloads"):
        self.workload, self.policies, self.changes = workload, policies, changes or {}
        self.folder = folder
        duration = min(duration, 180) if QUICK else duration
        self.options = ["--duration", str(duration), *options]
        if seeds:
            self.options += ["--seeds", seeds]

    def command(self):
        words = ["tiercel simulate --workload", f"{self.folder}/{self.workload}.toml"]
        changed = ", ".join(f"`{pattern}` as `{text}`".replace("\\", "") for pattern, text in self.changes.items())
        note = [f"  (the workload with {changed})"] if changed else []
        return " ".join(words + ["--policy", ",".join(self.policies), *self.options, *note])

    def run(self):
        with tempfile.TemporaryDirectory() as folder:
            workload = (ROOT / self.folder / f"{self.workload}.toml").resolve()
            if self.changes:
                text = workload.read_text()
                for pattern, replacement in self.changes.items():
                    text, count = re.subn(pattern, replacement, text)
                    assert count, f"{workload}: nothing matches {pattern}"
                # Files of recorded traffic lie beside the workload.
                text = text.replace('file = "', f'file = "{workload.parent}/')
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
        """Returns a rough measure of how long the runs take. The longest runs are started first."""
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
