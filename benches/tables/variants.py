"""Variants of an ablation: mechanisms turned off by settings or constants, and constants halved and doubled."""

from tables.knobs import module, value_of, variable

# Workloads in which KV memory is short, so that requests are preempted (MEMORY), and workloads in which device time is
# short (TIME). ALL has both kinds.
MEMORY = ["w2-memory-tight", "w2b-bursts", "prefix-tight"]
TIME = ["conv-067-tight", "conv-100-loose", "code-050-loose", "long-prompts", "w2b-bursts"]
ALL = [*TIME, "w2-memory-tight", "surge", "prefix-tight"]
NO_PREEMPTION = ["conv-067-loose", "conv-067-tight", "conv-100-loose", "code-050-loose", "long-prompts", "tenants"]

# By name of a mechanism: the changes that turn it off (or on, where it is off by default), and the workloads to run. In
# a change, a name with a `.` is a setting; any other name is a constant or a switch.
MECHANISMS = {
    "steps by slack": (["scheduler.budget=fixed"], TIME),
    "reserve of premium streams": (["scheduler/budget/slack_reserve LAG_MAX_US=0"], TIME),
    "margin of first tokens": (["scheduler/budget/prefill_demand FIRST_TOKEN_MARGIN=0"], TIME),
    "blocking limit of a step": (["scheduler/budget/step_budget BLOCKING=1e12",
                                  "scheduler/budget/step_budget BLOCKING_SHORT_PROMPT=1e12"], TIME),
    "pausing background and standard": (["scheduler.pause_background=false"], TIME),
    "pausing background for prompts": (["scheduler/memory/mod AMPLE_SHARE=2"], [*TIME, "w2-memory-tight"]),
    "pausing standard": (["scheduler/plan/pausing PAUSE_STANDARD=0"], TIME),
    "prompts one after the other": (["scheduler/plan/prefill LONG_CHUNK_SHARE=0"], TIME),
    "late requests last": (["shedding.late=wait"], [*TIME, "tenants"]),
    "late requests that starve": (["scheduler/lateness/starvation ALONE_US=1e18",
                                   "scheduler/lateness/starvation BESIDE_HIGHER_US=1e18"], [*TIME, "tenants"]),
    "shortest late prompt first": (["scheduler/queue/ordering SHORTEST=0", "scheduler/plan/prefill_order SHORTEST=0"], TIME),
    "prompts by deadline": (["scheduler.prefill_order=rank"], TIME),
    "background's part of a step": (["scheduler.background_prefill_percent=100"], ALL),
    "fair queue of tenants": (["scheduler.fair_tenants=false"], ["tenants"]),
    "tier shares": (["scheduler.fair_tiers=false"], ["conv-067-tight", "conv-100-loose", "w2b-bursts"]),
    "patience": (["patience.standard_s=0", "patience.background_s=0"], ["conv-067-tight", "conv-100-loose", "long-prompts"]),
    "refusing late requests (on)": (["shedding.late=refuse"], ["conv-067-tight", "conv-100-loose", "long-prompts", "tenants"]),
    "watermark": (["scheduler.watermark_percent=0"], MEMORY),
    "watermark of background": (["scheduler.background_watermark_percent=0"], MEMORY),
    "both watermarks": (["scheduler.watermark_percent=0", "scheduler.background_watermark_percent=0"], MEMORY),
    "full sequence check": (["scheduler.full_sequence_check=false"], MEMORY),
    "preempting to start": (["preemption.to_start=never"], MEMORY),
    "resume-cost victims (on)": (["preemption.victim=resume-cost"], MEMORY),
    "unshared release (on)": (["preemption.victim_release=unshared"], MEMORY),
    "preemption limit": (["preemption.max_per_request=1000000"], MEMORY),
    "swap or recompute by cost": (["preemption.mode=swap"], MEMORY),
    "mirroring (on)": (["preemption.mirror_percent=20"], MEMORY),
    "reservation, lent (on)": (["reservation.premium_blocks_percent=30", "reservation.premium_slots_percent=30",
                                "reservation.kind=lent", "preemption.mirror_percent=20"], MEMORY),
    "all memory mechanisms": (["scheduler.watermark_percent=0", "scheduler.background_watermark_percent=0",
                               "scheduler.full_sequence_check=false", "preemption.to_start=never",
                               "preemption.max_per_request=1000000", "preemption.mode=swap"], NO_PREEMPTION),
}

