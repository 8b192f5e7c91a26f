//! One live sequence in the scheduler: its tokens, its KV state, how it is to be served, and its phase.

pub(crate) mod kv;
pub(crate) mod new;
pub(crate) mod service;
pub(crate) mod text;

use crate::accounting::AccountId;
use crate::protocol::Progress;
use crate::scheduler::outcome::Usage;
use crate::scheduler::pipeline::progress::InFlightProgress;
use crate::scheduler::queue::fair_queue::FairTag;
use crate::scheduler::queue::priority_key::PriorityKey;
use crate::scheduler::sequence::kv::Kv;
use crate::scheduler::sequence::service::Service;
use crate::scheduler::sequence::text::Text;
use std::sync::Arc;
use tiercel_config::SloTargets;
use tiercel_device::{SeqId, SeqStart, StepId, Ticket, Tier, Timestamp, TokenId};

pub use crate::scheduler::sequence::new::{Hold, NewSequence, Phase};

/// Result of giving a waiting sequence its blocks, for the counters of cached and recomputed tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Opened {
    /// First start of the sequence: `hit` of its `prompt` prompt tokens were found in the prefix cache.
    First { prompt: u32, hit: u32 },
    /// Resume after a preemption: `recompute` tokens that had valid KV before must be computed again.
    Again { recompute: u32 },
}

/// A live sequence in the scheduler.
#[derive(Debug)]
pub(crate) struct Sequence {
    pub(crate) id: SeqId,
    pub(crate) tier: Tier,
    pub(crate) arrival: Timestamp,
    pub(crate) phase: Phase,
    pub(crate) text: Text,
    pub(crate) kv: Kv,
    pub(crate) service: Service,
    /// Whether the sequence is on hold because an operator paused the request.
    pub(crate) held_by_operator: bool,
    /// Whether the sequence is on hold because its client reads too slowly.
    pub(crate) held_by_stream: bool,
    /// Whether the sequence has been on hold, or has moved to another tier: its latencies then say nothing about the
    /// schedule.
    pub(crate) disturbed: bool,
    pub(crate) preemptions: u32,
    pub(crate) first_token_at: Option<Timestamp>,
    /// Step that sampled the first output token.
    pub(crate) first_token_step: Option<StepId>,
    pub(crate) last_token_at: Option<Timestamp>,
    /// Whether the device keeps sampler state for the sequence.
    pub(crate) on_device: bool,
}

impl Sequence {
    /// Creates a new sequence in phase waiting.
    pub(crate) fn new(new: NewSequence, block_size: u32) -> Sequence {
        let mut text = Text {
            tokens: new.prompt.to_vec(),
            prompt: new.prompt,
            max_tokens: new.max_tokens,
            stop_tokens: new.stop_tokens,
            sampling: new.sampling,
            salt: new.salt,
            hashes: Vec::new(),
            registered: 0,
        };
        text.name_full_blocks(block_size);
        Sequence {
            id: new.seq,
            tier: new.tier,
            arrival: new.arrival,
            phase: Phase::Waiting,
            text,
            kv: Kv::default(),
            service: Service {
                priority: new.priority,
                tenant: new.salt,
                account: AccountId::default(),
                weight: new.weight,
                stated_targets: new.targets,
                may_tighten: new.may_tighten,
                targets: new.targets,
                patience: new.patience,
                has_retry_credit: new.has_retry_credit,
                key: PriorityKey::UNPLACED,
                ages_at: None,
                deadline: None,
                late: false,
                best_effort: false,
                tier_charge: None,
                predicted_tokens: 0.0,
                token_tag: 0.0,
                tenant_tag: FairTag::default(),
            },
            held_by_operator: false,
            held_by_stream: false,
            disturbed: false,
            preemptions: 0,
            first_token_at: None,
            first_token_step: None,
            last_token_at: None,
            on_device: false,
        }
    }

    /// Returns the number of known tokens: prompt, and output so far.
    pub(crate) fn len(&self) -> u32 {
        self.text.len()
    }

    /// Returns the number of prompt tokens.
    pub(crate) fn prompt_len(&self) -> u32 {
        self.text.prompt_len()
    }

    /// Returns the largest number of tokens that prompt and output together can have.
    pub(crate) fn longest(&self) -> u32 {
        self.text.longest()
    }

    /// Returns the number of output tokens so far.
    pub(crate) fn output_len(&self) -> u32 {
        self.len() - self.prompt_len()
    }

