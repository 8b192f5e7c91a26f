//! List of all settings by name, which the file, the environment, the flags and the documentation share.

use crate::listen;
use crate::policy;
use crate::presets::POLICY_NAMES;
use crate::reservation::RESERVATIONS;
use crate::shedding::{LATES, SHEDDING_FORMS};

/// One setting: its name, its flag, the kind of its values and its help text.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Field {
    /// Dotted name of the setting, as in the file: `table.key`.
    pub path: &'static str,
    /// Flag of the setting without the dashes. `None`: the setting has no flag and is set with `--set PATH=VALUE`.
    pub flag: Option<&'static str>,
    /// Type and range of the setting's values.
    pub kind: Kind,
    /// Help text of the setting, for users.
    pub help: &'static str,
}

/// Type and range of the values of a setting.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    /// A whole number from `low` to `high`, both included.
    Integer {
        /// Smallest value that the setting may have.
        low: u64,
        /// Largest value that the setting may have.
        high: u64,
    },
    /// A number from `low` to `high`, both included.
    Number {
        /// Smallest value that the setting may have.
        low: f64,
        /// Largest value that the setting may have.
        high: f64,
    },
    /// A latency target: a number above 0, `auto` or `none`.
    Target,
    /// A value that is `true` or `false`.
    Bool,
    /// One word of a list.
    Choice(&'static [&'static str]),
    /// Any text; the string describes to users what it must be.
    Text(&'static str),
    /// A list of texts. Outside the file the texts are separated by commas.
    List,
}

impl Field {
    /// Returns the name of the setting's environment variable.
    pub fn env(&self) -> String {
        format!("TIERCEL_{}", self.path.replace('.', "_").to_uppercase())
    }

    /// Returns a description of the values that the setting allows, for users.
    pub fn allowed(&self) -> String {
        match self.kind {
            Kind::Integer { low, high } => format!("a whole number from {low} to {high}"),
            Kind::Number { low, high } => format!("a number from {low} to {high}"),
            Kind::Target => "a number above 0, \"auto\" or \"none\"".into(),
            Kind::Bool => "true or false".into(),
            Kind::Choice(words) => words.join(", "),
            Kind::Text(what) => what.into(),
            Kind::List => "a list of texts".into(),
        }
    }
}

/// Returns the setting of that name.
pub fn field(path: &str) -> Option<&'static Field> {
    FIELDS.iter().find(|field| field.path == path)
}

const fn named(path: &'static str, flag: &'static str, kind: Kind, help: &'static str) -> Field {
    Field { path, flag: Some(flag), kind, help }
}

const fn other(path: &'static str, kind: Kind, help: &'static str) -> Field {
    Field { path, flag: None, kind, help }
}

const fn int(low: u64, high: u64) -> Kind {
    Kind::Integer { low, high }
}

const SOURCE: Kind = Kind::Text("a .gguf file, a Hugging Face directory, or hf:ORG/NAME[@REV]");
const DEVICE: Kind = Kind::Text("auto, cpu, cuda, cuda:N or mock:PROFILE");
const DAY_MS: u64 = 86_400_000;

