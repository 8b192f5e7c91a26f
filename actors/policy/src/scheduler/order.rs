//! What the order of service counts beside tiers: predicted output lengths and the service that tenants had.

use crate::blocks::Salt;
use std::collections::BTreeMap;
use tiercel_device::Tier;

/// Classes of prompt lengths, by powers of two.
const LENGTH_CLASSES: usize = 24;
/// Weight of a newly finished request in the mean of its class.
const SMOOTHING: f64 = 0.05;
/// Tenants whose service is remembered; of more, those that had least of it are forgotten, which costs them
/// nothing.
const MAX_TENANTS: usize = 4096;

/// Predicts output lengths from those of requests that finished: per tier and class of prompt length a
/// smoothed mean. It never sees a request's true length before the end.
#[derive(Debug, Clone)]
pub(crate) struct LengthPredictor {
    mean: [[Option<f64>; LENGTH_CLASSES]; Tier::ALL.len()],
    by_tier: [Option<f64>; Tier::ALL.len()],
    error: PredictionError,
}

/// How far predicted output lengths were off.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct PredictionError {
    /// Requests that were predicted and finished.
    pub requests: u64,
    /// Sum of |predicted - true|, tokens.
    pub absolute_tokens: f64,
    /// Sum of true lengths, tokens.
    pub tokens: u64,
}

impl LengthPredictor {
    pub(crate) fn new() -> LengthPredictor {
        LengthPredictor {
            mean: [[None; LENGTH_CLASSES]; Tier::ALL.len()],
            by_tier: [None; Tier::ALL.len()],
            error: PredictionError::default(),
        }
    }

    /// Expected output, tokens; before anything of the tier has finished, half of what is allowed.
    pub(crate) fn predict(&self, tier: Tier, prompt: u32, max_tokens: u32) -> f64 {
        let known = self.mean[tier.index()][class_of(prompt)].or(self.by_tier[tier.index()]);
        known.unwrap_or(f64::from(max_tokens) / 2.0).min(f64::from(max_tokens))
    }

    /// A request finished.
    pub(crate) fn observe(&mut self, tier: Tier, prompt: u32, predicted: f64, output: u32) {
        let output_tokens = f64::from(output);
        self.error.requests += 1;
        self.error.absolute_tokens += (predicted - output_tokens).abs();
        self.error.tokens += u64::from(output);
        for mean in
            [&mut self.mean[tier.index()][class_of(prompt)], &mut self.by_tier[tier.index()]]
        {
            *mean = Some(mean.map_or(output_tokens, |old| old + SMOOTHING * (output_tokens - old)));
        }
    }

    pub(crate) fn error(&self) -> PredictionError {
        self.error
    }
}

fn class_of(prompt: u32) -> usize {
    (prompt.max(1).ilog2() as usize).min(LENGTH_CLASSES - 1)
}

/// Start-time fair queueing between tenants (Goyal, Vin, Cheng 1997): a request's start tag is the later of
/// the virtual time and its tenant's last finish tag; requests are served in order of start tags, and the
/// virtual time is the tag of the last that started. Service is counted in tokens or in time, an output's as predicted
/// until it is known.
#[derive(Debug, Clone, Default)]
pub(crate) struct FairQueue {
    now: f64,
    accounts: BTreeMap<Salt, Account>,
}

/// What a tenant asked for so far.
#[derive(Debug, Clone, Copy)]
struct Account {
    /// The start tag of its last request.
    start: f64,
    /// Where the next one starts.
    finish: f64,
    /// What it was given back that those of its requests that wait keep it from having: they keep their order.
    credit: f64,
    /// Its requests that have not started.
    waiting: u32,
}

impl Account {
    fn correct(&mut self, by: f64) {
        let finish = self.finish + by - self.credit;
        let least = if self.waiting > 0 { self.start } else { f64::NEG_INFINITY };
        self.finish = finish.max(least);
        self.credit = self.finish - finish;
        self.start = self.start.min(self.finish);
    }
}

impl FairQueue {
    /// The start tag of a request that will take `tokens`.
    pub(crate) fn arrive(&mut self, tenant: Salt, tokens: f64) -> f64 {
        if self.accounts.len() >= MAX_TENANTS && !self.accounts.contains_key(&tenant) {
            self.forget_least();
        }
        let fresh = Account { start: self.now, finish: self.now, credit: 0.0, waiting: 0 };
        let account = self.accounts.entry(tenant).or_insert(fresh);
        account.start = account.finish.max(self.now);
        account.waiting += 1;
        account.finish = account.start + tokens;
        account.start
    }

