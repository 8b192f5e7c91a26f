//! Tests of the scheduler. Each test plays the block store: it writes the answers to step requests by hand.

mod accounting;
mod faults;
mod knobs;
mod late_masks;
mod phase_table;
mod pipeline;
mod retaining;
mod shortage;
mod step_budget;
mod swap_price;
mod tenant_turns;
mod tier_shares;

use super::*;
use crate::Weight;
use crate::admission::Patience;
use crate::blocks::Salt;
use crate::protocol::{
    Grant, GrantOutcome, PreemptOutcome, Preempted, StepGrant, StepRequest, StoreEvent, Want,
    WantKind,
};
use std::sync::Arc;
use tiercel_config::{EngineSettings, Policy, SloSettings, SloTargets, Target, TierSlo};
use tiercel_device::{
    BlockId, DeviceInfo, DeviceProfile, Epoch, Sampled, SamplingParams, SeqId, StepBatch, StepDone,
    StepOutput, StepTiming, Ticket, Tier, Timestamp,
};

/// Number of tokens in a KV block of the test device.
pub(super) const BLOCK: u32 = 4;
/// Time of planning in tests whose result does not depend on the time.
pub(super) const NOW: Timestamp = Timestamp(500);

/// Percentage of the copy bandwidth for mirroring. With mirroring on, plans list victims even if no sequence is short
/// of blocks.
pub(super) const MIRROR_PERCENT: u32 = 1;

/// Returns the latency targets of a tier, all in ms.
pub(super) fn stated(ttft: f64, tpot: f64, e2e: f64) -> TierSlo {
    let (ttft_ms, tpot_ms, e2e_ms) = (Target::Ms(ttft), Target::Ms(tpot), Target::Ms(e2e));
    TierSlo { ttft_ms, tpot_ms, e2e_ms, ..TierSlo::default() }
}

/// Creates a scheduler for a device with one step in flight; `change` adjusts the test settings.
pub(super) fn scheduler(change: impl FnOnce(&mut EngineSettings)) -> State {
    scheduler_of_depth(1, change)
}

/// Creates a scheduler for a device that takes `max_steps_in_flight` steps in flight; `change` adjusts the test
/// settings.
pub(super) fn scheduler_of_depth(
    max_steps_in_flight: u32,
    change: impl FnOnce(&mut EngineSettings),
) -> State {
    let mut settings = EngineSettings::default();
    settings.scheduler.max_num_seqs = 8;
    settings.scheduler.max_num_batched_tokens = 32;
    settings.slo = SloSettings { premium: stated(200.0, 30.0, 5_000.0), ..SloSettings::default() };
    settings.slo.standard = stated(500.0, 80.0, 15_000.0);
    settings.slo.background.e2e_ms = Target::Ms(60_000.0);
    change(&mut settings);
    let info = DeviceInfo {
        name: "test".into(),
        block_size: BLOCK,
        device_blocks: 100,
        host_blocks: 100,
        block_bytes: 1000,
        max_steps_in_flight,
        max_model_len: 1000,
        vocab_size: 100,
    };
    let profile = DeviceProfile {
        step_base_us: 100.0,
        decode_token_us: 1.0,
        prefill_token_us: 10.0,
        kv_token_us: 0.0,
        prefill_context_us: 0.0,
        link_bytes_per_s: 1e9,
    };
    State::new(&settings, &info, profile)
}

/// Returns a new sequence of `prompt` prompt tokens that arrives at `id` us.
pub(super) fn sequence(id: u64, tier: Tier, prompt: u32) -> NewSequence {
    NewSequence {
        seq: SeqId(id),
        tier,
        priority: 0,
        salt: Salt([0; 16]),
        weight: Weight::default(),
        prompt: (0..prompt).collect(),
        max_tokens: 4,
        stop_tokens: Arc::from([99]),
        targets: SloTargets::default(),
        may_tighten: None,
        patience: Patience { us: Some(100_000_000), before_us: 0, stated: false },
        has_retry_credit: false,
        cache_salt: None,
        sampling: Arc::new(SamplingParams::greedy()),
        arrival: Timestamp(id),
    }
}

/// Returns the ticket (sequence and epoch) of a sequence that was never preempted.
pub(super) fn ticket(id: u64) -> Ticket {
    Ticket { seq: SeqId(id), epoch: Epoch(0) }
}

