//! Arrivals, ends and operator commands: events that change sequences between two plans.

use crate::admission::{Patience, retry_after_ms};
use crate::blocks::Salt;
use crate::scheduler::outcome::{Effect, EndReport, FinishReason, RequestFault};
use crate::scheduler::sequence::{Hold, NewSequence, Phase, Sequence};
use crate::scheduler::state::State;
use tiercel_config::{Batching, SloTargets};
use tiercel_device::{SeqId, Tier, Timestamp};

impl State {
    /// Adds a new sequence, which waits for KV blocks.
    pub(crate) fn enqueue(&mut self, mut new: NewSequence) {
        let tenant = new.salt;
        new.salt = match self.basis.rules.share_prefixes {
            true => new.cache_salt.unwrap_or(tenant),
            // With prefix sharing off, give the sequence a salt of its own, so that its block names are unique. After a
            // swap its own blocks are still found by these names.
            false => Salt::of_sequence(new.seq),
        };
        let mut sequence = Sequence::new(new, self.basis.rules.limits.block_size);
        sequence.service.tenant = tenant;
        sequence.service.account =
            self.ledger.account_of(sequence.service.weighted_tenant(), sequence.tier);
        self.ledger.works(sequence.tier, sequence.service.account);
        self.queue.place_new(&mut sequence, &self.basis);
        let (tier, arrival) = (sequence.tier, sequence.arrival);
        self.deadlines.enter(&mut sequence, (&self.queue, &self.basis), arrival);
        self.retry.allow_replan();
        self.queue.arrivals.came(tier, arrival);
        self.queue.drain[tier.index()].entered(arrival);
        self.queue.table.insert(sequence);
    }

    /// Cancels a sequence in whatever phase it is; returns `None` if the sequence is unknown. Its KV blocks are
    /// released with the next step request; blocks that a copy still uses come free when the copy ends.
    pub(crate) fn cancel(&mut self, seq: SeqId) -> Option<EndReport> {
        self.end(seq, None)
    }

    /// Ends a sequence whose output is complete for a reason that only the HTTP side knows, such as a stop string;
    /// returns `None` if the sequence is unknown.
    pub(crate) fn stop(&mut self, seq: SeqId) -> Option<Effect> {
        self.end(seq, Some(Ok(FinishReason::Stop))).map(Effect::Ended)
    }

    /// Ends a sequence with an error; returns `None` if the sequence is unknown.
    pub(crate) fn fail(&mut self, seq: SeqId, fault: RequestFault) -> Option<Effect> {
        self.end(seq, Some(Err(fault))).map(Effect::Ended)
    }

    /// Ends requests that have waited for their first token longer than their patience. A client whose request did not
    /// state its patience is told a retry time.
    pub(crate) fn expire(&mut self, now: Timestamp) -> Vec<Effect> {
        let expired = |sequence: &&Sequence| {
            let waited_us = now.since_us(sequence.arrival) as f64;
            let patience = &sequence.service.patience;
            sequence.first_token_at.is_none() && patience.exceeded_by(waited_us).is_some()
        };
        let live = self.queue.table.impatient(now).filter(expired);
        let expired: Vec<(SeqId, Patience)> = live.map(|s| (s.id, s.service.patience)).collect();
        let end = |(seq, patience): (SeqId, Patience)| {
            let tier = self.queue.table.get(seq)?.tier;
            let retry_after_ms = self.retry_after_ms(seq, now)?;
            let Patience { us, stated, .. } = patience;
            let patience_ms = us.unwrap_or(0) / 1000;
            let fault = RequestFault::OutOfPatience { tier, patience_ms, stated, retry_after_ms };
            self.fail(seq, fault)
        };
        expired.into_iter().filter_map(end).collect()
    }

    /// Of the waiting sequences of tiers below `tier` that have not started and are not on hold, ends the one last in
    /// rank, so that a request of `tier` can have its permit. `choices` is the number of permits that the request
    /// needs; returns `None` if these tiers have fewer waiting sequences (sequences on hold count too).
    pub(crate) fn displace(&mut self, tier: Tier, choices: u32, now: Timestamp) -> Option<Effect> {
        // Search only if there are such sequences: on a full server any refused request may ask.
        let (_, not_started) = self.queue.table.waiting_count();
        if not_started[tier.index() + 1..].iter().sum::<u32>() < choices.max(1) {
            return None;
        }
        let lower = |sequence: &&Sequence| sequence.tier > tier && !sequence.has_started();
        let last = self.queue.table.queue().rev().map(|(_, sequence)| sequence).find(lower)?.id;
        let retry_after_ms = self.retry_after_ms(last, now)?;
        self.fail(last, RequestFault::TurnedAway { retry_after_ms })
    }