    /// Whether requests of another tenant wait.
    pub(crate) fn others_wait(&self, tenant: Salt) -> bool {
        self.accounts.iter().any(|(other, account)| *other != tenant && account.waiting > 0)
    }

    /// A request of a tenant waits no more, whatever became of it.
    pub(crate) fn left(&mut self, tenant: Salt) {
        if let Some(account) = self.accounts.get_mut(&tenant) {
            account.waiting = account.waiting.saturating_sub(1);
            account.correct(0.0);
        }
    }

    /// A request with this tag starts.
    pub(crate) fn start(&mut self, tag: f64) {
        self.now = self.now.max(tag);
    }

    /// A request took `tokens` more than predicted, or less. A tenant's requests keep their order among themselves.
    pub(crate) fn correct(&mut self, tenant: Salt, tokens: f64) {
        if let Some(account) = self.accounts.get_mut(&tenant) {
            account.correct(tokens);
        }
    }

    fn forget_least(&mut self) {
        // Those without requests before the others: these are counted on to leave.
        let least = self.accounts.iter().min_by(|(_, a), (_, b)| {
            (a.waiting > 0).cmp(&(b.waiting > 0)).then(a.finish.total_cmp(&b.finish))
        });
        if let Some(tenant) = least.map(|(tenant, _)| *tenant) {
            self.accounts.remove(&tenant);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_learned_per_tier_and_prompt_length() {
        let mut predictor = LengthPredictor::new();
        assert_eq!(predictor.predict(Tier::Standard, 100, 400), 200.0, "nothing is known");
        for _ in 0..200 {
            predictor.observe(Tier::Standard, 100, 0.0, 40);
            predictor.observe(Tier::Standard, 1000, 0.0, 300);
        }
        assert!((predictor.predict(Tier::Standard, 120, 400) - 40.0).abs() < 1.0);
        assert!((predictor.predict(Tier::Standard, 900, 400) - 300.0).abs() < 1.0);
        assert_eq!(predictor.predict(Tier::Standard, 900, 100), 100.0, "never more than allowed");
        let unseen = predictor.predict(Tier::Standard, 5, 400);
        assert!((40.0..300.0).contains(&unseen), "the tier's mean: {unseen}");
        assert_eq!(predictor.predict(Tier::Premium, 100, 60), 30.0);
        let error = predictor.error();
        assert_eq!((error.requests, error.tokens), (400, 200 * 340));
        assert_eq!(error.absolute_tokens, 200.0 * 340.0);
    }

    #[test]
    fn a_tenant_that_had_less_comes_first() {
        let mut queue = FairQueue::default();
        let (greedy, modest) = (Salt([1; 16]), Salt([2; 16]));
        let tags: Vec<f64> = (0..3).map(|_| queue.arrive(greedy, 100.0)).collect();
        assert_eq!(tags, [0.0, 100.0, 200.0]);
        queue.start(100.0);
        assert_eq!(queue.arrive(modest, 100.0), 100.0, "no credit for having been away");
        queue.correct(modest, -60.0);
        assert_eq!(queue.arrive(modest, 10.0), 140.0, "what was not used is given back");
        queue.correct(modest, -90.0);
        assert_eq!(
            queue.arrive(modest, 10.0),
            140.0,
            "nobody overtakes an older request of its own"
        );
    }

    #[test]
    fn what_a_tenant_did_not_get_is_given_back_when_nothing_of_it_waits() {
        let mut queue = FairQueue::default();
        let (fickle, other) = (Salt([1; 16]), Salt([2; 16]));
        for _ in 0..100 {
            queue.arrive(fickle, 10.0);
        }
        assert!(!queue.others_wait(fickle) && queue.others_wait(other));
        // All of them leave without having been served.
        for _ in 0..100 {
            queue.left(fickle);
            queue.correct(fickle, -10.0);
        }
        assert!(!queue.others_wait(other));
        assert_eq!(queue.arrive(fickle, 10.0), 0.0, "it owes nothing");
    }

    #[test]
    fn tenants_are_bounded() {
        let mut queue = FairQueue::default();
        for tenant in 0..2 * MAX_TENANTS as u32 {
            let mut salt = [0; 16];
            salt[..4].copy_from_slice(&tenant.to_le_bytes());
            queue.arrive(Salt(salt), 1.0);
        }
        assert_eq!(queue.accounts.len(), MAX_TENANTS);
    }
}
