//! Replays the sequences of a recording of live traffic, with the requests' hints and the times at which clients leave.

use std::sync::Arc;
use tiercel_actors::{Request, StreamEvent, TokenStream};
use tiercel_config::SloTargets;
use tiercel_device::{Clock, SamplingParams, Timestamp, TokenId};
use tiercel_policy::Weight;
use tiercel_policy::blocks::Salt;
use tiercel_workload::{Outcome, Planned, RecordedRequest, Targets};

/// Stop token of simulated requests, with which the device ends their output. Only requests whose output may end before
/// its largest length use it.
pub(crate) const END_TOKEN: TokenId = 0;

/// Makes the request of a recorded sequence.
pub(crate) fn request(
    recorded: &RecordedRequest,
    prompt: Arc<[TokenId]>,
    greedy: &Arc<SamplingParams>,
) -> Request {
    let mut salt = [0; 16];
    salt[..4].copy_from_slice(&recorded.tenant.to_le_bytes());
    // A sequence whose output ended at its limit, or at the limit of the model's context, gets no stop token, so that
    // its output ends at the same limit again.
    let may_stop = recorded.seen.outcome != Outcome::Length;
    Request {
        tier: recorded.tier,
        priority: recorded.priority,
        salt: Salt(salt),
        weight: Weight::new(recorded.share),
        prompt,
        max_tokens: recorded.sent_max_tokens(),
        stop_tokens: if may_stop { Arc::from([END_TOKEN]) } else { Arc::from([]) },
        sampling: Arc::clone(greedy),
        targets: recorded.targets.map(stated).unwrap_or_default(),
        may_tighten: recorded.may_tighten,
        max_wait_ms: recorded.max_wait_ms,
        waited_ms: 0,
        sibling: recorded.choice > 0,
        cache_salt: None,
        returning: recorded.returning,
    }
}

fn stated(targets: Targets) -> SloTargets {
    SloTargets {
        ttft_ms: targets.ttft_ms,
        ttft_ms_per_token: targets.ttft_ms_per_token,
        ttft_prompt_tokens: targets.ttft_prompt_tokens,
        ttft_ms_per_token_fewer: targets.ttft_ms_per_token_fewer,
        tpot_ms: targets.tpot_ms,
        e2e_ms: targets.e2e_ms,
    }
}

/// Returns the time at which the client of a request that is due at `due` leaves; `None` if it stays.
pub(crate) fn leaves_at(planned: &Planned, due: Timestamp) -> Option<Timestamp> {
    let recorded = planned.recorded.as_ref()?;
    recorded.left_after_us().map(|us| due + us)
}

/// Returns the next event of a response stream; `None` if none comes before `at`, when the client leaves.
pub(crate) async fn next_until(
    clock: &Clock,
    stream: &mut TokenStream,
    at: Timestamp,
) -> Option<Option<StreamEvent>> {
    tokio::select! {
        biased;
        event = stream.next() => Some(event),
        () = clock.sleep_until(at) => None,
    }
}
