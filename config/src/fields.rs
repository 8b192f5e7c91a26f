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
    named("model.source", "model", SOURCE, "Model to serve: a .gguf file, a Hugging Face directory or hf:ORG/NAME[@REV]. Without this setting: SmolLM2-135M-Instruct, downloaded at the first start."),
    named("model.served_name", "served-name", Kind::List, "Names that clients may use for the model; by default the name of its source. An answer repeats the name that the request used, or has the first name if the request used none. The flag may be repeated."),
    other("model.generation_config", Kind::Bool, "Whether sampling parameters that a request leaves out are taken from the checkpoint (generation_config.json, or general.sampling of a GGUF file) instead of from OpenAI's defaults."),
    named("model.weights", "weights", Kind::Choice(&["auto", "f32", "bf16", "q8_0", "native"]), "Form in which weights are held in memory. native: as in the model's file; auto: the fastest form that keeps the file's quality. A GPU holds bf16."),
    named("model.max_model_len", "max-model-len", int(0, 1 << 24), "Longest sequence (prompt + output), tokens; 0 takes the model's own limit. A small KV cache may shorten it."),
    named("device.kind", "device", DEVICE, "Device that computes: the CPU (cpu), an NVIDIA GPU (cuda, or cuda:N by its number), or a mock device that returns made-up text (mock:PROFILE). auto takes the first GPU that can be used, otherwise the CPU."),
    named("device.threads", "threads", int(0, 1024), "Number of CPU threads that compute; 0 takes one per core."),
    other("device.memory_percent", int(1, 100), "Share of a GPU's free memory that weights, activations and the KV cache may take together, percent."),
    other("device.exact", Kind::Bool, "Whether a GPU computes every row of a batch as if the row were alone. Output is then bit for bit independent of how a prompt is cut into chunks and of other sequences in the batch, and prompts are slower. The CPU always computes like that."),
    other("device.graphs", Kind::Bool, "Whether a GPU runs decode steps as CUDA graphs: one call of the driver instead of hundreds of kernel launches."),
    named("kv.type", "kv-type", Kind::Choice(&["f32", "f16", "bf16"]), "Element type of the KV cache on the CPU. On a GPU the type is always bf16."),
    named("kv.cache_mib", "kv-cache-mib", int(0, 1 << 24), "Size of the KV cache on the device, MiB; 0 chooses it by the free memory."),
    named("kv.host_mib", "host-kv-mib", int(0, 1 << 24), "Size of the host pool, the host memory that blocks of preempted requests are swapped to, MiB; 0 for no host pool."),
    named("kv.block_size", "block-size", int(8, 256), "Tokens per KV block; a multiple of 8."),
    named("http.listen", "listen", Kind::Text(listen::FORM), "Address that the server listens on; port 0 takes a free port."),
    other("http.api_keys", Kind::List, "API keys, of which a client must send one as `Authorization: Bearer KEY`. An empty list lets every client in. `/health` and `/metrics` need no key."),
    named("http.access_log", "access-log", Kind::Bool, "Whether the log has a line for each request. Refused requests are logged in any case, at most ten lines a second."),
    other("http.max_body_kib", int(1, 65_536), "Largest body of an HTTP request, KiB."),
    other("http.max_connections", int(1, 65_536), "Most open HTTP connections."),
    other("http.request_timeout_ms", int(1_000, DAY_MS), "Longest wait for the head of an HTTP request, and again for its body, ms."),
    other("http.keep_alive_ms", int(1_000, DAY_MS), "Time that an idle HTTP connection stays open, ms."),
    other("http.head_wait_ms", int(0, DAY_MS), "Longest time that the HTTP status of a response stream is held back until its first token, ms. Until then the status can still say that the request is turned away."),
    other("http.comment_interval_ms", int(10, DAY_MS), "Time without output after which a response stream sends an SSE comment, ms."),
    named("http.drain_grace_ms", "drain-grace-ms", int(0, DAY_MS), "Longest time that running requests may take to finish on shutdown, ms."),
    named("scheduler.policy", "policy", Kind::Choice(POLICY_NAMES), "Scheduling policy: a named set of values for the settings of `scheduler`, `preemption` and `shedding`, each of which can be overridden. `tiercel policy show NAME` prints them."),
    named("scheduler.max_num_seqs", "max-num-seqs", int(1, 4096), "Most sequences in one step: its number of slots."),
    named("scheduler.max_num_batched_tokens", "max-num-batched-tokens", int(1, 65_536), "Most tokens (decode + prefill) in one step; at least scheduler.max_num_seqs."),
    other("scheduler.steps_in_flight", int(1, 2), "Most steps that are at the device at once, if the device allows several (a GPU does). With 2, the device starts the next step without waiting for the host."),
    other("scheduler.max_prefill_tokens", int(0, 65_536), "Most prompt tokens in one step, beside its decodes; 0 for as many as scheduler.max_num_batched_tokens leaves."),
    other("scheduler.order", Kind::Choice(policy::ORDERS), "Order in which requests are served. arrival: first come, first served; tier: by tier, then priority, then arrival; shortest: the shortest predicted output first; fair: the tenant with the least usage first, whatever the tier."),
    other("scheduler.batching", Kind::Choice(policy::BATCHINGS), "When waiting requests start: whenever a slot is free (continuous), or only when all running requests have finished (static)."),
    other("scheduler.mix", Kind::Choice(policy::STEP_MIXES), "What a step holds: decodes, then prompts (mixed), or prompts alone while any prompt can run (prompts-alone)."),
    other("scheduler.budget", Kind::Choice(policy::BUDGETS), "How many prompt tokens a step may hold: as many as scheduler.max_num_batched_tokens leaves (fixed), or also no more than the TPOT targets of the streams allow (slack)."),
    other("scheduler.chunked_prefill", Kind::Bool, "Whether a prompt may be spread over several steps although it would fit into one. If false, a prompt longer than scheduler.max_num_batched_tokens is the only prompt in each of its steps."),
    other("scheduler.chunk_alignment", int(0, 1024), "Unit of chunk lengths, tokens: each chunk of a prompt but the last is a multiple of it; 0 or 1 for any length."),
    other("scheduler.long_prefill_token_threshold", int(0, 65_536), "Most tokens of one prompt in one step; 0 for as many as the step may hold."),
    other("scheduler.long_prefill_percent", Kind::Number { low: 0.0, high: 100.0 }, "Most tokens of one prompt in one step, as a share of the longest possible sequence, percent; 0 for no such limit."),
    other("scheduler.max_partial_prefills", int(0, 4096), "Most prompts that a step may leave partly computed; 0 for any number."),
    other("scheduler.background_prefill_percent", int(1, 100), "Background prompts fill a step only up to this share of scheduler.max_num_batched_tokens, percent, so that steps stay short for higher tiers. No limit if no request of a higher tier came for a minute, or while best-effort prompts of several tiers share the step (scheduler.fair_tiers)."),
    other("scheduler.prefill_order", Kind::Choice(policy::PREFILL_ORDERS), "Order in which prompts of one tier share a step: by rank, by the deadline of the first token, or the prompt with the fewest tokens left to compute first (shortest)."),
    other("scheduler.fair_tenants", Kind::Bool, "Whether the tenants (API keys) of one tier are served by a fair queue: a tenant with less usage goes first. Only with scheduler.order = \"tier\"."),
    other("scheduler.fair_tiers", Kind::Bool, "Whether best-effort requests (with neither a TTFT nor a TPOT target) share the device time that other requests leave, each tier as `shares` says, instead of the highest tier having all of it. Only with scheduler.order = \"tier\"."),
    other("scheduler.pause_background", Kind::Bool, "Whether background streams are paused for a step, keeping their blocks, when a stream of a higher tier would miss its TPOT target with them in the step."),
    other("scheduler.allocation", Kind::Choice(policy::ALLOCATIONS), "KV blocks that a request gets when it starts: those that its next step needs (on-demand), or those that its prompt and its longest output would need (up-front)."),
    other("scheduler.full_sequence_check", Kind::Bool, "Whether a request starts only if the device has KV blocks for all tokens that the request has to compute, not only for its next step."),
    other("scheduler.watermark_percent", Kind::Number { low: 0.0, high: 50.0 }, "Watermark: share of the KV blocks that must stay free after a request starts or resumes, percent. Running requests may use these blocks to grow."),
    other("scheduler.background_watermark_percent", Kind::Number { low: 0.0, high: 50.0 }, "Watermark for background requests: share of the KV blocks that must stay free after one starts or resumes, percent. Effective if larger than scheduler.watermark_percent."),
    other("scheduler.ageing_s", Kind::Number { low: 0.0, high: 86_400.0 }, "Waiting time after which a request gains a tier, and again after each further such time, s; 0: never."),
    other("scheduler.ageing_cap", Kind::Choice(policy::AGEING_CAPS), "Highest tier that a waiting request can gain by ageing (scheduler.ageing_s)."),
    named("preemption.mode", "preemption-mode", Kind::Choice(policy::PREEMPTION_MODES), "What happens to a preempted request's KV blocks. swap: copied to the host pool; recompute: discarded and computed again; drop: the request ends with an error; auto: swap or recompute, whichever costs less. With auto, a request computes blocks that it finds in the host pool where that is faster than copying them in."),
    other("preemption.to_start", Kind::Choice(policy::TO_STARTS), "Whether a waiting request may preempt others to start: never, or those of lower tiers (lower-tier). To grow, a running request may always take blocks from lower tiers."),
    other("preemption.victim", Kind::Choice(policy::VICTIM_RULES), "Rule that chooses which request is preempted first. latest-arrival and reverse-fifo (the last to start or resume) look at all tiers alike; all other rules take the lowest tier first."),
    other("preemption.victim_gives", Kind::Choice(policy::VICTIM_GIVES), "KV blocks that a victim gives up: all its blocks, all that no other request uses too (unshared), or as many of its last ones as are needed (needed). Blocks that it retains are taken later if other requests need them while it waits."),
    other("preemption.victim_gives_blocks", int(1, 65_536), "With preemption.victim_gives = \"needed\": a victim gives up a multiple of this many blocks."),
    other("preemption.premium_yields", Kind::Bool, "Whether premium requests may be preempted for other premium requests. (The request that is first in rank may always take blocks from any other to grow.)"),
    other("preemption.background_takes", Kind::Bool, "Whether background requests may take blocks from each other to grow. (The request that is first in rank always may.)"),
    other("preemption.min_tokens", int(0, 65_536), "Fewest tokens that a request produces after its prefill, or after it resumed, before it may be preempted."),
    other("preemption.delay_ms", int(0, 600_000), "Time that a request must have waited before it may preempt others to start, ms."),
    other("preemption.max_per_request", int(0, 1_000_000), "Preemptions of one request after which preemption.at_limit applies."),
    other("preemption.at_limit", Kind::Choice(policy::AT_LIMITS), "Treatment of a request that was preempted preemption.max_per_request times. spare: it is preempted only after all others, and only by the request first in rank (to start) or by requests before it in rank (to grow); promote: as spare, and it goes first of its tier; drop: the next preemption ends it with an error."),
    other("preemption.resume", Kind::Choice(policy::RESUME_ORDERS), "Place at which a preempted request waits: at its rank, or before (first) or after (last) all requests of its tier that have not started."),
    other("preemption.resume_from", Kind::Choice(policy::RESUME_FROM), "KV blocks that a preempted request may reuse when it resumes: all blocks of its text in the device pool and the host pool (cache), or only those that it retained or that were copied out for it (own-copies)."),
    other("preemption.mirror_percent", int(0, 100), "Mirroring: share of the link that copies full blocks of preemptible requests to the host pool ahead of need, percent; 0 for no mirroring."),
    other("preemption.max_in_transit_mib", int(1, 65_536), "Most bytes in transit between the device pool and the host pool at once, MiB."),
    other("shedding.form", Kind::Choice(SHEDDING_FORMS), "Rule that decides which requests are refused. forecast: those whose first token would be late (see shedding.late). share: under load, requests at random, the more the further their tier's usage is above its share of the device's time, but never premium, nor clients that come back when told to."),
    other("shedding.load_percent", Kind::Number { low: 10.0, high: 100.0 }, "With shedding.form = \"share\": load from which requests are refused, percent. The load is the share of slots or of KV blocks in use, whichever is larger. Refusing ends 10 percentage points lower."),
    other("shedding.late", Kind::Choice(LATES), "Treatment of a standard request that cannot have its first token in time. wait: as a request in time; best-effort: served after standard requests in time; refuse: refused on arrival, or served as under best-effort if the lateness shows only later."),
    other("patience.premium_s", Kind::Number { low: 0.0, high: 86_400.0 }, "Premium: longest wait of a request for its first token before it is turned away (429), s; 0: for ever. A request may state its own patience (`max_wait_ms`, `x-tiercel-max-wait-ms`)."),
    other("patience.standard_s", Kind::Number { low: 0.0, high: 86_400.0 }, "Standard: longest wait of a request for its first token before it is turned away (429), s; 0: for ever."),
    other("patience.background_s", Kind::Number { low: 0.0, high: 86_400.0 }, "Background: longest wait of a request for its first token before it is turned away (429), s; 0: for ever."),
    other("shares.premium_percent", Kind::Number { low: 1.0, high: 98.0 }, "Premium's share of the device's time where tiers share it (scheduler.fair_tiers, shedding.form), percent. The shares of the three tiers add up to 100."),
    other("shares.standard_percent", Kind::Number { low: 1.0, high: 98.0 }, "Standard's share of the device's time where tiers share it (scheduler.fair_tiers, shedding.form), percent. The shares of the three tiers add up to 100."),
    other("shares.background_percent", Kind::Number { low: 1.0, high: 98.0 }, "Background's share of the device's time where tiers share it (scheduler.fair_tiers, shedding.form), percent. The shares of the three tiers add up to 100."),
    other("prefix_cache.enabled", Kind::Bool, "Whether requests of one tenant share the KV blocks of equal prefixes of their prompts."),
    other("admission.max_requests", int(1, 100_000), "Most requests in the engine, waiting and running. The last eighth is reserved for premium, the eighth before it for premium and standard."),
    other("admission.max_queued_requests_per_tier", int(1, 100_000), "Most requests of one tier that may wait for their first token; further ones are refused."),
    other("admission.max_queued_tokens_per_tier", int(1, 1 << 40), "Most prompt tokens that the requests of one tier waiting for their first token may have; further requests are refused."),
    other("slo.premium.ttft_ms", Kind::Target, "Premium: target of the time to first token (TTFT), ms; auto derives it from the measured speed of the device (docs/operator.md)."),
    other("slo.premium.tpot_ms", Kind::Target, "Premium: target of the mean time per output token after the first (TPOT), ms; auto derives it from the measured speed of the device (docs/operator.md)."),
    other("slo.premium.e2e_ms", Kind::Target, "Premium: target of the time from arrival to last token (E2E), ms; auto derives it from the measured speed of the device (docs/operator.md)."),
    other("slo.premium.ttft_ms_per_token", Kind::Number { low: 0.0, high: 1_000.0 }, "Premium: time that is added to ttft_ms (if it is a number, not auto) for each prompt token beyond ttft_prompt_tokens, ms."),
    other("slo.premium.ttft_prompt_tokens", int(0, 1 << 24), "Premium: prompt tokens that ttft_ms covers (if it is a number, not auto); each further one adds ttft_ms_per_token."),
    other("slo.premium.assurance", Kind::Number { low: 0.9, high: 0.9999 }, "Premium: share of the steps in which the reserve of premium streams covers the time that premium prompts take from these streams. More costs lower tiers time (docs/simulation.md, \"The dial\")."),
    other("slo.standard.ttft_ms", Kind::Target, "Standard: target of the time to first token (TTFT), ms; auto derives it from the measured speed of the device (docs/operator.md)."),
    other("slo.standard.tpot_ms", Kind::Target, "Standard: target of the mean time per output token after the first (TPOT), ms; auto derives it from the measured speed of the device (docs/operator.md)."),
    other("slo.standard.e2e_ms", Kind::Target, "Standard: target of the time from arrival to last token (E2E), ms; auto derives it from the measured speed of the device (docs/operator.md)."),
    other("slo.standard.ttft_ms_per_token", Kind::Number { low: 0.0, high: 1_000.0 }, "Standard: time that is added to ttft_ms (if it is a number, not auto) for each prompt token beyond ttft_prompt_tokens, ms."),
    other("slo.standard.ttft_prompt_tokens", int(0, 1 << 24), "Standard: prompt tokens that ttft_ms covers (if it is a number, not auto); each further one adds ttft_ms_per_token."),
    other("slo.background.ttft_ms", Kind::Target, "Background: target of the time to first token (TTFT), ms; auto derives it from the measured speed of the device (docs/operator.md)."),
    other("slo.background.tpot_ms", Kind::Target, "Background: target of the mean time per output token after the first (TPOT), ms; auto derives it from the measured speed of the device (docs/operator.md)."),
    other("slo.background.e2e_ms", Kind::Target, "Background: target of the time from arrival to last token (E2E), ms; auto derives it from the measured speed of the device (docs/operator.md)."),
    other("slo.background.ttft_ms_per_token", Kind::Number { low: 0.0, high: 1_000.0 }, "Background: time that is added to ttft_ms (if it is a number, not auto) for each prompt token beyond ttft_prompt_tokens, ms."),
    other("slo.background.ttft_prompt_tokens", int(0, 1 << 24), "Background: prompt tokens that ttft_ms covers (if it is a number, not auto); each further one adds ttft_ms_per_token."),
    other("slo.window_s", int(1, 3_600), "Length of the sliding windows in which latencies are compared with targets, s."),
    other("slo.max_tenants", int(0, 256), "Most pairs of tenant and tier that have metrics of their own (label tenant); 0 for none. Needs http.api_keys. While so many pairs are active, further ones count only in the metrics of their tier."),
    other("slo.requests_may_tighten", Kind::Bool, "Whether a request may state tighter targets than those of its tier. The tightest target in a step limits the step for all its sequences, so allow this to trusted clients only."),
    other("reservation.kind", Kind::Choice(RESERVATIONS), "Whether other tiers may use the slots and KV blocks that are reserved for a tier while it does not need them. hard: no. lent: as far as they can give them back at once, which is all slots, and blocks as far as the host pool has copies (see preemption.mirror_percent)."),
    other("reservation.premium_blocks_percent", Kind::Number { low: 0.0, high: 90.0 }, "Share of the KV blocks that is reserved for premium, percent. Premium and standard together: at most 90."),
    other("reservation.standard_blocks_percent", Kind::Number { low: 0.0, high: 90.0 }, "Share of the KV blocks that is reserved for standard, percent. Premium and standard together: at most 90."),
    other("reservation.premium_slots_percent", Kind::Number { low: 0.0, high: 90.0 }, "Share of the slots (scheduler.max_num_seqs) that is reserved for premium, percent. Premium and standard together: at most 90."),
    other("reservation.standard_slots_percent", Kind::Number { low: 0.0, high: 90.0 }, "Share of the slots (scheduler.max_num_seqs) that is reserved for standard, percent. Premium and standard together: at most 90."),
    other("pressure.blocks_warning_percent", Kind::Number { low: 10.0, high: 100.0 }, "Share of the device's KV blocks in use from which the pressure level is warning, percent. The level ends after 5 s at more than 5 percentage points below."),
    other("pressure.blocks_critical_percent", Kind::Number { low: 10.0, high: 100.0 }, "Share of the device's KV blocks in use from which the pressure level is critical, percent. The level ends after 5 s at more than 5 percentage points below."),
    other("pressure.warning_percent", Kind::Number { low: 10.0, high: 100.0 }, "Share in use from which the pressure level is warning, percent, for each of: slots of a step, host blocks, blocks being copied, tokens buffered for clients."),
    other("pressure.critical_percent", Kind::Number { low: 10.0, high: 100.0 }, "Share in use from which the pressure level is critical, percent, for each of: slots of a step, host blocks, blocks being copied, tokens buffered for clients."),
    other("stream.buffer_tokens", int(16, 65_536), "Size of a response stream's buffer, tokens. While a client reads so slowly that the buffer is nearly full, its request is held."),
    other("stream.stall_timeout_ms", int(100, DAY_MS), "Time after which a request ends if its client reads nothing, ms."),
];