/// Returns the block store's answer that grants all blocks that a step request asks for.
pub(super) fn grant_all(request: &StepRequest) -> StepGrant {
    let grants = request.wants.iter().map(|want| {
        let computed = match want.kind {
            WantKind::Open { .. } => 0,
            WantKind::Grow => {
                let known = request.progress.iter().find(|p| p.seq == want.ticket.seq);
                known.map_or(want.len - want.new_tokens, |progress| progress.computed)
            }
        };
        let cover = want.len.min(computed + want.new_tokens);
        let table: Arc<[BlockId]> = (0..cover.div_ceil(BLOCK)).map(BlockId).collect();
        let outcome = GrantOutcome::Run { computed, cover, table: Some(table) };
        Grant { ticket: want.ticket, outcome }
    });
    StepGrant { step: request.step, grants: grants.collect(), ..StepGrant::default() }
}

/// Returns the result of a successful step in which `token` is sampled for every sequence that samples.
pub(super) fn all_sample(batch: &StepBatch, token: u32) -> StepDone {
    let sampled = batch
        .slices
        .iter()
        .filter(|slice| slice.sample.is_some())
        .map(|slice| (slice.seq, Ok(Sampled { token, logprobs: None })))
        .collect();
    let timing = StepTiming { forward_us: 100, sampling_us: 1, host_us: 0 };
    let output = StepOutput { sampled, timing };
    StepDone { id: batch.id, result: Ok(output) }
}

/// Plans a step, grants all its blocks and returns the batch.
pub(super) fn submit(scheduler: &mut State) -> StepBatch {
    let request = scheduler.plan(NOW).expect("something to run");
    scheduler.granted(grant_all(&request)).0.expect("a batch")
}

/// Returns the block store's answer that grants only the first sequence's blocks; the other sequences get no answer.
pub(super) fn grant_first(request: &StepRequest) -> StepGrant {
    let mut grant = grant_all(request);
    grant.grants.truncate(1);
    grant
}

/// Runs one step: plans it, grants all its blocks, and completes it with token id 1 sampled for each sequence. Returns
/// the effects of the completion, such as tokens for clients.
pub(super) fn step(scheduler: &mut State) -> Vec<Effect> {
    let batch = submit(scheduler);
    let effects = scheduler.step_done(all_sample(&batch, 1), Timestamp(500));
    scheduler.check().expect("invariants hold");
    effects
}

/// Returns the ids of the sequences in a step request, in order.
fn ids(request: &StepRequest) -> Vec<u64> {
    request.wants.iter().map(|want| want.ticket.seq.0).collect()
}

#[test]
fn a_prompt_is_cut_into_chunks_and_samples_after_the_last() {
    let mut s = scheduler(|_| ());
    s.enqueue(sequence(1, Tier::Standard, 70));
    let chunks: Vec<(u32, usize, bool)> = (0..4)
        .map(|_| {
            let batch = submit(&mut s);
            let slice = batch.slices[0].clone();
            s.step_done(all_sample(&batch, 1), Timestamp(9));
            (slice.first_pos, slice.input.len(), slice.sample.is_some())
        })
        .collect();
    assert_eq!(chunks, [(0, 32, false), (32, 32, false), (64, 6, true), (70, 1, true)]);
}

#[test]
fn decodes_keep_their_token_while_a_long_prompt_takes_the_rest() {
    let mut s = scheduler(|_| ());
    for id in 1..=3 {
        s.enqueue(sequence(id, Tier::Standard, 4));
    }
    step(&mut s);
    s.enqueue(sequence(4, Tier::Premium, 500));
    let request = s.plan(NOW).expect("a step");
    let tokens: Vec<u32> = request.wants.iter().map(|want| want.new_tokens).collect();
    assert_eq!(ids(&request), [4, 1, 2, 3], "the premium prompt is best-ranked");
    assert_eq!(tokens, [29, 1, 1, 1]);
}

#[test]
fn the_long_prefill_threshold_bounds_each_prompt() {
    let mut s = scheduler(|e| e.scheduler.long_prefill_token_threshold = 8);
    s.enqueue(sequence(1, Tier::Standard, 100));
    s.enqueue(sequence(2, Tier::Standard, 100));
    let request = s.plan(NOW).expect("a step");
    assert!(request.wants.iter().all(|want| want.new_tokens == 8));
}

