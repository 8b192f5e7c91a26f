//! Pausing: streams are left out of a step, without losing their blocks, so that streams of higher tiers keep their
//! TPOT targets. While blocks are ample, background streams are also left out so that prompts of higher tiers that are
//! not late are computed sooner.

use crate::scheduler::budget::slack::ample_slack_us;
use crate::scheduler::budget::step_budget::StepBudget;
use crate::scheduler::candidate::{Candidate, decode_work};
use crate::scheduler::cost::CostModel;
use std::cmp::Reverse;
use std::collections::BTreeSet;
use tiercel_device::{SeqId, Tier, Timestamp};

/// Time after which a candidate with one token left to compute counts as overdue, us: time since its last token, or
/// since its arrival before its first token; for a background or best-effort candidate at most the time since the
/// block store last denied it blocks. Of the overdue background and best-effort candidates one is kept in each
/// step, so that every one makes progress even while higher tiers leave no time. Overdue standard streams are all kept.
const PAUSED_MAX_US: u64 = 2_000_000;

/// Leaves streams out of the step, in two stages.
///
/// Stage 1: background and best-effort streams, beginning with the last candidate, until the rest of these streams fits
/// into the time that higher tiers' streams and the prefill demand leave. With `ample_blocks`, the time of all
/// uncomputed tokens of higher tiers' prompts in time counts instead of the prefill demand if this time is longer. One
/// overdue stream stays (see [`overdue`]).
///
/// Stage 2: standard streams with ample slack, those with the most slack first, until the step is as short as premium
/// streams allow. Overdue standard streams stay, and so does the overdue stream of stage 1.
pub(crate) fn pause(
    candidates: &mut Vec<Candidate<'_>>,
    budget: &StepBudget,
    (cost, ample_blocks): (&CostModel, bool),
    begins: Timestamp,
) {
    let high =
        |candidate: &&Candidate<'_>| candidate.sequence.tier_before_ageing() < Tier::Background;
    let bare_us = cost.step_us(&decode_work(candidates.iter().filter(high)));
    let prompts = candidates.iter().filter(high).filter(|candidate| !candidate.one_token_left);
    let in_time_us = if ample_blocks { in_time_us(prompts, cost) } else { 0.0 };
    let background_us = budget.background_us(bare_us, in_time_us);
    let low = |candidate: &Candidate<'_>| candidate.one_token_left && !high(&candidate);
    let overdue = overdue(candidates.iter().filter(|candidate| low(candidate)), begins);
    let streams = candidates.iter().filter(|candidate| low(candidate));
    let mut needed_us: f64 = streams.map(|stream| cost.decode_us(stream.len)).sum();
    // Keep at least one candidate, because a TPOT target may be shorter than a step of a single stream.
    while needed_us > background_us && candidates.len() > 1 {
        let pausable = |c: &Candidate<'_>| low(c) && Some(c.sequence.id) != overdue;
        let Some(at) = candidates.iter().rposition(pausable) else { break };
        needed_us -= cost.decode_us(candidates.remove(at).len);
    }
    let over_us = budget.over_premium_us(bare_us);
    pause_standard(candidates, (over_us, overdue), (cost, bare_us), begins);
}

/// Returns the time that computing the rest of all prompts in time takes, us.
fn in_time_us<'a, 'b: 'a>(
    prompts: impl Iterator<Item = &'a Candidate<'b>>,
    cost: &CostModel,
) -> f64 {
    let in_time = prompts.map(|prompt| prompt.sequence).filter(|sequence| !sequence.service.late);
    let rests = in_time.map(|sequence| (sequence.left_to_compute(), sequence.planned_len()));
    rests.map(|(left, len)| cost.prefill_us(left, len - left)).sum()
}

