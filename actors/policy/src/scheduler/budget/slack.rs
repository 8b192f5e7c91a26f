//! Slack: how far streams are ahead of their TPOT targets, and when first tokens are due.

use crate::scheduler::sequence::Sequence;
use tiercel_device::Timestamp;

/// Time by which a stream aims to end before its TPOT target allows, in multiples of the TPOT target. Steps are not
/// exactly as long as predicted, and no later step makes up the lag that a stream's last steps cause.
const EARLY_TOKENS: f64 = 1.5;
/// Lower bound of the aimed pace, as a share of the TPOT target, so that streams of few tokens do not make steps much
/// shorter. Streams of at most 16 predicted tokens aim at this pace.
const AIM_MIN: f64 = 0.9;
/// Largest lag behind its aimed pace with which a stream still limits the length of steps, in multiples of its TPOT
/// target.
/// A stream further behind was held up by something that shorter steps do not cure: a slow reader, an operator, a
/// preemption. The limit is large, because where long steps put every stream behind, ignoring the streams would make
/// steps longer still.
const MAX_BEHIND: f64 = 64.0;
/// Most tokens that count as making up a stream's lag, so that a step never holds up a stream with a long output for
/// long. This number is not above [`MAX_BEHIND`], so a stream with a recoverable lag still limits the length of steps.
const RECOVERY_TOKENS: f64 = 64.0;

/// Slack above which a stream has ample slack, in steps: the stream can then miss this step and still be in time with
/// the next step.
const AMPLE_STEPS: f64 = 2.0;
/// Length of the output for which a stream must keep time until its E2E target, in multiples of the predicted length.
const OUTPUT_MARGIN: f64 = 3.0;
/// Length of the later steps for which a stream must keep time until its E2E target, in multiples of a step now.
const STEP_MARGIN: f64 = 1.5;

/// Longest next step that one stream allows, in parts: aimed pace, time ahead of that pace, and recoverable lag.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Allowance {
    /// Aimed pace of the stream, us.
    pub(crate) aim_us: f64,
    /// Time by which the stream is ahead of its aimed pace, us; negative if it is behind.
    pub(crate) ahead_of_pace_us: f64,
    /// Recoverable lag: time that the stream is predicted to make up on its aimed pace after the next step if later
    /// steps hold no prompts, us. At most [`RECOVERY_TOKENS`] tokens count.
    pub(crate) recoverable_us: f64,
}

/// Returns the deadline of the first token by the TTFT target alone: arrival + TTFT target. Without a TTFT target,
/// returns the largest `Timestamp`; the deadline, if there is one, then follows from the E2E target
/// (`Service::deadline`).
pub(crate) fn ttft_deadline(sequence: &Sequence) -> Timestamp {
    let after_us = sequence.service.targets.ttft_ms.map_or(u64::MAX, |ms| (ms * 1000.0) as u64);
    Timestamp(sequence.arrival.0.saturating_add(after_us))
}

/// Returns when the first token of a stream came. If a step in flight is still sampling the first token, returns
/// `begins`, the start of the planned step. `None` if no step in flight samples it yet.
fn first_token(stream: &Sequence, begins: Timestamp) -> Option<Timestamp> {
    stream.first_token_at.or_else(|| (stream.planned_output() > 0).then_some(begins))
}

/// Returns the sort key of a running sequence as a victim under the rule `preemption.victim = slack`; of equally
/// protected sequences of one effective tier, the one with the smallest key is preempted first. The less a stream is
/// ahead of its TPOT target, the larger is its key. The key is 0 if the sequence has no TPOT target, or if its first
/// token neither came nor is being sampled by a step in flight.
pub(crate) fn urgency(stream: &Sequence, begins: Timestamp) -> u64 {
    let tpot_ms = stream.service.targets.tpot_ms;
    let (Some(target_ms), Some(first)) = (tpot_ms, first_token(stream, begins)) else {
        return 0;
    };
    let at_target_us = target_ms * 1000.0 * (f64::from(stream.planned_output()) - 1.0);
    let slack_us = at_target_us - begins.since_us(first) as f64;
    // The key of a stream that is neither ahead nor behind is in the middle, because keys are not negative.
    (1_u64 << 63).saturating_add_signed(-(slack_us as i64)).max(1)
}