#[test]
fn background_prompts_fill_only_a_quarter_of_a_step_while_higher_tiers_have_requests() {
    let planned_after = |better_came, policy, percent, standard| {
        let mut s = scheduler(|e| {
            e.use_policy(policy);
            e.scheduler.background_prefill_percent = percent;
        });
        s.queue.arrivals.set(Tier::Premium, better_came);
        s.enqueue(sequence(1, Tier::Background, 6));
        s.enqueue(sequence(2, Tier::Background, 20));
        if standard > 0 {
            s.enqueue(sequence(3, Tier::Standard, standard));
        }
        let request = s.plan(NOW).expect("a step");
        let tokens = |want: &Want| (want.ticket.seq.0, want.new_tokens);
        request.wants.iter().map(tokens).collect::<Vec<_>>()
    };
    let planned = |policy, percent, standard| planned_after(Some(NOW), policy, percent, standard);
    // Background prompts may fill 25 % of a step of 32 tokens: 8 tokens.
    assert_eq!(planned(Policy::Tiercel, 25, 0), [(1, 6), (2, 2)]);
    assert_eq!(planned(Policy::Tiercel, 25, 5), [(3, 5), (1, 3)]);
    assert_eq!(planned(Policy::Tiercel, 25, 8), [(3, 8)]);
    assert_eq!(planned(Policy::Tiercel, 1, 0), [(1, 1)], "they always go on");
    assert_eq!(planned_after(None, Policy::Tiercel, 25, 0), [(1, 6), (2, 20)], "nobody else comes");
    assert_eq!(planned(Policy::Tiercel, 100, 14), [(3, 14), (1, 6), (2, 12)]);
    assert_eq!(planned(Policy::PriorityPreempt, 100, 14), [(3, 14), (1, 6), (2, 12)]);
}

#[test]
fn policies_differ_in_order_and_in_victims_of_a_start() {
    let planned = |policy| {
        let mut s = scheduler(|e| e.use_policy(policy));
        s.enqueue(sequence(1, Tier::Background, 4));
        s.enqueue(sequence(2, Tier::Standard, 4));
        step(&mut s);
        s.enqueue(sequence(3, Tier::Premium, 4));
        let request = s.plan(NOW).expect("a step");
        let victims: Vec<u64> = request.victims.iter().map(|v| v.ticket.seq.0).collect();
        let premium = request.wants.iter().find(|w| w.ticket.seq.0 == 3).expect("it waits");
        (ids(&request), victims, premium.max_victims)
    };
    assert_eq!(planned(Policy::Fcfs), (vec![1, 2, 3], vec![2, 1], 0));
    assert_eq!(planned(Policy::Priority), (vec![2, 1, 3], vec![1, 2], 0));
    assert_eq!(planned(Policy::Tiercel), (vec![3, 2, 1], vec![1, 2], 2));
}

#[test]
fn no_sequence_takes_blocks_from_a_higher_one_and_a_starting_one_never_from_its_own_tier() {
    let mut s = scheduler(|e| e.use_policy(Policy::PriorityPreempt));
    for id in 1..=3 {
        s.enqueue(sequence(id, Tier::Standard, 4));
    }
    step(&mut s);
    s.enqueue(sequence(4, Tier::Standard, 4));
    let request = s.plan(NOW).expect("a step");
    let may: Vec<(u64, u32)> =
        request.wants.iter().map(|want| (want.ticket.seq.0, want.max_victims)).collect();
    // Victims come in the order 3, 2, 1. Each running sequence may preempt those served after it, and the count
    // includes the sequence itself, which the block store skips: all three for sequence 1, none for the starting
    // sequence 4.
    assert_eq!(may, [(1, 3), (2, 2), (3, 1), (4, 0)]);
}

#[test]
fn held_sequences_do_not_run_and_go_first() {
    let mut s = scheduler(|_| ());
    s.enqueue(sequence(1, Tier::Premium, 4));
    s.enqueue(sequence(2, Tier::Background, 4));
    step(&mut s);
    assert!(s.set_hold(SeqId(1), Hold::Stream, true));
    let request = s.plan(NOW).expect("a step");
    assert_eq!(ids(&request), [2]);
    assert_eq!(request.victims[0].ticket.seq, SeqId(1));
    assert_eq!(request.wants[0].max_victims, 2, "anybody may take the blocks of one who rests");
}

