//! The queue: all live sequences in the order of service, and the state (arrivals, fair queues, predicted lengths) from
//! which that order is made.

pub(crate) mod arrivals;
pub(crate) mod fair_queue;
pub(crate) mod length_predictor;
mod ordering;
pub(crate) mod priority_key;
pub(crate) mod sequence_table;
pub(crate) mod service_class;
pub(crate) mod tenant_fair_queues;
pub(crate) mod tier_fair_queue;
pub(crate) mod tier_usage;
mod waiting;

use crate::admission::DrainRate;
use crate::ewma::Ewma;
use crate::scheduler::queue::arrivals::{Arrivals, Traffic};
use crate::scheduler::queue::fair_queue::FairQueue;
use crate::scheduler::queue::length_predictor::LengthPredictor;
use crate::scheduler::queue::priority_key::Rank;
use crate::scheduler::queue::sequence_table::SequenceTable;
use crate::scheduler::queue::tenant_fair_queues::TenantFairQueues;
use crate::scheduler::queue::tier_fair_queue::TierFairQueue;
use crate::scheduler::rules::Rules;
use crate::scheduler::sequence::Sequence;
use tiercel_device::{Tier, Timestamp};

/// Weight of a new prompt in the exponential mean of the prefix-cache hit rate.
const HIT_SMOOTHING: f64 = 0.05;

/// All live sequences in the order of service, and the state (arrivals, fair queues, predicted lengths) from which that
/// order is made.
#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) table: SequenceTable,
    pub(crate) arrivals: Arrivals,
    /// Drain rate of each tier: how fast its requests get their first tokens.
    pub(crate) drain: [DrainRate; Tier::ALL.len()],
    pub(crate) predictor: LengthPredictor,
    /// Prefix-cache hit rate: mean share of a prompt's tokens found in the cache lately, 0 to 1.
    pub(crate) hit_share: Ewma,
    /// Fair queue of all tenants, in which service is counted in tokens, for `scheduler.order = fair`.
    pub(crate) token_queue: FairQueue,
    pub(crate) tenants: TenantFairQueues,
    pub(crate) tiers: TierFairQueue,
}

impl Queue {
    /// Creates a queue without sequences.
    pub(crate) fn new(rules: &Rules) -> Queue {
        Queue {
            table: SequenceTable::new(rules.preemption.resume),
            arrivals: Arrivals::default(),
            drain: Default::default(),
            predictor: LengthPredictor::new(),
            hit_share: Ewma::starting_at(0.0, HIT_SMOOTHING),
            token_queue: FairQueue::default(),
            tenants: TenantFairQueues::default(),
            tiers: TierFairQueue::new(&rules.shares),
        }
    }

    /// Returns the traffic at `now`: which tiers had arrivals lately, and whether these arrivals and all prompts that
    /// wait are of one tier. Running streams do not count.
    pub(crate) fn traffic(&self, now: Timestamp) -> Traffic {
        self.arrivals.traffic(self.table.backlog_tokens(), now)
    }

    /// Returns the share of the tokens of a prompt without blocks that are expected to be computed, 0 to 1: the prefix
    /// cache is expected to hold the same share of the prompt as of recent ones.
    pub(crate) fn uncached_share(&self) -> f64 {
        1.0 - self.hit_share.mean()
    }

    /// Tells the tiers' fair queue which tiers are the payers of waiting requests.
    pub(crate) fn note_waiting_tiers(&mut self) {
        let waits = Tier::ALL.map(|tier| self.table.queue_paid_by(tier).next().is_some());
        self.tiers.set_waiting(waits);
    }

    /// Returns the first `most` waiting sequences that may get blocks, if tiers share the time left to best-effort
    /// requests: first, by rank, sequences whose effective tier is above background; then, in the order of the tiers'
    /// fair queue, sequences whose effective tier is background: best-effort requests, and requests of the background
    /// tier with or without latency targets.
    pub(crate) fn in_fair_order(
        &self,
        most: usize,
        may_open: impl Fn(&Sequence) -> bool + Copy,
    ) -> Vec<(Rank, &Sequence)> {
        let before = self.table.queue().take_while(|(rank, _)| rank.class().payer().is_none());
        let before = before.filter(|(_, sequence)| may_open(sequence));
        let mut first: Vec<(Rank, &Sequence)> = before.take(most).collect();
        let mut lines = Tier::ALL.map(|tier| {
            let line = self.table.queue_paid_by(tier);
            line.filter(|(_, sequence)| may_open(sequence)).peekable()
        });
        let mut tiers = self.tiers;
        while first.len() < most {
            let waits = lines.each_mut().map(|line| line.peek().is_some());
            let Some(tier) = tiers.next(waits) else { break };
            let Some((rank, sequence)) = lines[tier.index()].next() else { break };
            // Charge only sequences that never ran: a preempted one was charged to its tier when it started.
            if !sequence.has_started() {
                tiers.start(tier, sequence.service.tenant_tag.charged_us);
            }
            first.push((rank, sequence));
        }
        first
    }