    /// Returns the retry time for the client of a queued request that the server ends, ms.
    fn retry_after_ms(&self, seq: SeqId, now: Timestamp) -> Option<u64> {
        let tier = self.queue.table.get(seq)?.tier;
        Some(retry_after_ms(self.queue.drain[tier.index()].wait_us(now), seq.0))
    }

    /// Puts a sequence on hold (an operator paused it, or its client reads too slowly), or ends the hold; returns
    /// whether the sequence is known.
    pub(crate) fn set_hold(&mut self, seq: SeqId, hold: Hold, held: bool) -> bool {
        let changed = self.queue.table.change(seq, |sequence| {
            let before = (sequence.in_line(), sequence.held());
            match hold {
                Hold::Operator => sequence.held_by_operator = held,
                Hold::Stream => sequence.held_by_stream = held,
            }
            sequence.disturbed |= held;
            (sequence.party(), before, (sequence.in_line(), sequence.held()))
        });
        let Some(((tier, account), (before, was_held), (after, is_held))) = changed else {
            return false;
        };
        match (was_held, is_held) {
            (false, true) => self.ledger.rests(tier, account),
            (true, false) => self.ledger.works(tier, account),
            _ => {}
        }
        let drain = &mut self.queue.drain[tier.index()];
        match (before, after) {
            (true, false) => drain.gave_up(),
            (false, true) => drain.moved_in(),
            _ => {}
        }
        self.retry.allow_replan();
        true
    }

    /// Changes the tier and the priority of a sequence from the next plan on; returns whether the sequence is known.
    pub(crate) fn reprioritize(&mut self, seq: SeqId, tier: Tier, priority: i32) -> bool {
        let Some(mut sequence) = self.queue.table.remove(seq) else { return false };
        if sequence.in_line() && sequence.tier != tier {
            self.queue.drain[sequence.tier.index()].gave_up();
            self.queue.drain[tier.index()].moved_in();
        }
        let moves = sequence.tier != tier;
        sequence.disturbed |= moves;
        if moves && !sequence.held() {
            self.ledger.rests(sequence.tier, sequence.service.account);
            self.ledger.works(tier, sequence.service.account);
        }
        if moves {
            // In its new tier the request may be in time.
            sequence.service.late = false;
            self.deadlines.leave(&sequence);
            sequence.service.has_retry_credit = false;
            if sequence.first_token_at.is_none() {
                self.deadlines.flow[sequence.tier.index()].gave_up(sequence.arrival);
                self.deadlines.flow[tier.index()].moved_in(sequence.arrival);
            }
        }
        (sequence.tier, sequence.service.priority) = (tier, priority);
        sequence.service.best_effort = false;
        if moves {
            self.queue.place_in_new_tier(&mut sequence, &self.basis);
            self.deadlines.renew(&mut sequence, (&self.queue, &self.basis));
        } else {
            self.queue.place_again(&mut sequence, &self.basis);
        }
        self.queue.table.insert(sequence);
        self.retry.allow_replan();
        true
    }

    /// Ends a sequence. `outcome` is `None` if the client has gone. Returns the report of the sequence's end; `None` if
    /// the sequence is unknown.
    pub(crate) fn end(
        &mut self,
        seq: SeqId,
        outcome: Option<Result<FinishReason, RequestFault>>,
    ) -> Option<EndReport> {
        let sequence = self.queue.table.get(seq)?;
        if sequence.in_line() {
            self.queue.drain[sequence.tier.index()].gave_up();
        }
        self.end_uncounted(seq, outcome)
    }

