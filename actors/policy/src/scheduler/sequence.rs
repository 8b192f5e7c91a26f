//! One sequence: its tokens, its progress, its phase.

use crate::admission::Patience;
use crate::blocks::{BlockHash, Salt, hash_block};
use crate::protocol::Progress;
use crate::scheduler::ahead::Ahead;
use crate::scheduler::outcome::Usage;
use crate::scheduler::rank::Place;
use crate::scheduler::turns::Turn;
use std::sync::Arc;
use tiercel_config::SloTargets;
use tiercel_device::{
    BlockId, Epoch, SamplingParams, SeqId, SeqStart, Ticket, Tier, Timestamp, TokenId,
};

/// A sequence that enters the scheduler.
#[derive(Debug, Clone)]
pub struct NewSequence {
    /// Its id, never used before.
    pub seq: SeqId,
    /// Importance.
    pub tier: Tier,
    /// Order within the tier, lower first.
    pub priority: i32,
    /// Namespace of its block names.
    pub salt: Salt,
    /// Prompt, not empty.
    pub prompt: Arc<[TokenId]>,
    /// Most output tokens, at least 1.
    pub max_tokens: u32,
    /// Tokens that end the output.
    pub stop_tokens: Arc<[TokenId]>,
    /// How to sample.
    pub sampling: Arc<SamplingParams>,
    /// Targets it asked for instead of its tier's.
    pub targets: SloTargets,
    /// How long it waits for its first token.
    pub patience: Patience,
    /// When it arrived.
    pub arrival: Timestamp,
}

/// Where a sequence is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Holds no blocks but what it kept: new, or preempted and committed. A step in flight may still sample for it.
    Waiting,
    /// Holds blocks and may be in a step.
    Running,
    /// Holds blocks that are being copied in.
    Opening,
    /// Holds blocks that are being copied out; not scheduled, but a step in flight may still compute it.
    Preempting,
}

/// Why a sequence is not scheduled although it could be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// An operator paused it.
    Operator,
    /// Its client reads too slowly.
    Stream,
}

/// What opening a sequence found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Opened {
    /// Its first start: how much of its prompt was cached, tokens.
    First { prompt: u32, hit: u32 },
    /// A resume: how much of what it had is computed again, tokens.
    Again { recompute: u32 },
}

/// A live sequence.
#[derive(Debug)]
pub(crate) struct Sequence {
    pub(crate) id: SeqId,
    pub(crate) tier: Tier,
    pub(crate) priority: i32,
    pub(crate) arrival: Timestamp,
    /// What it asked for instead of its tier's targets.
    pub(crate) asked: SloTargets,
    /// What it is to be given: its tier's targets for such a prompt, or what it asked for.
    pub(crate) targets: SloTargets,
    /// How long it waits for its first token.
    pub(crate) patience: Patience,
    pub(crate) phase: Phase,
    /// What its rank is made of.
    pub(crate) place: Place,
    /// When it gains a tier, if it still waits.
    pub(crate) ages_at: Option<Timestamp>,
    /// When its first token must come for it to meet its targets; `None` without any.
    pub(crate) deadline: Option<Timestamp>,
    /// Whether its first token is given up as late, for others to be in time.
    pub(crate) late: bool,
    /// Whether it was promised nothing that its tier would have to be served first for.
    pub(crate) promised_nothing: bool,
    /// The tier that its time is counted for where tiers share it, and what that was charged, us; once it has started.
    pub(crate) rest_of: Option<(Tier, f64)>,
    pub(crate) epoch: Epoch,
    pub(crate) held_by_operator: bool,
    pub(crate) held_by_stream: bool,
    /// Whether it ever was held.
    pub(crate) was_held: bool,
    /// Prompt, then outputs.
    pub(crate) tokens: Vec<TokenId>,
    /// Tokens whose KV is valid; at most `tokens.len()`.
    pub(crate) computed: u32,
    /// What steps in flight make of it.
    pub(crate) ahead: Ahead,
    /// The block table as of the last grant; empty while it holds no blocks.
    pub(crate) table: Arc<[BlockId]>,
    pub(crate) preemptions: u32,
    /// Prompt tokens found in the prefix cache at the first start; `None` before it.
    pub(crate) cached_tokens: Option<u32>,
    pub(crate) first_token_at: Option<Timestamp>,
    pub(crate) last_token_at: Option<Timestamp>,
    /// Tokens that were valid when its blocks were taken, 0 if they never were.
    pub(crate) lost: u32,
    /// Whether blocks of it were saved in the host tier when they were taken.
    pub(crate) saved: bool,
    /// Tokens whose blocks it kept on the device when others were taken.
    pub(crate) kept: u32,
    /// How many sequences had been opened before it was, last time.
    pub(crate) opened_number: u64,
    /// Known tokens when it opened last; at least those of the prompt count as begun.
    len_at_open: u32,
    /// Whether it was denied the blocks to grow, the last time it asked.
    pub(crate) denied: bool,
    /// Whether others then gave way for it: the blocks come free when they have been copied out.
    pub(crate) promised: bool,
    /// Output it was expected to have, tokens.
    pub(crate) predicted_tokens: f64,
    /// Whom it counts for where tenants are treated alike; its block names may have another salt.
    pub(crate) tenant: Salt,
    /// Its tag in the fair queue of tenants, tokens.
    pub(crate) start_tag: f64,
    /// Its turn among the tenants of the level it is served at.
    pub(crate) turn: Turn,
    /// Whether the device keeps sampler state for it.
    pub(crate) on_device: bool,
    prompt: Arc<[TokenId]>,
    max_tokens: u32,
    stop_tokens: Arc<[TokenId]>,
    sampling: Arc<SamplingParams>,
    salt: Salt,
    /// Names of all full blocks of `tokens`.
    hashes: Vec<BlockHash>,
    /// How many of `hashes` the store has been told of since the sequence last opened.
    registered: usize,
}