    /// Returns the number of the sequence's known tokens, plus the number of its tokens that steps in flight are
    /// sampling.
    pub(crate) fn planned_len(&self) -> u32 {
        self.len() + self.kv.in_flight.sampled()
    }

    /// Returns the number of tokens whose KV is valid once the steps in flight have succeeded.
    pub(crate) fn planned_computed(&self) -> u32 {
        self.kv.in_flight.computed(self.kv.computed)
    }

    /// Returns the number of output tokens so far, plus those that steps in flight are sampling.
    pub(crate) fn planned_output(&self) -> u32 {
        self.planned_len() - self.prompt_len()
    }

    /// Returns the largest number of output tokens that may still come after those that steps in flight are sampling.
    pub(crate) fn output_left(&self) -> u32 {
        self.text.max_tokens.saturating_sub(self.planned_output())
    }

    /// Returns the number of prompt tokens that have had valid KV: computed, or found in the prefix cache. Tokens whose
    /// KV a preemption took count.
    pub(crate) fn prompt_computed(&self) -> u32 {
        let prompt = self.prompt_len();
        if self.first_token_at.is_some() {
            return prompt;
        }
        self.kv.computed.max(self.kv.computed_before).min(prompt)
    }

    /// Returns the number of tokens that are left to compute after the steps in flight, at least 1. Tokens in blocks
    /// retained on the device need not be computed again. If a preemption saved any block on the host, all tokens that
    /// had valid KV are taken to be saved.
    pub(crate) fn left_to_compute(&self) -> u32 {
        let saved = if self.kv.saved { self.kv.computed_before } else { self.kv.retained_tokens };
        (self.planned_len() - self.planned_computed().max(saved)).max(1)
    }

    /// Returns the number of output tokens since the sequence last got its blocks (start or resume).
    pub(crate) fn tokens_since_open(&self) -> u32 {
        self.len().saturating_sub(self.kv.len_at_open)
    }

    pub(crate) fn ticket(&self) -> Ticket {
        Ticket { seq: self.id, epoch: self.kv.epoch }
    }

    /// Whether the sequence is on hold: an operator paused it, or its client reads too slowly.
    pub(crate) fn held(&self) -> bool {
        self.held_by_operator || self.held_by_stream
    }

    /// Returns the party that the sequence counts in: its tier, and its account.
    pub(crate) fn party(&self) -> (Tier, AccountId) {
        (self.tier, self.service.account)
    }

    /// Whether the sequence waits for its first token and is not on hold.
    pub(crate) fn in_line(&self) -> bool {
        self.first_token_at.is_none() && !self.held()
    }

    /// Whether exactly one token is left to compute after the steps in flight: the sequence is a stream, or a prompt
    /// whose last token is left.
    pub(crate) fn one_token_left(&self) -> bool {
        self.planned_computed() + 1 == self.planned_len()
    }

    /// Whether the next step may include the sequence: it runs, is not on hold, and a step in flight is not sampling
    /// its last token.
    pub(crate) fn runnable(&self, max_model_len: u32) -> bool {
        let ends = !self.kv.in_flight.is_empty() && self.ends_at(self.planned_len(), max_model_len);
        self.phase == Phase::Running && !self.held() && !ends
    }

    /// Returns the effective tier before ageing: background for a best-effort sequence, its own tier otherwise.
    pub(crate) fn tier_before_ageing(&self) -> Tier {
        if self.service.best_effort { Tier::Background } else { self.tier }
    }

    /// Whether the sequence ever reached phase running. One whose first blocks are still being copied in did not.
    pub(crate) fn has_started(&self) -> bool {
        self.kv.cached_tokens.is_some()
    }

    /// Whether the sampled token is a stop token, which ends the output without being part of it.
    pub(crate) fn stops_at(&self, token: TokenId) -> bool {
        self.text.stop_tokens.contains(&token)
    }

    /// Whether the sequence has reached its longest output or the model's context length.
    pub(crate) fn at_limit(&self, max_model_len: u32) -> bool {
        self.ends_at(self.len(), max_model_len)
    }

    fn ends_at(&self, len: u32, max_model_len: u32) -> bool {
        len >= self.longest() || len >= max_model_len
    }

    /// Adds a sampled output token to the sequence.
    pub(crate) fn push(&mut self, token: TokenId, now: Timestamp, block_size: u32) {
        self.text.push(token, block_size);
        self.first_token_at.get_or_insert(now);
        self.last_token_at = Some(now);
    }