    /// Ends a sequence as [`Self::end`] does, but leaves the drain rate of its tier as it is: the caller has already
    /// counted the sequence there.
    pub(crate) fn end_uncounted(
        &mut self,
        seq: SeqId,
        outcome: Option<Result<FinishReason, RequestFault>>,
    ) -> Option<EndReport> {
        let mut sequence = self.queue.table.remove(seq)?;
        self.suspects.remove(seq);
        if !sequence.held() {
            self.ledger.rests(sequence.tier, sequence.service.account);
        }
        let was_late = self.deadlines.late.contains(&sequence);
        self.deadlines.leave(&sequence);
        let complete = matches!(outcome, Some(Ok(_)));
        if sequence.first_token_at.is_none() && !complete {
            self.deadlines.flow[sequence.tier.index()].gave_up(sequence.arrival);
        }
        if sequence.tier == Tier::Premium {
            let missed = was_late && sequence.first_token_at.is_none();
            let in_target = if complete { sequence.in_target() } else { missed.then_some(false) };
            self.learn_from_premium(&sequence, in_target);
        }
        self.queue.ended(&sequence, self.used_us(&sequence), complete);
        if self.basis.rules.scheduling.batching == Batching::Static && sequence.has_started() {
            self.batch_closed = self.queue.table.iter().any(Sequence::has_started);
        }
        // Name the blocks that the last step filled, so that later sequences find them in the prefix cache. Do not name
        // blocks of a failed sequence, because its failed step may have left wrong KV in them.
        if complete && matches!(sequence.phase, Phase::Running | Phase::Preempting) {
            self.outbox.progress.push(sequence.progress(self.basis.rules.limits.block_size));
        }
        self.retry.allow_replan();
        self.outbox.ended(seq, sequence.on_device);
        Some(EndReport {
            seq,
            tier: sequence.tier,
            outcome,
            usage: sequence.usage(),
            arrival: sequence.arrival,
            first_token_at: sequence.first_token_at,
            last_token_at: sequence.last_token_at,
        })
    }

    /// Changes the excess misses of the slack reserve by a premium sequence that has ended. `in_target`: whether the
    /// sequence met all of its targets; `None` if that is not known. A late request that ends without a first token,
    /// because its client gave up for example, has missed its target. Three kinds of sequences do not count:
    /// - with targets of its own, because its client may have stated loose targets;
    /// - disturbed: it was on hold or moved to another tier;
    /// - one tier alone had requests when its last token came (without a token: when it arrived), because no reserve is
    ///   kept then.
    fn learn_from_premium(&mut self, sequence: &Sequence, in_target: Option<bool>) {
        let at = sequence.last_token_at.unwrap_or(sequence.arrival);
        let of_tier = sequence.service.stated_targets == SloTargets::default();
        let counts = of_tier && !sequence.disturbed && !self.queue.traffic(at).one_tier;
        if let Some(in_target) = in_target.filter(|_| counts) {
            self.reserve.ended(in_target);
        }
    }

    /// Returns the estimated device time that a sequence has used so far, us: the time of one prefill of its prompt
    /// without the cached prefix, and of its output tokens. Tokens that were computed again after a preemption count
    /// once.
    fn used_us(&self, sequence: &Sequence) -> f64 {
        let cached = sequence.kv.cached_tokens.unwrap_or(0);
        let computed = sequence.prompt_computed().saturating_sub(cached);
        self.basis.cost.request_us(
            computed,
            f64::from(sequence.output_len()),
            sequence.prompt_len(),
        )
    }
}

#[cfg(test)]
mod tests {
    use crate::admission::Patience;
    use crate::blocks::Salt;
    use crate::scheduler::tests::{NOW, grant_all, scheduler, sequence, step};
    use crate::scheduler::{Hold, NewSequence, RequestFault, State};
    use tiercel_config::{Batching, Policy};
    use tiercel_device::{SeqId, Tier, Timestamp};