impl Sequence {
    pub(crate) fn new(new: NewSequence, block_size: u32) -> Sequence {
        let mut sequence = Sequence {
            id: new.seq,
            tier: new.tier,
            priority: new.priority,
            arrival: new.arrival,
            asked: new.targets,
            targets: new.targets,
            patience: new.patience,
            phase: Phase::Waiting,
            place: Place::default(),
            ages_at: None,
            deadline: None,
            late: false,
            promised_nothing: false,
            rest_of: None,
            epoch: Epoch(0),
            held_by_operator: false,
            held_by_stream: false,
            was_held: false,
            tokens: new.prompt.to_vec(),
            computed: 0,
            ahead: Ahead::default(),
            table: Arc::from([]),
            preemptions: 0,
            cached_tokens: None,
            first_token_at: None,
            last_token_at: None,
            lost: 0,
            saved: false,
            kept: 0,
            opened_number: 0,
            len_at_open: 0,
            denied: false,
            promised: false,
            predicted_tokens: 0.0,
            tenant: new.salt,
            start_tag: 0.0,
            turn: Turn::default(),
            on_device: false,
            prompt: new.prompt,
            max_tokens: new.max_tokens,
            stop_tokens: new.stop_tokens,
            sampling: new.sampling,
            salt: new.salt,
            hashes: Vec::new(),
            registered: 0,
        };
        sequence.extend_hashes(block_size);
        sequence
    }

    /// Known tokens.
    pub(crate) fn len(&self) -> u32 {
        self.tokens.len() as u32
    }

    /// Output tokens that may still come.
    pub(crate) fn output_left(&self) -> u32 {
        self.max_tokens.saturating_sub(self.planned_output())
    }

    /// Output tokens so far.
    pub(crate) fn output_len(&self) -> u32 {
        self.len() - self.prompt.len() as u32
    }

    pub(crate) fn ticket(&self) -> Ticket {
        Ticket { seq: self.id, epoch: self.epoch }
    }

    pub(crate) fn held(&self) -> bool {
        self.held_by_operator || self.held_by_stream
    }

    /// Whether it is in line for its first token.
    pub(crate) fn in_line(&self) -> bool {
        self.first_token_at.is_none() && !self.held()
    }

    /// Whether exactly the last known token is left to compute: one token per step.
    pub(crate) fn decoding(&self) -> bool {
        self.planned_computed() + 1 == self.planned_len()
    }

    /// When waiting next changes its place.
    pub(crate) fn timer(&self) -> Option<Timestamp> {
        self.ages_at
    }

    /// The tier whose turn it waits for.
    pub(crate) fn served_as(&self) -> Tier {
        if self.promised_nothing { self.tier.max(Tier::Background) } else { self.tier }
    }

    /// Whether it ever held blocks.
    pub(crate) fn was_open(&self) -> bool {
        self.cached_tokens.is_some()
    }

    /// Prompt tokens.
    pub(crate) fn prompt_len(&self) -> u32 {
        self.prompt.len() as u32
    }

    /// The longest it can become, tokens.
    pub(crate) fn longest(&self) -> u32 {
        self.prompt_len().saturating_add(self.max_tokens)
    }

    pub(crate) fn max_tokens(&self) -> u32 {
        self.max_tokens
    }

    /// Output tokens since its prompt was computed or it resumed, whichever was later.
    pub(crate) fn tokens_since_open(&self) -> u32 {
        self.len().saturating_sub(self.len_at_open)
    }