# Mechanisms that divide the time of steps between tiers and prompts. The variants of these mechanisms run on the profile of
# a CPU server too.
ON_CPU = ["steps by slack", "reserve of premium streams", "margin of first tokens", "blocking limit of a step",
          "pausing background and standard", "pausing background for prompts", "pausing standard", "prompts one after the other",
          "late requests last", "shortest late prompt first", "prompts by deadline", "background's part of a step"]

# Constants: file, name, unit, values to try (None: half and twice the value).
CONSTANTS = [
    ("scheduler/budget/slack", "EARLY_TOKENS", "TPOT targets", None),
    ("scheduler/budget/slack", "AIM_MIN", "share of the TPOT target", (0.8, 0.95)),
    ("scheduler/budget/prefill_demand", "FIRST_TOKEN_MARGIN", "mean errors of a step", None),
    ("scheduler/budget/prefill_demand", "LEAST_ERROR", "share of a step", None),
    ("scheduler/budget/step_budget", "BLOCKING", "share of the TTFT target", None),
    ("scheduler/budget/step_budget", "BLOCKING_SHORT_PROMPT", "share of the TTFT target", None),
    ("scheduler/budget/step_budget", "BLOCKING_MIN_STEPS", "empty steps", None),
    ("scheduler/plan/prefill_order", "RANK_MARGIN", "times the predicted work", None),
    ("scheduler/plan/prefill", "LONG_CHUNK_SHARE", "share of a part's time", None),
    ("scheduler/queue/arrivals", "LATELY_US", "us", None),
    ("scheduler/budget/step_budget", "SAVING_TOKENS", "tokens", None),
    ("scheduler/budget/slack", "MAX_BEHIND", "TPOT targets", None),
    ("scheduler/budget/slack", "RECOVERY_TOKENS", "tokens", None),
    ("scheduler/budget/slack", "AMPLE_STEPS", "steps", None),
    ("scheduler/budget/slack", "OUTPUT_MARGIN", "predicted outputs", None),
    ("scheduler/budget/slack", "STEP_MARGIN", "steps", None),
    ("scheduler/budget/step_budget", "RECOVERABLE_SHARE", "share of the recoverable lag", (0, 1)),
    ("scheduler/budget/slack_reserve", "SAVED_PER_NINE", "share of the aimed pace", None),
    ("scheduler/budget/slack_reserve", "LAG_MAX_US", "us", (0.25e6, 0.5e6)),
    ("scheduler/budget/slack_reserve", "HISTOGRAM_MAX_US", "us of steps", None),
    ("scheduler/budget/slack_reserve", "STEPS_PER_UPDATE", "steps", None),
    ("scheduler/budget/slack_reserve", "EXCESS_PER_NINE", "excess misses for each nine", None),
    ("scheduler/plan/prefill", "UNAFFORDED_MAX_TOKENS", "tokens", None),
    ("scheduler/plan/prefill", "UNAFFORDED_SHARE", "share of the streams' time", None),
    ("scheduler/plan/pausing", "PAUSED_MAX_US", "us", None),
    ("scheduler/memory/mod", "AMPLE_SHARE", "share of the blocks", None),
    ("scheduler/lateness/deadlines", "JUDGED_MAX", "requests", None),
    ("scheduler/lateness/deadlines", "SHARE_MIN", "share of the time", None),
    ("scheduler/lateness/deadlines", "PROMPTS_SHARE_MAX", "share of the time", (0.35, 0.9)),
    ("scheduler/lateness/deadlines", "PROMPTS_SHARE_FACTOR", "multiple of 1.25 (background: 0.7)", None),
    ("scheduler/lateness/deadlines", "RECOVERY_STEPS", "steps", (0, 4)),
    ("scheduler/lateness/deadlines", "TIME_CONSTANT_US", "multiple of 3 s (background: 60 s)", None),
    ("scheduler/lateness/flow", "TIME_CONSTANT_US", "us", None),
    ("scheduler/lateness/flow", "DIFFERENCE_MAX", "share of the requests served", None),
    ("scheduler/lateness/flow", "SERVED_MIN", "requests", None),
    ("scheduler/lateness/starvation", "ALONE_US", "us", None),
    ("scheduler/lateness/starvation", "ALONE_SHARE", "share of the drain time", None),
    ("scheduler/lateness/starvation", "DRAIN_MAX_US", "us", None),
    ("scheduler/lateness/starvation", "BESIDE_HIGHER_US", "us", None),
    ("scheduler/lateness/starvation", "STARVING_MAX", "requests", None),
    ("scheduler/queue/length_predictor", "SMOOTHING", "weight of a new request", None),
    ("scheduler/cost", "SMOOTHING", "weight of a new step", None),
    ("scheduler/cost", "PULL", "exponent for each step", None),
    ("scheduler/queue/tier_fair_queue", "CREDIT_MAX_US", "us of usage over the share", None),
    ("scheduler/plan/retry", "OPENS_MAX", "requests", None),
    ("scheduler/plan/retry", "EMPTY_PLANS_MAX", "plans", None),
    ("scheduler/queue/mod", "HIT_SMOOTHING", "weight of a new prompt", None),
]