    #[test]
    fn a_request_paused_before_its_start_does_not_hold_up_others() {
        let mut s = scheduler(|_| ());
        s.enqueue(sequence(1, Tier::Standard, 20));
        let seen = |s: &State| {
            let tier = Tier::Standard.index();
            (s.capacity(NOW).backlog_us[tier], s.queue.drain[tier].waiting())
        };
        assert_eq!(seen(&s), (200.0, 1));
        s.set_hold(SeqId(1), Hold::Operator, true);
        s.set_hold(SeqId(1), Hold::Stream, true);
        assert_eq!(seen(&s), (0.0, 0));
        s.set_hold(SeqId(1), Hold::Operator, false);
        assert_eq!(seen(&s), (0.0, 0), "its reader holds it yet");
        s.set_hold(SeqId(1), Hold::Stream, false);
        assert_eq!(seen(&s), (200.0, 1));
        s.set_hold(SeqId(1), Hold::Operator, true);
        s.enqueue(sequence(2, Tier::Standard, 20));
        s.cancel(SeqId(1));
        assert_eq!(seen(&s), (200.0, 1), "it was not counted when it left");
        let request = s.plan(NOW).expect("it can run");
        s.granted(grant_all(&request));
        assert_eq!(seen(&s), (0.0, 1), "a step in flight ends its prompt");
        s.set_hold(SeqId(2), Hold::Operator, true);
        assert_eq!(seen(&s), (0.0, 0));
    }
    #[test]
    fn blocks_are_named_after_the_tenant_only_if_prefixes_are_shared() {
        let tenant = Salt([7; 16]);
        let salts = |shared, own: bool| {
            let mut s = scheduler(|e| e.prefix_cache.enabled = shared);
            let cache_salt = own.then_some(Salt([9; 16]));
            s.enqueue(NewSequence { salt: tenant, cache_salt, ..sequence(1, Tier::Standard, 20) });
            let sequence = s.queue.table.get(SeqId(1)).expect("it waits");
            (sequence.text.salt, sequence.service.tenant)
        };
        assert_eq!(salts(true, false), (tenant, tenant));
        assert_eq!(salts(true, true), (Salt([9; 16]), tenant));
        assert_eq!(salts(false, true), (Salt::of_sequence(SeqId(1)), tenant));
    }

    #[test]
    fn a_request_that_moves_has_the_patience_of_its_new_tier_unless_it_stated_its_own() {
        let patience = |stated, tier| {
            let mut s = scheduler(|settings| settings.patience.background_s = 7.0);
            let patience = Patience { us: Some(1_000_000), before_us: 0, stated };
            s.enqueue(NewSequence { patience, ..sequence(1, Tier::Standard, 20) });
            assert!(s.reprioritize(SeqId(1), tier, 0));
            s.queue.table.get(SeqId(1)).expect("it waits").service.patience.us
        };
        assert_eq!(patience(false, Tier::Background), Some(7_000_000));
        assert_eq!(patience(false, Tier::Premium), None, "for ever");
        assert_eq!(patience(false, Tier::Standard), Some(1_000_000), "it does not move");
        assert_eq!(patience(true, Tier::Premium), Some(1_000_000));
    }

    #[test]
    fn a_request_leaves_the_line_of_its_tier_when_an_operator_moves_it() {
        let lines = |s: &State| {
            [Tier::Premium, Tier::Standard].map(|tier| s.queue.drain[tier.index()].waiting())
        };
        let mut s = scheduler(|_| ());
        s.enqueue(sequence(1, Tier::Standard, 20));
        assert!(s.reprioritize(SeqId(1), Tier::Premium, 0));
        assert_eq!(lines(&s), [1, 0]);
        s.set_hold(SeqId(1), Hold::Operator, true);
        assert!(s.reprioritize(SeqId(1), Tier::Standard, 0));
        assert_eq!(lines(&s), [0, 0], "a request on hold is in no line");
        s.set_hold(SeqId(1), Hold::Operator, false);
        assert_eq!(lines(&s), [0, 1]);
        assert!(!s.reprioritize(SeqId(2), Tier::Premium, 0), "there is no such request");
    }

    #[test]
    fn a_new_priority_in_the_same_tier_leaves_the_wait_as_it_is() {
        let mut s = scheduler(|_| ());
        s.enqueue(sequence(1, Tier::Standard, 20));
        let drain = &mut s.queue.drain[Tier::Standard.index()];
        drain.entered(Timestamp(1));
        drain.served(Timestamp(1001));
        // One request left after 1000 us, and the other one has waited 4000 us since: 5000 us for two departures.
        let wait_us = |s: &State| s.queue.drain[Tier::Standard.index()].wait_us(Timestamp(5001));
        assert_eq!(wait_us(&s), Some(2500.0));
        assert!(s.reprioritize(SeqId(1), Tier::Standard, -1));
        assert_eq!(wait_us(&s), Some(2500.0));
    }