/// Leaves standard streams out of a step that is longer than premium streams allow by `over_us`: the streams with the
/// most slack first, and none without ample slack. Overdue streams stay, and so does the stream `kept`.
fn pause_standard(
    candidates: &mut Vec<Candidate<'_>>,
    (mut over_us, kept): (f64, Option<SeqId>),
    (cost, bare_us): (&CostModel, f64),
    begins: Timestamp,
) {
    if over_us <= 0.0 {
        return;
    }
    let standard = |c: &&Candidate<'_>| {
        let (at, id) = waits_since(c);
        let overdue = begins.since_us(at) > PAUSED_MAX_US;
        c.one_token_left && c.sequence.tier == Tier::Standard && !overdue && Some(id) != kept
    };
    let with_slack = candidates.iter().filter(standard).filter_map(|candidate| {
        let us = ample_slack_us(candidate.sequence, bare_us, begins)?;
        Some((Reverse(us as u64), candidate.sequence.id, cost.decode_us(candidate.len)))
    });
    let mut with_slack: Vec<(Reverse<u64>, SeqId, f64)> = with_slack.collect();
    with_slack.sort_unstable_by_key(|(us, seq, _)| (*us, *seq));
    let needed = with_slack.iter().take_while(|(.., decode_us)| {
        let needed = over_us > 0.0;
        over_us -= decode_us;
        needed
    });
    let paused: BTreeSet<SeqId> = needed.map(|(_, seq, _)| *seq).collect();
    candidates.retain(|candidate| !paused.contains(&candidate.sequence.id));
}

/// Returns the stream that has waited longest for a token, if it has waited for longer than [`PAUSED_MAX_US`]. The wait
/// of a stream that was denied blocks begins again with its last denial, so that streams that lack blocks do not keep
/// the place from those that have them.
fn overdue<'a, 'b: 'a>(
    streams: impl Iterator<Item = &'a Candidate<'b>>,
    begins: Timestamp,
) -> Option<SeqId> {
    let since = streams.map(|stream| {
        let (at, seq) = waits_since(stream);
        (stream.sequence.kv.denied_at.map_or(at, |denied| denied.max(at)), seq)
    });
    since.min().filter(|(at, _)| begins.since_us(*at) > PAUSED_MAX_US).map(|(_, seq)| seq)
}