    /// Returns whether the tokens so far met all latency targets of the sequence. `None` if it has no targets, or no
    /// token yet.
    pub(crate) fn in_target(&self) -> Option<bool> {
        let (first, last) = (self.first_token_at?, self.last_token_at?);
        let SloTargets { ttft_ms, tpot_ms, e2e_ms, .. } = self.service.targets;
        let later_tokens = f64::from(self.output_len().max(2) - 1);
        let met = |target_ms: Option<f64>, us: f64| target_ms.map(|ms| us <= ms * 1000.0);
        [
            met(ttft_ms, first.since_us(self.arrival) as f64),
            met(tpot_ms, last.since_us(first) as f64 / later_tokens),
            met(e2e_ms, last.since_us(self.arrival) as f64),
        ]
        .into_iter()
        .flatten()
        .reduce(|all, one| all && one)
    }

    /// Returns the progress report for the block store after a step: the number of tokens with valid KV, and the names
    /// of newly full blocks. Marks these names as known to the block store.
    pub(crate) fn progress(&mut self, block_size: u32) -> Progress {
        let computed = self.kv.computed;
        Progress { seq: self.id, computed, hashes: self.text.register(computed, block_size) }
    }

    /// Records that the sequence got its blocks, with valid KV for a prefix of `computed` tokens. The block store
    /// already knows the names of the prefix's blocks.
    pub(crate) fn opened(&mut self, computed: u32, block_size: u32) -> Opened {
        self.kv.computed = computed;
        self.text.registered = (computed / block_size) as usize;
        self.kv.len_at_open = self.len();
        self.kv.saved = false;
        self.kv.on_host = 0;
        self.kv.retained_tokens = 0;
        let before = std::mem::take(&mut self.kv.computed_before);
        if self.has_started() {
            return Opened::Again { recompute: before.saturating_sub(computed) };
        }
        self.kv.cached_tokens = Some(computed);
        Opened::First { prompt: self.prompt_len(), hit: computed }
    }

    /// Moves the sequence to phase waiting after a preemption took its blocks: see [`Kv::close`].
    pub(crate) fn closed(&mut self, saved: bool, retained_tokens: u32) {
        self.phase = Phase::Waiting;
        self.preemptions += 1;
        self.text.registered = 0;
        self.kv.close(saved, retained_tokens);
    }

    /// Returns what the device needs before the first step of the sequence: sampling parameters and prompt.
    pub(crate) fn start(&self) -> SeqStart {
        SeqStart {
            seq: self.id,
            sampling: Arc::clone(&self.text.sampling),
            prompt: Arc::clone(&self.text.prompt),
        }
    }

    pub(crate) fn usage(&self) -> Usage {
        Usage {
            prompt_tokens: self.prompt_len(),
            cached_tokens: self.kv.cached_tokens.unwrap_or(0),
            completion_tokens: self.output_len(),
            preemptions: self.preemptions,
        }
    }

    /// Checks that the sequence's own numbers agree with each other. Returns the violation in words; `None` if there is
    /// none.
    pub(crate) fn violation(&self, block_size: u32) -> Option<String> {
        let (computed, table) = (self.kv.computed, &self.kv.block_table);
        if computed > self.len() {
            return Some(format!("{}: {computed} tokens computed of {}", self.id, self.len()));
        }
        if self.planned_computed() > self.planned_len() {
            return Some(format!("{}: more tokens are being computed than it has", self.id));
        }
        if self.text.registered as u32 * block_size > computed {
            return Some(format!("{}: blocks are named beyond the computed tokens", self.id));
        }
        if self.phase == Phase::Waiting && (computed > 0 || !table.is_empty()) {
            return Some(format!("{}: waiting, but holds blocks", self.id));
        }
        let covered = table.len() as u32 * block_size;
        // Allow an empty block table in phase running: after blocks were copied in, the block store sends the table
        // only with its next answer.
        if self.phase == Phase::Running && covered > 0 && covered < computed {
            return Some(format!(
                "{}: {computed} tokens computed, its blocks cover {covered}",
                self.id
            ));
        }
        None
    }

    /// Discards the results of steps in flight for the sequence, because the first of them has failed.
    pub(crate) fn invalidate_in_flight(&mut self) {
        self.kv.in_flight = InFlightProgress::default();
    }

    /// Postpones the draw of the next token, because `step` has ended and had to leave the draw out. The last token
    /// must be computed again, for its logits. Results of later steps in flight are void, because their input is the
    /// token that was not drawn.
    pub(crate) fn postpone_draw(&mut self, step: StepId) {
        self.kv.computed = self.kv.computed.min(self.len().saturating_sub(1));
        self.kv.in_flight.void_after(step);
    }
}

#[cfg(test)]
mod tests;