    #[test]
    fn a_late_request_stays_late_unless_its_tier_changes() {
        let late_after = |tier| {
            let mut s = scheduler(|_| ());
            s.enqueue(sequence(1, Tier::Standard, 20));
            s.queue.set_late(SeqId(1), true, &s.basis);
            assert!(s.reprioritize(SeqId(1), tier, 5));
            s.queue.table.get(SeqId(1)).expect("it waits").service.late
        };
        assert!(late_after(Tier::Standard));
        assert!(!late_after(Tier::Premium));
        let mut s = scheduler(|_| ());
        s.enqueue(sequence(1, Tier::Standard, 20));
        assert!(s.reprioritize(SeqId(1), Tier::Standard, 5));
        assert!(!s.queue.table.get(SeqId(1)).expect("it waits").service.late);
    }

    #[test]
    fn a_starving_request_stays_in_time_with_a_new_priority() {
        let mut s = scheduler(|_| ());
        s.enqueue(sequence(1, Tier::Standard, 20));
        s.queue.set_late(SeqId(1), true, &s.basis);
        s.deadlines.late.update(s.queue.table.get(SeqId(1)).expect("it waits"));
        let is_late_at = |s: &mut State, at| {
            s.deadlines.judge(&mut s.queue, &s.basis, Timestamp(at));
            s.queue.table.get(SeqId(1)).expect("it waits").service.late
        };
        assert!(!is_late_at(&mut s, 60_000_000), "it starves");
        assert!(s.reprioritize(SeqId(1), Tier::Standard, 5));
        assert!(!is_late_at(&mut s, 60_000_000), "it starves yet");
    }

    #[test]
    fn a_stream_does_not_become_late_again_with_a_new_priority() {
        let mut s = scheduler(|_| ());
        s.enqueue(sequence(1, Tier::Standard, 20));
        s.queue.set_late(SeqId(1), true, &s.basis);
        step(&mut s);
        assert!(s.queue.table.get(SeqId(1)).expect("it decodes").first_token_at.is_some());
        assert!(s.reprioritize(SeqId(1), Tier::Standard, 5));
        assert!(s.deadlines.late.is_empty());
    }

    #[test]
    fn a_client_came_back_only_in_the_tier_that_its_retry_time_was_for() {
        let mut s = scheduler(|_| ());
        s.enqueue(NewSequence { has_retry_credit: true, ..sequence(1, Tier::Standard, 20) });
        let has_credit =
            |s: &State| s.queue.table.get(SeqId(1)).expect("it waits").service.has_retry_credit;
        assert!(s.reprioritize(SeqId(1), Tier::Standard, 5) && has_credit(&s));
        assert!(s.reprioritize(SeqId(1), Tier::Premium, 5) && !has_credit(&s));
    }

    #[test]
    fn requests_that_leave_or_move_do_not_unbalance_the_flow_of_their_tier() {
        let mut s = scheduler(|_| ());
        (1..=3).for_each(|id| s.enqueue(sequence(id, Tier::Standard, 4)));
        let excess = |s: &State| {
            [Tier::Standard, Tier::Premium].map(|tier| s.deadlines.flow[tier.index()].excess())
        };
        assert_eq!(excess(&s), [3, 0]);
        s.cancel(SeqId(3));
        assert!(s.reprioritize(SeqId(2), Tier::Premium, 0));
        assert_eq!(excess(&s), [1, 1]);
        step(&mut s);
        assert_eq!(excess(&s), [0, 0]);
        s.cancel(SeqId(1));
        assert_eq!(excess(&s), [0, 0], "a stream has been served");
        s.enqueue(sequence(4, Tier::Standard, 4));
        s.fail(SeqId(4), RequestFault::Dropped);
        assert_eq!(excess(&s), [0, 0], "a request that failed before its first token");
    }

    #[test]
    fn the_end_of_a_request_that_never_ran_leaves_a_static_batch_open() {
        let starts_after = |ended| {
            let mut s = scheduler(|e| {
                e.use_policy(Policy::Fcfs);
                e.scheduler.batching = Batching::Static;
            });
            s.enqueue(sequence(1, Tier::Standard, 4));
            s.enqueue(sequence(2, Tier::Standard, 4));
            step(&mut s);
            s.enqueue(sequence(3, Tier::Standard, 4));
            s.enqueue(sequence(4, Tier::Standard, 4));
            s.cancel(SeqId(ended)).expect("it lives");
            let request = s.plan(NOW).expect("a step");
            request.wants.iter().any(|want| want.ticket.seq == SeqId(4))
        };
        assert!(starts_after(3), "sequence 3 was not in the batch");
        assert!(!starts_after(2), "sequence 2 was in the batch");
    }
}