    /// Removes a sequence that has ended from the fair queues, and replaces the predicted service in the charges of its
    /// tenant and its tier by the actual service. In the queues of device time the actual service is `used_us`. In the
    /// token queue the actual service is the number of output tokens, plus the number of prompt tokens that had valid
    /// KV (computed, or found in the prefix cache). If the output is `complete`, its length goes into the predicted
    /// lengths.
    pub(crate) fn ended(&mut self, sequence: &Sequence, used_us: f64, complete: bool) {
        let tenant = sequence.service.weighted_tenant();
        let (predicted, output) = (sequence.service.predicted_tokens, sequence.output_len());
        let not_computed = f64::from(sequence.prompt_len() - sequence.prompt_computed());
        self.token_queue.correct(tenant, f64::from(output) - predicted - not_computed);
        if sequence.first_token_at.is_none() {
            self.token_queue.stops_waiting(sequence.service.token_entry());
        }
        self.tenants.end(sequence, used_us);
        self.tiers.end(sequence, used_us);
        if complete {
            self.predictor.observe(sequence.tier, sequence.prompt_len(), predicted, output);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::scheduler::State;
    use crate::scheduler::tests::{scheduler, sequence, step};
    use tiercel_config::TierSlo;
    use tiercel_device::{SeqId, Tier};

    /// Creates a scheduler with a best-effort premium request and a best-effort background one that wait, after
    /// background alone was charged 15 us of device time twice: 100 us each, divided by its share.
    fn after_background() -> State {
        let mut s = scheduler(|settings| {
            settings.slo.premium = TierSlo::default();
            settings.slo.background = TierSlo::default();
        });
        for _ in 0..2 {
            s.queue.tiers.start(Tier::Background, 15.0);
        }
        s.enqueue(sequence(1, Tier::Premium, 4));
        s.enqueue(sequence(2, Tier::Background, 4));
        s
    }

    #[test]
    fn a_tier_that_begins_to_wait_begins_at_the_virtual_time() {
        let mut s = after_background();
        s.queue.note_waiting_tiers();
        let both = [false, true, false, true];
        let mut starts = Vec::new();
        for _ in 0..3 {
            let tier = s.queue.tiers.next(both).expect("both tiers wait");
            starts.push(tier);
            // A premium request of 50 us counts 100 us: its share is a half.
            s.queue.tiers.start(tier, 50.0);
        }
        // Premium begins at 100 us, where background's last request began, and goes first at 200 us too.
        assert_eq!(starts, [Tier::Premium, Tier::Premium, Tier::Background]);
    }

    #[test]
    fn no_more_sequences_are_listed_than_may_open() {
        let s = after_background();
        let listed = |most| {
            let first = s.queue.in_fair_order(most, |_| true);
            first.iter().map(|(_, sequence)| sequence.id.0).collect::<Vec<_>>()
        };
        assert_eq!([listed(0), listed(1), listed(9)], [vec![], vec![1], vec![1, 2]]);
    }

    #[test]
    fn a_tenant_is_not_charged_a_prompt_that_was_not_computed() {
        let mut s = scheduler(|_| ());
        s.enqueue(sequence(1, Tier::Standard, 20));
        s.cancel(SeqId(1)).expect("the request waits");
        s.enqueue(sequence(2, Tier::Standard, 20));
        let next = s.queue.table.get(SeqId(2)).expect("the request waits");
        assert_eq!(next.service.token_tag, 0.0);
    }

    #[test]
    fn a_tenant_is_charged_the_output_that_it_had_instead_of_the_predicted_one() {
        let mut s = scheduler(|_| ());
        s.enqueue(sequence(1, Tier::Standard, 20));
        step(&mut s);
        s.cancel(SeqId(1)).expect("the request runs");
        s.enqueue(sequence(2, Tier::Standard, 20));
        let next = s.queue.table.get(SeqId(2)).expect("the request waits");
        // The prompt of 20 tokens and the one output token that came, of 2 that were predicted.
        assert_eq!(next.service.token_tag, 21.0);
    }
}
