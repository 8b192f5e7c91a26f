//! Shares of the tiers in what work with targets leaves.
//!
//! Requests that were promised neither a first token nor a pace come after all others. Among these the better tier does
//! not have everything: tiers start their requests by start-time fair
//! queueing over the device's time (Goyal, Vin, Cheng 1997), each with the share that `shares` says. So among tiers that
//! all have such requests waiting, what each had over its share differs by at most the costliest request of each of
//! two, as far as there are blocks for them; what a tier does not ask for goes to the others. Within a tier nothing
//! changes.

use crate::admission::ShareReport;
use crate::scheduler::rank::Rank;
use crate::scheduler::sequence::Sequence;
use crate::scheduler::state::Scheduler;
use tiercel_config::{Order, SharesSettings, SheddingForm};
use tiercel_device::{Tier, Timestamp};

const TIERS: usize = Tier::ALL.len();
/// Most that a tier has coming of what it was denied, for want of blocks or because it was thought to take more, us of the
/// device's time over its share: it would shut out the others for as long.
const MOST_ARREARS_US: f64 = 60e6;
/// After so long a third of the time that a tier had is still known of, us.
const MEMORY_US: f64 = 60e6;

/// Whose turn it is among tiers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TierTurns {
    /// Shares of the whole.
    weights: [f64; TIERS],
    /// The start tag of the last that started.
    now: f64,
    /// Where the next one of each tier starts, us of the device's time over the share.
    finish: [f64; TIERS],
    /// Which tiers had somebody waiting at the last look.
    waited: [bool; TIERS],
}

impl TierTurns {
    pub(crate) fn new(shares: &SharesSettings) -> TierTurns {
        // The system's own requests have targets of their own: they go first.
        let weights = shares.percent().map(|percent| (percent / 100.0).max(0.01));
        TierTurns { weights, now: 0.0, finish: [0.0; TIERS], waited: [false; TIERS] }
    }

    /// Says who has somebody waiting. A tier that had nobody starts where the others are; one that had keeps its place,
    /// what it was given back included.
    fn look(&mut self, waits: [bool; TIERS]) {
        for (at, waits) in waits.into_iter().enumerate() {
            let least = if self.waited[at] { self.now - MOST_ARREARS_US } else { self.now };
            if waits {
                self.finish[at] = self.finish[at].max(least);
            }
        }
        self.waited = waits;
    }

    /// The tier whose turn it is of those that have somebody waiting.
    fn next(&self, waits: [bool; TIERS]) -> Option<Tier> {
        let waiting = Tier::ALL.into_iter().filter(|tier| waits[tier.index()]);
        waiting.min_by(|a, b| self.finish[a.index()].total_cmp(&self.finish[b.index()]))
    }

    /// A request of the tier starts that will take about `us`.
    fn start(&mut self, tier: Tier, us: f64) {
        let finish = &mut self.finish[tier.index()];
        self.now = self.now.max(*finish);
        *finish += us / self.weights[tier.index()];
    }

    /// A sequence is about to open. Its tier pays the first time.
    pub(crate) fn open(&mut self, sequence: &mut Sequence) {
        if sequence.place.rest > 0 && !sequence.was_open() {
            sequence.rest_of = Some((sequence.tier, sequence.turn.charged_us));
            self.start(sequence.tier, sequence.turn.charged_us);
        }
    }

    /// A request of the tier took so much more than it was thought to, us, or less.
    fn correct(&mut self, tier: Tier, us: f64) {
        self.finish[tier.index()] += us / self.weights[tier.index()];
    }
}

/// The device's time that each tier had lately.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Had {
    us: [f64; TIERS],
    at: Timestamp,
}

impl Had {
    pub(crate) fn add(&mut self, us: [f64; TIERS], now: Timestamp) {
        let kept = (-(now.since_us(self.at) as f64) / MEMORY_US).exp();
        self.at = now;
        for (had, us) in self.us.iter_mut().zip(us) {
            *had = *had * kept + us;
        }
    }

    /// Shares of it, by tier; 0 of nothing.
    pub(crate) fn shares(&self) -> [f64; TIERS] {
        let all: f64 = self.us.iter().sum();
        self.us.map(|us| if all > 0.0 { us / all } else { 0.0 })
    }
}

impl Scheduler {
    /// Whether tiers share what work with targets leaves.
    pub(crate) fn divides(&self) -> bool {
        self.settings.fair_tiers && self.settings.order == Order::Tier
    }

    /// Whether a sequence was promised nothing that its tier would have to be served first for.
    pub(crate) fn is_promised_nothing(&self, sequence: &Sequence) -> bool {
        let targets = &sequence.targets;
        self.divides()
            && sequence.tier > Tier::System
            && targets.ttft_ms.is_none()
            && targets.tpot_ms.is_none()
    }

    /// The tier among whose tenants a sequence takes turns.
    pub(crate) fn line_of(&self, sequence: &Sequence) -> Tier {
        if self.divides() { sequence.tier } else { sequence.served_as() }
    }

    /// Looks whose requests wait for their tier's turn.
    pub(crate) fn look_at_lines(&mut self) {
        if self.divides() {
            let waits = Tier::ALL.map(|tier| self.sequences.queue_of_rest(tier).next().is_some());
            self.tier_turns.look(waits);
        }
    }