# Settings that are numbers and are varied like constants: name, unit, value, values to try.
SETTINGS = [
    ("scheduler.watermark_percent", "% of the blocks", 3.0, (1.5, 6.0)),
    ("scheduler.background_watermark_percent", "% of the blocks", 3.5, (1.75, 7.0)),
    ("scheduler.background_prefill_percent", "% of a step's tokens", 25, (12, 50)),
    ("preemption.max_per_request", "preemptions", 8, (4, 16)),
]

# Numbers inside expressions: file, name, unit, value, the text to replace, and a replacement that reads the value.
NUMBERS = [
    ("scheduler/lateness/deadlines", "STEPS_PER_TOKEN", "steps", 2.0, "return 2.0 * PrefillTime", "return {value:2.0} * PrefillTime"),
]

# Parts of the policy that no setting turns off: file, name, the text to replace, and a replacement that reads the
# switch.
SWITCHES = [
    ("scheduler/plan/pausing", "PAUSE_STANDARD", "if over_us <= 0.0 {", "if over_us <= 0.0 || {value:1.0} == 0.0 {"),
    ("scheduler/queue/ordering", "SHORTEST", "tiered && sequence.service.late", "tiered && sequence.service.late && {value:1.0} > 0.0"),
    ("scheduler/plan/prefill_order", "SHORTEST", "PrefillOrder::Deadline if sequence.service.late",
     "PrefillOrder::Deadline if sequence.service.late && {value:1.0} > 0.0"),
]


def words(change):
    """Returns the command-line arguments and the environment variables of one change."""
    if "." in change.split("=")[0]:
        return ["--set", change], {}
    place, value = change.split("=")
    return [], {variable(*place.split()): value}


def of_constants():
    """Returns (name, unit, value, changes) for constants, numbers and settings. The changes set half and twice the
    value, or the values that the list states."""
    rows = [(file, name, unit, value_of(file, name), values) for file, name, unit, values in CONSTANTS]
    rows += [(file, name, unit, value, None) for file, name, unit, value, *_ in NUMBERS]
    named = [(f"`{name}` ({module(file)})", unit, value, [f"{file} {name}={x:g}" for x in values or (value / 2, value * 2)])
             for file, name, unit, value, values in rows]
    return named + [(f"`{path}`", unit, value, [f"{path}={x:g}" for x in values]) for path, unit, value, values in SETTINGS]