    /// Tokens left to compute; what was saved comes with copies.
    pub(crate) fn left_to_compute(&self) -> u32 {
        let saved = if self.saved { self.lost } else { self.kept };
        (self.planned_len() - self.planned_computed().max(saved)).max(1)
    }

    /// Whether a token that was sampled ends the output instead of being part of it.
    pub(crate) fn stops_at(&self, token: TokenId) -> bool {
        self.stop_tokens.contains(&token)
    }

    /// Whether the output may not grow any more.
    pub(crate) fn at_limit(&self, max_model_len: u32) -> bool {
        self.ends_at(self.len(), max_model_len)
    }

    pub(crate) fn ends_at(&self, len: u32, max_model_len: u32) -> bool {
        len >= self.longest() || len >= max_model_len
    }

    pub(crate) fn push(&mut self, token: TokenId, now: Timestamp, block_size: u32) {
        self.tokens.push(token);
        self.first_token_at.get_or_insert(now);
        self.last_token_at = Some(now);
        self.extend_hashes(block_size);
    }

    fn extend_hashes(&mut self, block_size: u32) {
        let size = block_size as usize;
        while (self.hashes.len() + 1) * size <= self.tokens.len() {
            let from = self.hashes.len() * size;
            let parent = self.hashes.last().copied();
            let name = hash_block(self.salt, parent, &self.tokens[from..from + size]);
            self.hashes.push(name);
        }
    }

    /// Names of the blocks that an open may find: never the one with the last token, whose logits are
    /// needed.
    pub(crate) fn findable(&self, block_size: u32) -> Arc<[BlockHash]> {
        let blocks = (self.len().saturating_sub(1) / block_size) as usize;
        Arc::from(&self.hashes[..blocks.min(self.hashes.len())])
    }

    /// What a step made valid: how far it is, and names of blocks that became full.
    pub(crate) fn progress(&mut self, block_size: u32) -> Progress {
        let valid = ((self.computed / block_size) as usize).min(self.hashes.len());
        let hashes = self.hashes[self.registered..valid].to_vec();
        self.registered = valid;
        Progress { seq: self.id, computed: self.computed, hashes }
    }

    /// The store found a valid prefix: names up to there are the store's own.
    pub(crate) fn opened(&mut self, computed: u32, block_size: u32) -> Opened {
        self.computed = computed;
        self.registered = (computed / block_size) as usize;
        self.len_at_open = self.len();
        self.saved = false;
        self.kept = 0;
        let lost = std::mem::take(&mut self.lost);
        if self.cached_tokens.is_some() {
            return Opened::Again { recompute: lost.saturating_sub(computed) };
        }
        self.cached_tokens = Some(computed);
        Opened::First { prompt: self.prompt.len() as u32, hit: computed }
    }

    /// Its blocks are gone, `saved` in the host tier or not, except those of the first `kept`
    /// tokens; it must open again.
    pub(crate) fn closed(&mut self, saved: bool, kept: u32) {
        self.phase = Phase::Waiting;
        self.saved = saved;
        self.kept = kept;
        self.preemptions += 1;
        self.promised = false;
        self.lost = self.computed;
        self.computed = 0;
        self.ahead.lose_blocks();
        self.registered = 0;
        self.table = Arc::from([]);
        self.epoch.0 += 1;
    }

    pub(crate) fn start(&self) -> SeqStart {
        SeqStart {
            seq: self.id,
            sampling: Arc::clone(&self.sampling),
            prompt: Arc::clone(&self.prompt),
        }
    }

    pub(crate) fn usage(&self) -> Usage {
        Usage {
            prompt_tokens: self.prompt.len() as u32,
            cached_tokens: self.cached_tokens.unwrap_or(0),
            completion_tokens: self.output_len(),
            preemptions: self.preemptions,
        }
    }

    /// Why its own numbers cannot be right, if so.
    pub(crate) fn violation(&self, block_size: u32) -> Option<String> {
        if self.computed > self.len() {
            return Some(format!(
                "{}: {} tokens computed of {}",
                self.id,
                self.computed,
                self.len()
            ));
        }
        if self.planned_computed() > self.planned_len() {
            return Some(format!("{}: more tokens are being computed than it has", self.id));
        }
        if self.registered as u32 * block_size > self.computed {
            return Some(format!("{}: blocks are named beyond the computed tokens", self.id));
        }
        if self.phase == Phase::Waiting && (self.computed > 0 || !self.table.is_empty()) {
            return Some(format!("{}: waiting, but holds blocks", self.id));
        }
        let covered = self.table.len() as u32 * block_size;
        // After copies in the table comes with the next grant.
        if self.phase == Phase::Running && covered > 0 && covered < self.computed {
            return Some(format!(
                "{}: {} tokens computed, its blocks cover {covered}",
                self.id, self.computed
            ));
        }
        None
    }
}