    /// The first `most` of those that wait and may open: by rank those that have targets, then of each tier as it is its
    /// turn.
    pub(crate) fn divided(
        &self,
        most: usize,
        may_open: impl Fn(&Sequence) -> bool + Copy,
    ) -> Vec<(Rank, &Sequence)> {
        let before = self.sequences.queue().take_while(|(rank, _)| rank.rest() == 0);
        let before = before.filter(|(_, sequence)| may_open(sequence));
        let mut first: Vec<(Rank, &Sequence)> = before.take(most).collect();
        let mut lines = Tier::ALL.map(|tier| {
            let line = self.sequences.queue_of_rest(tier);
            line.filter(|(_, sequence)| may_open(sequence)).peekable()
        });
        let mut turns = self.tier_turns;
        while first.len() < most {
            let waits = lines.each_mut().map(|line| line.peek().is_some());
            let Some(tier) = turns.next(waits) else { break };
            let Some((rank, sequence)) = lines[tier.index()].next() else { break };
            // One that has started was charged for then.
            if !sequence.was_open() {
                turns.start(tier, sequence.turn.charged_us);
            }
            first.push((rank, sequence));
        }
        first
    }

    /// A sequence has ended: its tier pays for what it had.
    pub(crate) fn charge_tier(&mut self, sequence: &Sequence, used_us: f64) {
        if let Some((tier, charged_us)) = sequence.rest_of {
            self.tier_turns.correct(tier, used_us - charged_us);
        }
    }

    /// Whether anybody asks for the device's time by tier.
    pub(crate) fn counts_time(&self) -> bool {
        self.shedding.form == SheddingForm::Share
    }

    /// Who had how much of the device's time lately, and how full it is.
    pub(crate) fn share_report(&self) -> ShareReport {
        let ratio = |part: u32, whole: u32| f64::from(part) / f64::from(whole.max(1));
        let blocks = self.limits.device_blocks;
        let in_use = ratio(blocks.saturating_sub(self.free_blocks), blocks);
        let running = self.sequences.active_len() as u32;
        let load = in_use.max(ratio(running, self.settings.max_num_seqs));
        ShareReport {
            // What those that are gone held is known to be free only with the next grant.
            load: if running == 0 { 0.0 } else { load },
            had: self.had.shares(),
            due: self.shares.percent().map(|percent| percent / 100.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tier_that_was_away_has_no_credit_and_one_that_is_alone_no_debt_for_long() {
        let mut turns = TierTurns::new(&SharesSettings::default());
        let [premium, background] = [Tier::Premium, Tier::Background];
        let waits = |tiers: &[Tier]| Tier::ALL.map(|tier| tiers.contains(&tier));
        for _ in 0..100 {
            turns.look(waits(&[background]));
            assert_eq!(turns.next(waits(&[background])), Some(background));
            turns.start(background, 15.0);
        }
        let mut started = [0; TIERS];
        for _ in 0..65 {
            turns.look(waits(&[premium, background]));
            let tier = turns.next(waits(&[premium, background])).expect("both wait");
            started[tier.index()] += 1;
            turns.start(tier, if tier == premium { 10.0 } else { 3.0 });
        }
        // 50 to 15 of the time, at 10 to 3 each, after the last of the others' that had started.
        assert_eq!(started, [0, 35, 0, 30]);
        assert_eq!(turns.next(waits(&[])), None);
    }

    #[test]
    fn what_a_tier_did_not_use_it_has_yet_while_it_waits() {
        let mut turns = TierTurns::new(&SharesSettings::default());
        let both = Tier::ALL.map(|tier| tier == Tier::Premium || tier == Tier::Standard);
        let mut had = [0.0; TIERS];
        for _ in 0..1000 {
            turns.look(both);
            let tier = turns.next(both).expect("both wait");
            // Standard ones take a third of what was thought.
            turns.start(tier, 30.0);
            let used = if tier == Tier::Standard { 10.0 } else { 30.0 };
            turns.correct(tier, used - 30.0);
            had[tier.index()] += used;
        }
        let share = had[Tier::Premium.index()] / had.iter().sum::<f64>();
        assert!((share - 50.0 / 85.0).abs() < 0.01, "{had:?}");
    }

    #[test]
    fn arrears_are_bounded() {
        let mut turns = TierTurns::new(&SharesSettings::default());
        let both = Tier::ALL.map(|tier| tier == Tier::Premium || tier == Tier::Background);
        turns.look(both);
        // Background is denied blocks for an hour of the device's time.
        for _ in 0..3600 {
            turns.look(both);
            turns.start(Tier::Premium, 1e6);
        }
        let mut alone = 0;
        while turns.next(both) == Some(Tier::Background) {
            turns.look(both);
            turns.start(Tier::Background, 0.15e6);
            alone += 1;
        }
        assert!((60..=63).contains(&alone), "{alone} s over its share");
    }

    #[test]
    fn what_was_had_is_forgotten() {
        let mut had = Had::default();
        had.add([0.0, 30.0, 0.0, 10.0], Timestamp(0));
        assert_eq!(had.shares(), [0.0, 0.75, 0.0, 0.25]);
        had.add([0.0, 0.0, 40.0, 0.0], Timestamp(3_600_000_000));
        assert!(had.shares()[2] > 0.999, "{:?}", had.shares());
        assert_eq!(Had::default().shares(), [0.0; TIERS]);
    }
}