/// Returns the time by which a sequence is ahead of its latency target, us: of its TTFT target before the first token,
/// of its TPOT target afterwards. Negative if it is behind; `None` without the target.
pub(crate) fn slack_us(sequence: &Sequence, now: Timestamp) -> Option<i64> {
    let targets = &sequence.service.targets;
    let due = match sequence.first_token_at {
        None => targets.ttft_ms.map(|_| ttft_deadline(sequence))?,
        Some(first) => {
            let pace_us = targets.tpot_ms? * 1000.0;
            first + (pace_us * f64::from(sequence.output_len().saturating_sub(1))) as u64
        }
    };
    Some(due.0 as i64 - now.0 as i64)
}

/// Returns the ample slack of a stream, us: by how much it would be ahead if its next token came at `begins`, by its
/// TPOT target or, if less, its E2E target; infinite without both. `None` if the slack is at most [`AMPLE_STEPS`] steps
/// of `step_us`, or if the stream has no first token, not even in flight. For E2E the output is taken to be
/// [`OUTPUT_MARGIN`] times as long as predicted (at most `max_tokens`), in steps [`STEP_MARGIN`] times as long.
pub(crate) fn ample_slack_us(stream: &Sequence, step_us: f64, begins: Timestamp) -> Option<f64> {
    let first = first_token(stream, begins)?;
    let targets = &stream.service.targets;
    let by_pace = targets.tpot_ms.map_or(f64::INFINITY, |ms| {
        ms * 1000.0 * f64::from(stream.planned_output()) - begins.since_us(first) as f64
    });
    let by_end = targets.e2e_ms.map_or(f64::INFINITY, |ms| {
        let predicted = OUTPUT_MARGIN * stream.service.predicted_tokens;
        let still = (predicted - f64::from(stream.planned_output()))
            .clamp(1.0, f64::from(stream.output_left()).max(1.0));
        ms * 1000.0 - begins.since_us(stream.arrival) as f64 - still * STEP_MARGIN * step_us
    });
    Some(by_pace.min(by_end)).filter(|us| *us > AMPLE_STEPS * step_us)
}

/// Returns the aimed pace of a stream, us; `None` without a TPOT target. A stream of the predicted length that keeps
/// the aimed pace ends [`EARLY_TOKENS`] TPOT targets early, or as early as [`AIM_MIN`] allows.
pub(crate) fn aimed_pace_us(stream: &Sequence) -> Option<f64> {
    let target_us = stream.service.targets.tpot_ms? * 1000.0;
    // If a stream is longer than predicted, one more token of it is expected.
    let length = stream.service.predicted_tokens.max(f64::from(stream.planned_output()) + 1.0);
    let steps = (length - 1.0).max(1.0);
    Some(target_us * (1.0 - EARLY_TOKENS / steps).max(AIM_MIN))
}