/// All settings, in the order of the documentation.
#[rustfmt::skip]
pub const FIELDS: &[Field] = &[
    named("model.source", "model", SOURCE, "Model to serve. Without it: SmolLM2-135M-Instruct, fetched once."),
    named("model.served_name", "served-name", Kind::List, "Names clients use for the model; by default its own. Answers name the one that was asked for, or the first. The flag may be repeated."),
    other("model.generation_config", Kind::Bool, "Whether sampling fields that a request leaves out are what the checkpoint recommends (generation_config.json, or general.sampling of a GGUF file) instead of OpenAI's defaults."),
    named("model.weights", "weights", Kind::Choice(&["auto", "f32", "bf16", "q8_0", "native"]), "How weights are held in memory; a GPU holds bf16."),
    named("model.max_model_len", "max-model-len", int(0, 1 << 24), "Longest sequence (prompt + output), tokens; 0 takes the model's own limit."),
    named("device.kind", "device", DEVICE, "What computes: an NVIDIA GPU by its number, the CPU, or nothing (a model of a device); auto takes the first GPU if there is one."),
    named("device.threads", "threads", int(0, 1024), "Compute threads; 0 takes one per core."),
    other("device.memory_percent", int(1, 100), "Share of a GPU's free memory that weights, activations and the KV cache may take together, percent."),
    other("device.exact", Kind::Bool, "Whether a GPU computes every row as if it were alone: text is then the same bit for bit however a prompt is cut and whoever else is in the batch, and prompts are slower. The CPU always does."),
    other("device.graphs", Kind::Bool, "Whether a GPU is given decode steps as CUDA graphs, one call instead of hundreds of launches."),
    named("kv.type", "kv-type", Kind::Choice(&["f32", "f16", "bf16"]), "Element type of the KV cache; a GPU's is always bf16."),
    named("kv.cache_mib", "kv-cache-mib", int(0, 1 << 24), "Memory of the KV cache, MiB; 0 chooses by free memory."),
    named("kv.host_mib", "host-kv-mib", int(0, 1 << 24), "Memory of the host tier that preempted requests swap to, MiB; 0 for none."),
    named("kv.block_size", "block-size", int(8, 256), "Tokens per KV block; a multiple of 8."),
    named("http.listen", "listen", Kind::Text(listen::FORM), "Address to listen on; port 0 takes a free one."),
    other("http.api_keys", Kind::List, "Keys clients must send as `Authorization: Bearer KEY`; an empty list lets everyone in. `/health` and `/metrics` need none."),
    named("http.access_log", "access-log", Kind::Bool, "Whether the log has a line for each request. Refusals have theirs in any case, ten a second at most."),
    other("http.max_body_kib", int(1, 65_536), "Largest request body, KiB."),
    other("http.max_connections", int(1, 65_536), "Most open connections."),
    other("http.request_timeout_ms", int(1_000, DAY_MS), "Longest wait for a request's head, and again for its body, ms."),
    other("http.keep_alive_ms", int(1_000, DAY_MS), "How long an idle connection stays open, ms."),
    other("http.head_wait_ms", int(0, DAY_MS), "A stream's status waits so long for its first token, so that a request that is turned away after all can be told by it, ms."),
    other("http.comment_interval_ms", int(10, DAY_MS), "A stream silent for this long sends an SSE comment, ms."),
    named("http.drain_grace_ms", "drain-grace-ms", int(0, DAY_MS), "On shutdown, how long running requests may take to finish, ms."),
    named("scheduler.policy", "policy", Kind::Choice(POLICY_NAMES), "Scheduling policy: the values that the other settings of `scheduler` and `preemption` start from (`tiercel policy show NAME`)."),
    named("scheduler.max_num_seqs", "max-num-seqs", int(1, 4096), "Most sequences in one step."),
    named("scheduler.max_num_batched_tokens", "max-num-batched-tokens", int(1, 65_536), "Most tokens (decode + prefill) in one step; at least max_num_seqs."),
    other("scheduler.steps_in_flight", int(1, 2), "Most steps at the device at once, as far as it allows several (a GPU does): with two, the next is there when one ends."),
    other("scheduler.max_prefill_tokens", int(0, 65_536), "Most prompt tokens in one step, beside its decodes; 0 for what max_num_batched_tokens leaves."),
    other("scheduler.order", Kind::Choice(policy::ORDERS), "Who is served first: the first come; the better tier; the shortest predicted output; the tenant that had least service."),
    other("scheduler.batching", Kind::Choice(policy::BATCHINGS), "When requests start: whenever there is a place, or only when all that run have finished."),
    other("scheduler.mix", Kind::Choice(policy::STEP_MIXES), "What a step is made of: decodes and then prompts, or prompts alone while any can run."),
    other("scheduler.budget", Kind::Choice(policy::BUDGETS), "How many prompt tokens a step may hold: what max_num_batched_tokens leaves, or no more than the streams' TPOT targets allow either."),
    other("scheduler.chunked_prefill", Kind::Bool, "Whether a prompt may be spread over several steps although it would fit into one; if not, one longer than max_num_batched_tokens has whole steps to itself."),
    other("scheduler.chunk_alignment", int(0, 1024), "Chunks other than a prompt's last are multiples of this many tokens; 0 or 1 for any length."),
    other("scheduler.long_prefill_token_threshold", int(0, 65_536), "Most tokens of one prompt in one step; 0 means up to the step's budget."),
    other("scheduler.long_prefill_percent", Kind::Number { low: 0.0, high: 100.0 }, "The same as a share of the longest sequence, percent; 0 for none."),
    other("scheduler.max_partial_prefills", int(0, 4096), "Most prompts that a step may leave partly computed; 0 for any number."),
    other("scheduler.background_prefill_percent", int(1, 100), "Share of a step's tokens up to which it is filled with background prompts, percent: better requests in that step, or arriving meanwhile, wait for them. Not where tiers share what is left (scheduler.fair_tiers) and a better one wants some. Not if no better request came for a minute."),
    other("scheduler.prefill_order", Kind::Choice(policy::PREFILL_ORDERS), "Order in which prompts of one tier share a step: as they are served, by when their first token is due, or the shortest rest first."),
    other("scheduler.fair_tenants", Kind::Bool, "Whether tenants (API keys) of one tier take turns by the service they had; with scheduler.order = \"tier\"."),
    other("scheduler.fair_tiers", Kind::Bool, "Whether requests without targets for TTFT and TPOT share the time that requests with targets leave, each tier as `shares` says, instead of the best tier having all of it; with scheduler.order = \"tier\"."),
    other("scheduler.pause_background", Kind::Bool, "Whether background streams sit a step out, blocks and all, when a better stream's target cannot afford them."),
    other("scheduler.allocation", Kind::Choice(policy::ALLOCATIONS), "Blocks given to a request when it starts: what its next step needs, or what its prompt and longest output would need."),
    other("scheduler.full_sequence_check", Kind::Bool, "Whether a request starts only if all it has to compute would fit."),
    other("scheduler.watermark_percent", Kind::Number { low: 0.0, high: 50.0 }, "Share of KV blocks kept free when a sequence starts, for running ones to grow, percent."),
    other("scheduler.background_watermark_percent", Kind::Number { low: 0.0, high: 50.0 }, "The same for background sequences, if it is more, percent."),
    other("scheduler.ageing_s", Kind::Number { low: 0.0, high: 86_400.0 }, "After waiting so long, and again after as long, a request counts as one tier better, s; 0: never."),
    other("scheduler.ageing_cap", Kind::Choice(policy::AGEING_CAPS), "As what a request counts at best by waiting."),
    named("preemption.mode", "preemption-mode", Kind::Choice(policy::PREEMPTION_MODES), "What happens to a preempted request's KV blocks. With auto, what the host tier has is computed instead of copied in, for any request, where that is done sooner."),
    other("preemption.to_start", Kind::Choice(policy::TO_STARTS), "For whom requests are preempted so that another one starts: nobody, or a better tier. (To grow, a running one may always take blocks from worse ones.)"),
    other("preemption.victim", Kind::Choice(policy::VICTIM_RULES), "Who gives way first; the rules without a tier in them look at all tiers alike."),
    other("preemption.victim_gives", Kind::Choice(policy::VICTIM_GIVES), "What a victim gives up: all its blocks, all but those that others use too, or its last ones, as many as are needed. What it keeps it gives up later if others need it while it waits."),
    other("preemption.victim_gives_blocks", int(1, 65_536), "A victim that gives up what is needed gives up multiples of so many blocks."),
    other("preemption.premium_yields", Kind::Bool, "Whether premium requests give way to other premium requests. (The best-ranked request may always take anybody's blocks to grow.)"),
    other("preemption.background_takes", Kind::Bool, "Whether background requests may take blocks from each other. (The best-ranked always may.)"),
    other("preemption.min_tokens", int(0, 65_536), "A request gives way only after this many tokens since its prompt was computed or it resumed."),
    other("preemption.delay_ms", int(0, 600_000), "A request that waits to start takes no blocks before it has waited this long, ms."),
    other("preemption.max_per_request", int(0, 1_000_000), "Preemptions of one request after which at_limit applies."),
    other("preemption.at_limit", Kind::Choice(policy::AT_LIMITS), "What then happens: it goes last among victims, and only the first in line may take its blocks to start and only better-ranked requests to grow; the same, and it counts as the best of its tier; it ends with an error."),
    other("preemption.resume", Kind::Choice(policy::RESUME_ORDERS), "Where a preempted request waits: by its rank, or before or after all of its tier that have not started."),
    other("preemption.resume_from", Kind::Choice(policy::RESUME_FROM), "What a preempted request may find when it resumes: whatever both tiers have of its text, or only what was kept and copied out for it."),
    other("preemption.mirror_percent", int(0, 100), "Share of the link that copies full blocks of preemptible requests to the host ahead of need, percent; 0 for none."),
    other("preemption.max_in_transit_mib", int(1, 65_536), "Most bytes in transit between the tiers at once, MiB."),
    other("shedding.form", Kind::Choice(SHEDDING_FORMS), "Who is refused when it comes: whoever would come too late (shedding.late); or instead, under load, at random, the more the further its tier is above its share of the device's time, but never premium, nor whoever comes back when it was told to."),
    other("shedding.load_percent", Kind::Number { low: 10.0, high: 100.0 }, "With shedding.form = \"share\": places in a step or KV blocks in use, whichever is more, from which on requests are refused, percent; until it is 10 less."),
    other("shedding.late", Kind::Choice(LATES), "What becomes of a standard request that cannot have its first token in time: it waits as if nothing was; it is served after those that can be in time; it is turned away when it comes (or, if its lateness shows later, served after the others)."),
    other("patience.premium_s", Kind::Number { low: 0.0, high: 86_400.0 }, "Premium: a request waits so long for its first token and is then turned away (429), or at once if it would wait longer, s; 0: for ever. Requests may state their own: `max_wait_ms`, `x-tiercel-max-wait-ms`."),
    other("patience.standard_s", Kind::Number { low: 0.0, high: 86_400.0 }, "Standard: the same, s."),
    other("patience.background_s", Kind::Number { low: 0.0, high: 86_400.0 }, "Background: the same, s."),
    other("shares.premium_percent", Kind::Number { low: 1.0, high: 98.0 }, "Premium's share of the device's time where tiers share it: see scheduler.fair_tiers and shedding.form, percent. All three together are 100."),
    other("shares.standard_percent", Kind::Number { low: 1.0, high: 98.0 }, "The same for standard, percent."),
    other("shares.background_percent", Kind::Number { low: 1.0, high: 98.0 }, "The same for background, percent."),
    other("prefix_cache.enabled", Kind::Bool, "Whether requests of one tenant share the KV blocks of equal prefixes."),
    other("admission.max_requests", int(1, 100_000), "Most requests in the engine, waiting and running. The last eighth is kept for premium, the eighth before it from background."),
    other("admission.max_queued_requests_per_tier", int(1, 100_000), "Most requests of one tier waiting for their first token."),
    other("admission.max_queued_tokens_per_tier", int(1, 1 << 40), "Most prompt tokens of one tier waiting for their first token."),
    other("slo.premium.ttft_ms", Kind::Target, "Premium: time to first token, ms; auto derives it from the speed that the device has at start (docs/operator.md)."),
    other("slo.premium.tpot_ms", Kind::Target, "Premium: mean time per output token after the first, ms; auto derives it from the speed that the device has at start (docs/operator.md)."),
    other("slo.premium.e2e_ms", Kind::Target, "Premium: arrival to last token, ms; auto derives it from the speed that the device has at start (docs/operator.md)."),
    other("slo.premium.ttft_ms_per_token", Kind::Number { low: 0.0, high: 1_000.0 }, "Premium: added to a stated ttft_ms for every prompt token beyond ttft_prompt_tokens, ms."),
    other("slo.premium.ttft_prompt_tokens", int(0, 1 << 24), "Premium: prompt tokens that a stated ttft_ms covers."),
    other("slo.premium.assurance", Kind::Number { low: 0.9, high: 0.9999 }, "Premium: how sure its streams shall be of their pace: share of the steps in which the reserve that they build up covers what premium prompts take from them. More costs worse tiers time (docs/simulation.md, \"The dial\")."),
    other("slo.standard.ttft_ms", Kind::Target, "Standard: time to first token, ms; auto derives it from the speed that the device has at start (docs/operator.md)."),
    other("slo.standard.tpot_ms", Kind::Target, "Standard: mean time per output token after the first, ms; auto derives it from the speed that the device has at start (docs/operator.md)."),
    other("slo.standard.e2e_ms", Kind::Target, "Standard: arrival to last token, ms; auto derives it from the speed that the device has at start (docs/operator.md)."),
    other("slo.standard.ttft_ms_per_token", Kind::Number { low: 0.0, high: 1_000.0 }, "Standard: added to a stated ttft_ms for every prompt token beyond ttft_prompt_tokens, ms."),
    other("slo.standard.ttft_prompt_tokens", int(0, 1 << 24), "Standard: prompt tokens that a stated ttft_ms covers."),
    other("slo.background.ttft_ms", Kind::Target, "Background: time to first token, ms; auto derives it from the speed that the device has at start (docs/operator.md)."),
    other("slo.background.tpot_ms", Kind::Target, "Background: mean time per output token after the first, ms; auto derives it from the speed that the device has at start (docs/operator.md)."),
    other("slo.background.e2e_ms", Kind::Target, "Background: arrival to last token, ms; auto derives it from the speed that the device has at start (docs/operator.md)."),
    other("slo.background.ttft_ms_per_token", Kind::Number { low: 0.0, high: 1_000.0 }, "Background: added to a stated ttft_ms for every prompt token beyond ttft_prompt_tokens, ms."),
    other("slo.background.ttft_prompt_tokens", int(0, 1 << 24), "Background: prompt tokens that a stated ttft_ms covers."),
    other("slo.window_s", int(1, 3_600), "Length of the sliding windows the targets are judged over, s."),
    other("slo.max_tenants", int(0, 256), "Most pairs of tenant and tier that are watched by themselves, as metrics with the label tenant; 0 for none. Needs http.api_keys. Those that come when so many were active lately count for their tier alone."),
    other("slo.requests_may_tighten", Kind::Bool, "Whether requests may ask for more than their tier promises. All in a step pay for the tightest target in it, so only for trusted clients."),
    other("reservation.kind", Kind::Choice(RESERVATIONS), "What other tiers may do with what is kept for one while it does not use it: nothing, or use what they can give back at once (places, and blocks as far as the host tier has copies of theirs: see preemption.mirror_percent)."),
    other("reservation.premium_blocks_percent", Kind::Number { low: 0.0, high: 90.0 }, "Share of the KV blocks that is kept for premium, percent. All reservations together leave at least a tenth."),
    other("reservation.standard_blocks_percent", Kind::Number { low: 0.0, high: 90.0 }, "The same for standard, percent."),
    other("reservation.premium_slots_percent", Kind::Number { low: 0.0, high: 90.0 }, "Share of scheduler.max_num_seqs that is kept for premium, percent."),
    other("reservation.standard_slots_percent", Kind::Number { low: 0.0, high: 90.0 }, "The same for standard, percent."),
    other("pressure.blocks_warning_percent", Kind::Number { low: 10.0, high: 100.0 }, "KV blocks of the device in use from which on that is a warning, percent. A level is left after 5 s at 5 percent below."),
    other("pressure.blocks_critical_percent", Kind::Number { low: 10.0, high: 100.0 }, "The same for critical, percent."),
    other("pressure.warning_percent", Kind::Number { low: 10.0, high: 100.0 }, "Places in a step, host blocks, blocks being copied and tokens buffered for clients from which on that is a warning, percent of each."),
    other("pressure.critical_percent", Kind::Number { low: 10.0, high: 100.0 }, "The same for critical, percent."),
    other("stream.buffer_tokens", int(16, 65_536), "Tokens buffered for a client that reads slowly; its request pauses when nearly full."),
    other("stream.stall_timeout_ms", int(100, DAY_MS), "A request whose client reads nothing for this long ends, ms."),
];