/// Returns the time since which a candidate waits for a token (its last token, or its arrival), and its id.
fn waits_since(candidate: &Candidate<'_>) -> (Timestamp, SeqId) {
    let sequence = candidate.sequence;
    (sequence.last_token_at.unwrap_or(sequence.arrival), sequence.id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::budget::fixtures::{cost, prompt, stream};
    use crate::scheduler::plan::fixtures::{candidates, view};
    use crate::scheduler::sequence::Sequence;
    use crate::scheduler::tests::{NOW, scheduler};
    use tiercel_config::SloTargets;

    fn ids(candidates: &[Candidate<'_>]) -> Vec<u64> {
        candidates.iter().map(|candidate| candidate.sequence.id.0).collect()
    }

    /// Returns the streams that stay in a step of at most 1,200 us: 30 % of premium's TTFT target of 4 ms. A step
    /// without streams takes 100 us, so background streams have 1,100 us.
    fn kept(streams: &[Sequence]) -> Vec<u64> {
        kept_beside(streams, false)
    }

    /// Returns the sequences that stay in such a step.
    fn kept_beside(sequences: &[Sequence], ample: bool) -> Vec<u64> {
        let mut s = scheduler(|_| ());
        s.basis.cost = cost();
        s.basis.targets.premium.ttft_ms = Some(4.0);
        for tier in [Tier::Premium, Tier::Background] {
            s.queue.arrivals.set(tier, Some(NOW));
        }
        let (mut candidates, view) = (candidates(sequences), view(&s));
        let given = (view.traffic, view.reserve);
        let budget = StepBudget::new(&candidates, view.basis, given, NOW).expect("slack counts");
        pause(&mut candidates, &budget, (&s.basis.cost, ample), NOW);
        ids(&candidates)
    }

    #[test]
    fn background_streams_that_just_fit_into_the_step_are_not_paused() {
        // Decoding a stream with 1,086 tokens of KV adds 7 us to a step, and 0.5 us for each of these tokens: 550 us.
        let of = |id, prompt_len| stream(id, Tier::Background, (prompt_len, 6), 50);
        assert_eq!(kept(&[of(1, 1_080), of(2, 1_080)]), [1, 2]);
        assert_eq!(kept(&[of(1, 1_080), of(2, 1_081)]), [1]);
    }

    #[test]
    fn while_blocks_are_ample_streams_are_paused_for_the_whole_rest_of_a_standard_prompt_in_time() {
        // The 12 tokens of the prompt take 12 * 8 us and 0.25 us for each of 66 pairs of tokens: 112.5 us. Its target
        // is far away, so its demand in this step is less than 1 us. The streams take 550 us, and 437.5 us with 855
        // prompt tokens or 438 us with 856.
        let kept = |ample, late, stream_len| {
            let of = |id, prompt_len| stream(id, Tier::Background, (prompt_len, 6), 50);
            let mut standard = prompt(1, Tier::Standard, 12, 0);
            standard.service.targets.ttft_ms = Some(1_000.0);
            standard.service.late = late;
            kept_beside(&[standard, of(2, 1_080), of(3, stream_len)], ample)
        };
        assert_eq!(kept(false, false, 856), [1, 2, 3]);
        assert_eq!(kept(true, false, 855), [1, 2, 3]);
        assert_eq!(kept(true, false, 856), [1, 2]);
        assert_eq!(kept(true, true, 856), [1, 2, 3], "a late prompt");
    }

    #[test]
    fn the_last_candidate_of_a_step_is_not_paused() {
        assert_eq!(kept(&[stream(1, Tier::Background, (2_000, 6), 50)]), [1]);
    }

    #[test]
    fn standard_streams_with_most_slack_are_paused_until_the_step_is_short_enough() {
        let left = |over_us, kept: Option<SeqId>| {
            let mut streams = [1, 2, 3].map(|id| stream(id, Tier::Standard, (9, 3), 50));
            for (stream, tpot_ms) in streams.iter_mut().zip([30.0, 60.0, 50.0]) {
                stream.service.targets.tpot_ms = Some(tpot_ms);
            }
            let mut candidates = candidates(&streams);
            pause_standard(&mut candidates, (over_us, kept), (&cost(), 100.0), NOW);
            ids(&candidates)
        };
        // A stream of 12 tokens takes 7 + 12 * 0.5 = 13 us.
        assert_eq!(left(0.0, None), [1, 2, 3]);
        assert_eq!(left(13.0, None), [1, 3]);
        assert_eq!(left(13.5, None), [1]);
        assert_eq!(left(27.0, None), [] as [u64; 0]);
        assert_eq!(left(13.0, Some(SeqId(2))), [1, 2], "the overdue stream stays");
    }

    #[test]
    fn a_standard_stream_without_a_target_is_paused_for_two_seconds_at_most() {
        let mut streams = [stream(1, Tier::Standard, (9, 3), 50)];
        streams[0].service.targets = SloTargets::default();
        let left = |at| {
            let mut candidates = candidates(&streams);
            pause_standard(&mut candidates, (13.0, None), (&cost(), 100.0), Timestamp(at));
            candidates.len()
        };
        assert_eq!([left(50 + PAUSED_MAX_US), left(51 + PAUSED_MAX_US)], [0, 1]);
    }

    #[test]
    fn the_stream_that_has_waited_longest_since_its_token_or_its_denial_is_overdue() {
        let mut streams = [(1, 1_000), (2, 500), (3, 700)]
            .map(|(id, last_at)| stream(id, Tier::Background, (9, 3), last_at));
        streams[1].kv.denied_at = Some(Timestamp(800));
        let overdue = |streams: &[Sequence], at| {
            overdue(candidates(streams).iter(), Timestamp(at + PAUSED_MAX_US))
        };
        assert_eq!(overdue(&streams, 700), None);
        assert_eq!(overdue(&streams, 701), Some(SeqId(3)));
        // A prompt with one token left to compute has no token yet, so it waits since its arrival.
        (streams[0].last_token_at, streams[0].arrival) = (None, Timestamp(600));
        assert_eq!(overdue(&streams, 600), None);
        assert_eq!(overdue(&streams, 601), Some(SeqId(1)));
        assert_eq!(overdue(&streams[1..2], 800), None);
        assert_eq!(overdue(&streams[1..2], 801), Some(SeqId(2)), "the store may have blocks again");
    }
}