/// Returns the longest next step that a stream allows; `None` if it has no TPOT target, has no first token yet, can no
/// longer meet the target even in steps of `bare_us`, or is too far behind (`MAX_BEHIND`).
pub(crate) fn allowance(stream: &Sequence, bare_us: f64, begins: Timestamp) -> Option<Allowance> {
    let target_us = stream.service.targets.tpot_ms? * 1000.0;
    let aim_us = aimed_pace_us(stream)?;
    let elapsed_us = begins.since_us(first_token(stream, begins)?) as f64;
    let steps = f64::from(stream.planned_output()) - 1.0;
    let ahead_of_pace_us = aim_us * steps - elapsed_us;
    let output_left = f64::from(stream.output_left());
    let lost = target_us * steps - elapsed_us + output_left * (target_us - bare_us) < 0.0
        || ahead_of_pace_us < -MAX_BEHIND * target_us;
    let gain_us = aim_us - bare_us;
    // The planned step gives the stream one token; tokens after it can make up a lag.
    let predicted = stream.service.predicted_tokens - f64::from(stream.planned_output()) - 1.0;
    let tokens = predicted.min(output_left - 1.0).clamp(0.0, RECOVERY_TOKENS);
    let recoverable_us = tokens * gain_us.max(0.0);
    (!lost).then_some(Allowance { aim_us, ahead_of_pace_us, recoverable_us })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::budget::fixtures::{assert_near, prompt, stream};
    use crate::scheduler::pipeline::progress::Part;
    use tiercel_device::{StepId, Tier};

    /// Creates a stream with `output` output tokens and a TPOT target of `tpot_ms`. It arrived at 1,000 us, and its
    /// first token came at 11,000 us.
    fn paced(output: u32, tpot_ms: Option<f64>) -> Sequence {
        let mut stream = stream(1_000, Tier::Premium, (9, output), 11_000);
        stream.text.max_tokens = 900;
        stream.service.targets.tpot_ms = tpot_ms;
        stream
    }

    #[test]
    fn a_first_token_in_flight_counts_as_coming_now_and_one_not_in_flight_as_none() {
        let begins = Timestamp(90_000);
        assert_eq!(first_token(&paced(3, None), begins), Some(Timestamp(11_000)));
        let mut starting = prompt(1, Tier::Premium, 9, 4);
        assert_eq!(first_token(&starting, begins), None);
        let part = Part { step: StepId(1), computed: Some(9), samples: true, void: false };
        starting.kv.in_flight.submit(part);
        assert_eq!(first_token(&starting, begins), Some(begins));
    }

    #[test]
    fn the_slack_is_against_ttft_before_the_first_token_and_against_tpot_after_it() {
        let mut waiting = prompt(1, Tier::Premium, 9, 4);
        waiting.service.targets.ttft_ms = None;
        assert_eq!(slack_us(&waiting, Timestamp(900)), None);
        waiting.service.targets.ttft_ms = Some(2.0);
        assert_eq!(slack_us(&waiting, Timestamp(900)), Some(1_101), "it arrived at 1 us");
        assert_eq!(slack_us(&waiting, Timestamp(3_000)), Some(-999));
        // The third token is due 2 * 30 ms after the first, which came at 11 ms.
        let stream = paced(3, Some(30.0));
        assert_eq!(slack_us(&stream, Timestamp(50_000)), Some(21_000));
        assert_eq!(slack_us(&paced(3, None), Timestamp(50_000)), None);
    }

    #[test]
    fn the_urgency_is_smaller_by_each_microsecond_that_a_stream_is_ahead() {
        let key_of_none_ahead = 1_u64 << 63;
        // Due after 4 of 5 tokens at 2000 ms each: 8,000,000 us. The stream took 7,999,999 us, so it is 1 us ahead.
        let ahead = urgency(&paced(5, Some(2000.0)), Timestamp(11_000 + 7_999_999));
        assert_eq!(ahead, key_of_none_ahead - 1);
        // Due after 2 of 3 tokens: 4,000,000 us. The stream took 5,000,003 us, so it is 1,000,003 us behind.
        let behind = urgency(&paced(3, Some(2000.0)), Timestamp(11_000 + 5_000_003));
        assert_eq!(behind, key_of_none_ahead + 1_000_003);
        assert_eq!(urgency(&paced(3, None), Timestamp(5_000_000)), 0, "without a TPOT target");
    }

    #[test]
    fn ample_slack_against_tpot_is_the_time_of_all_tokens_less_the_time_since_the_first() {
        let stream = paced(5, Some(30.0));
        // 5 tokens of 30 ms are 150,000 us; 40,000 us have passed since the first token.
        let begins = Timestamp(11_000 + 40_000);
        assert_eq!(ample_slack_us(&stream, 7_000.0, begins), Some(110_000.0));
        assert_eq!(ample_slack_us(&stream, 54_999.0, begins), Some(110_000.0));
        assert_eq!(ample_slack_us(&stream, 55_000.0, begins), None, "exactly two steps");
        assert_eq!(ample_slack_us(&prompt(1, Tier::Premium, 9, 4), 7_000.0, begins), None);
    }

    #[test]
    fn ample_slack_against_e2e_leaves_one_and_a_half_steps_for_each_token_to_come() {
        let slack_us = |predicted, output_left: u32, tpot_ms| {
            let mut stream = paced(5, tpot_ms);
            stream.service.targets.e2e_ms = Some(400.0);
            stream.service.predicted_tokens = predicted;
            stream.text.max_tokens = 5 + output_left;
            ample_slack_us(&stream, 3_000.0, Timestamp(1_000 + 60_000))
        };
        // Three times the predicted 7 tokens, less the 5 that the stream has, are 16 to come: 1.5 * 16 steps of 3,000
        // us are 72,000 us. 400,000 us, less 60,000 us since the arrival, less 72,000 us are 268,000 us.
        assert_eq!(slack_us(7.0, 90, None), Some(268_000.0));
        // At most 4 tokens may come: 1.5 * 4 steps are 18,000 us.
        assert_eq!(slack_us(7.0, 4, None), Some(322_000.0));
        // At least one token comes, although the stream is longer than three times the prediction: 4,500 us.
        assert_eq!(slack_us(1.5, 90, None), Some(335_500.0));
        // The tighter target counts. TPOT: 5 tokens of 30 ms, less 50,000 us since the first token.
        assert_eq!(slack_us(7.0, 90, Some(30.0)), Some(100_000.0));
        assert_eq!(slack_us(7.0, 90, Some(300.0)), Some(268_000.0));
    }

    #[test]
    fn a_stream_aims_to_end_one_and_a_half_targets_early_at_no_less_than_nine_tenths_of_its_target()
    {
        let aimed_us = |predicted, output| {
            let mut stream = paced(output, Some(0.5));
            stream.service.predicted_tokens = predicted;
            aimed_pace_us(&stream).expect("it has a target")
        };
        // 30 steps end 1.5 targets early if each takes 95 % of the target.
        assert_near(aimed_us(31.0, 5), 475.0);
        assert_near(aimed_us(301.0, 5), 497.5);
        assert_near(aimed_us(16.0, 5), 450.0);
        assert_near(aimed_us(2.0, 1), 450.0);
        // One more token is expected of a stream that has at least as many as predicted.
        assert_near(aimed_us(16.0, 30), 475.0);
        assert_near(aimed_us(0.5, 1), 450.0);
    }

    #[test]
    fn a_stream_that_can_just_meet_its_target_limits_the_step_and_a_later_one_does_not() {
        let slack_us = |output_left: u32, elapsed_us: u64| {
            let mut stream = paced(3, Some(0.5));
            stream.service.predicted_tokens = 31.0;
            stream.text.max_tokens = 3 + output_left;
            allowance(&stream, 101.0, Timestamp(11_000 + elapsed_us))
                .map(|found| found.ahead_of_pace_us)
        };
        // The third token is due 1,000 us after the first by the target, and 950 us by the aimed pace. With 4 tokens
        // left in steps of 101 us the stream can gain 4 * 399 us = 1,596 us on its target.
        assert_eq!(slack_us(4, 2_596), Some(950.0 - 2_596.0));
        assert_eq!(slack_us(4, 2_597), None);
        // A stream with 800 tokens left could still meet its target. But a stream that is more than 64 * 500 us =
        // 32,000 us behind its aimed pace limits no step.
        assert_eq!(slack_us(800, 32_950), Some(-32_000.0));
        assert_eq!(slack_us(800, 32_951), None);
    }

    #[test]
    fn the_recoverable_lag_counts_the_tokens_that_are_predicted_after_the_next_step() {
        let recoverable_us = |predicted, output_left: u32, bare_us| {
            let mut stream = paced(5, Some(0.5));
            stream.service.predicted_tokens = predicted;
            stream.text.max_tokens = 5 + output_left;
            let allowance = allowance(&stream, bare_us, Timestamp(11_000));
            allowance.expect("the stream is ahead of its target").recoverable_us
        };
        // The stream aims at 450 us per token if few are predicted, so it makes up 350 us with each token in steps of
        // 100 us. It has 5 tokens, and the next step gives it the sixth.
        assert_near(recoverable_us(12.0, 90, 100.0), 6.0 * 350.0);
        assert_near(recoverable_us(12.0, 4, 100.0), 3.0 * 350.0); // At most 3 tokens come after it.
        assert_near(recoverable_us(3.0, 90, 100.0), 0.0); // None is predicted to come.
        // Of 751 predicted tokens, 64 count: a stream aims at 499 us for each.
        assert_near(recoverable_us(751.0, 900, 100.0), 64.0 * 399.0);
        assert_near(recoverable_us(12.0, 3, 500.0), 0.0); // Steps are longer than the pace.
    }
}