#[test]
fn a_sequence_preempted_too_often_is_spared_by_starters_but_not_by_growth() {
    let mut s = scheduler(|e| e.preemption.max_per_request = 0);
    s.enqueue(sequence(1, Tier::Standard, 4));
    s.enqueue(sequence(2, Tier::Background, 4));
    step(&mut s);
    s.enqueue(sequence(3, Tier::Premium, 4));
    s.enqueue(sequence(4, Tier::Premium, 4));
    let request = s.plan(NOW).expect("a step");
    let may: Vec<(u64, u32)> =
        request.wants.iter().map(|want| (want.ticket.seq.0, want.max_victims)).collect();
    // The limit of preemptions is 0, so sequences 1 and 2 have reached it. Of the starting sequences 3 and 4 only the
    // first may take their blocks, so that one sequence can always go on.
    assert_eq!(may, [(3, 2), (4, 0), (1, 2), (2, 1)]);
}

#[test]
fn waiting_sequences_that_were_denied_leave_their_places_to_running_ones() {
    let mut s = scheduler(|e| e.scheduler.max_num_seqs = 3);
    s.enqueue(sequence(1, Tier::Background, 4));
    s.enqueue(sequence(2, Tier::Background, 4));
    step(&mut s);
    for id in 3..=6 {
        s.enqueue(sequence(id, Tier::Premium, 4));
    }
    let request = s.plan(NOW).expect("a step");
    assert_eq!(ids(&request), [3, 4, 5]);
    let denied = |request: &StepRequest| {
        let outcome = GrantOutcome::Denied { pending_blocks: 0 };
        let grant = |want: &Want| Grant { ticket: want.ticket, outcome: outcome.clone() };
        let grants = request.wants.iter().map(grant).collect();
        StepGrant { step: request.step, grants, ..StepGrant::default() }
    };
    s.granted(denied(&request));
    assert!(s.may_replan(), "those who run need not wait for those who wait");
    let batch = submit(&mut s);
    assert_eq!(batch.slices.iter().map(|slice| slice.seq.0).collect::<Vec<_>>(), [1, 2]);
    s.step_done(all_sample(&batch, 1), Timestamp(501));
    let request = s.plan(NOW).expect("a step");
    assert_eq!(ids(&request), [3, 1, 2], "one waiter still asks");
    s.granted(grant_all(&request));
}

#[test]
fn an_idle_engine_still_reports_what_was_released() {
    let mut s = scheduler(|_| ());
    s.enqueue(sequence(1, Tier::Standard, 4));
    step(&mut s);
    s.cancel(SeqId(1)).expect("it lives");
    assert!(s.cancel(SeqId(1)).is_none(), "cancel is idempotent");
    let request = s.plan(NOW).expect("the store must hear of the release");
    assert_eq!(request.released, [SeqId(1)]);
    assert_eq!(request.progress[0].hashes.len(), 1, "the block that its step filled is named");
    assert!(s.granted(grant_all(&request)).0.is_none());
    assert!(s.is_drained());
    assert!(s.plan(NOW).is_none());
}

#[test]
fn a_copied_victim_is_restored_when_no_sequence_needs_its_blocks_any_more() {
    let mut s = scheduler(|_| ());
    s.enqueue(sequence(1, Tier::Background, 8));
    step(&mut s);
    s.enqueue(sequence(2, Tier::Premium, 8));
    let request = s.plan(NOW).expect("a step");
    let outcome = PreemptOutcome::Copying { blocks: 2, retained: 0 };
    let denied = Grant { ticket: ticket(2), outcome: GrantOutcome::Denied { pending_blocks: 2 } };
    s.granted(StepGrant {
        step: request.step,
        grants: vec![denied],
        preempted: vec![Preempted { ticket: ticket(1), outcome }],
        free_blocks: 0,
    });
    assert_eq!(s.phase(SeqId(1)), Some(Phase::Preempting));
    s.cancel(SeqId(2)).expect("it lives");
    let request = s.plan(NOW).expect("a release");
    assert!(request.wants.is_empty(), "a victim is not scheduled");
    s.granted(grant_all(&request));
    let copied = StoreEvent::PreemptCopied { ticket: ticket(1), copied: 2, failed: 0, on_host: 2 };
    assert_eq!(s.store_event(copied), PreemptDecision::Abort);
    assert_eq!(s.phase(SeqId(1)), Some(Phase::Running));
    assert_eq!(s.store_event(copied), PreemptDecision::Stale, "a late answer changes nothing");
}
