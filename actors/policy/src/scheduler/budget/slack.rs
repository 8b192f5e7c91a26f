//! Slack: how far streams are ahead of their TPOT targets, and when first tokens are due.

use crate::scheduler::sequence::Sequence;
use tiercel_device::Timestamp;

/// Time per token that streams aim at, as a share of the TPOT target: a little below 1, because steps are not exactly
/// as long as predicted.
pub(crate) const AIM: f64 = 0.98;
/// Largest lag (negative slack) with which a stream still limits the length of steps, in multiples of its TPOT target.
/// A stream further behind was held up by something that shorter steps do not cure: a slow reader, an operator, a
/// preemption. The limit is large, because where long steps put every stream behind, ignoring the streams would make
/// steps longer still.
const MAX_BEHIND: f64 = 64.0;

/// Longest next step that one stream allows: the time per token that it aims at, plus its slack.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Allowance {
    /// Time per token that the stream aims at, us.
    pub(crate) aim_us: f64,
    /// Time by which the stream is ahead of the pace that it aims at, us; negative if it is behind.
    pub(crate) slack_us: f64,
}

/// Returns the deadline of a sequence's first token: arrival + TTFT target; the end of time without a target.
pub(crate) fn first_token_due(sequence: &Sequence) -> Timestamp {
    let after_us = sequence.service.targets.ttft_ms.map_or(u64::MAX, |ms| (ms * 1000.0) as u64);
    Timestamp(sequence.arrival.0.saturating_add(after_us))
}

/// Returns when the first token of a stream came. If a step in flight is still sampling the first token, returns `now`,
/// the start of the planned step. `None` if no step in flight samples it yet.
fn first_token(stream: &Sequence, now: Timestamp) -> Option<Timestamp> {
    stream.first_token_at.or_else(|| (stream.planned_output() > 0).then_some(now))
}

/// Returns a sort key of a sequence that sends tokens to its client: the key is larger the less the sequence is ahead
/// of its TPOT target, and 0 if it has no TPOT target.
pub(crate) fn urgency(stream: &Sequence, now: Timestamp) -> u64 {
    let tpot_ms = stream.service.targets.tpot_ms;
    let (Some(target_ms), Some(first)) = (tpot_ms, first_token(stream, now)) else {
        return 0;
    };
    let due_us = target_ms * 1000.0 * (f64::from(stream.planned_output()) - 1.0);
    let slack_us = due_us - now.since_us(first) as f64;
    // The cast to `u64` saturates at its bounds, which a slack in us never reaches.
    (u64::MAX as f64 / 2.0 - slack_us).max(1.0) as u64
}

/// Returns the slack of a stream against the tightest of its TPOT and E2E targets, us, if it exceeds two steps of
/// `step_us`; `None` otherwise.
pub(crate) fn ample_slack_us(stream: &Sequence, step_us: f64, now: Timestamp) -> Option<f64> {
    let first = first_token(stream, now)?;
    let targets = &stream.service.targets;
    let by_pace = targets.tpot_ms.map_or(f64::INFINITY, |ms| {
        ms * 1000.0 * f64::from(stream.planned_output()) - now.since_us(first) as f64
    });
    let by_end = targets.e2e_ms.map_or(f64::INFINITY, |ms| {
        let predicted = 3.0 * stream.service.predicted_tokens;
        let still = (predicted - f64::from(stream.planned_output()))
            .clamp(1.0, f64::from(stream.output_left()).max(1.0));
        ms * 1000.0 - now.since_us(stream.arrival) as f64 - still * 1.5 * step_us
    });
    Some(by_pace.min(by_end)).filter(|us| *us > 2.0 * step_us)
}

/// Returns the longest next step that a stream allows; `None` if it has no TPOT target, has no first token yet, can no
/// longer meet the target even in steps of `bare_us`, or is too far behind (`MAX_BEHIND`).
pub(crate) fn allowance(stream: &Sequence, bare_us: f64, now: Timestamp) -> Option<Allowance> {
    let aim_us = stream.service.targets.tpot_ms? * 1000.0 * AIM;
    let elapsed_us = now.since_us(first_token(stream, now)?) as f64;
    let slack_us = aim_us * (f64::from(stream.planned_output()) - 1.0) - elapsed_us;
    let can_gain_us = f64::from(stream.output_left()) * (aim_us - bare_us);
    let lost = slack_us + can_gain_us < 0.0 || slack_us < -MAX_BEHIND * aim_us;
    (!lost).then_some(Allowance { aim_us, slack_us })
}
