//! Draws the scheduling policy of a fuzzing scenario: a preset in which a few settings are always drawn anew, and with
//! probability 1/2 many others, so that combinations occur that no preset has.

use super::dice::Dice;
use tiercel_config::{
    AgeingCap, Allocation, AtLimit, Batching, Budget, EngineSettings, Late, Order, Policy,
    PreemptionSettings, PrefillOrder, Reservation, ReservationSettings, ResumeFrom, ResumeOrder,
    SchedulerSettings, SheddingForm, StepMix, ToStart, VictimRelease, VictimRule,
};

/// Sets the policy of a fuzzing scenario: a preset in which a few settings are always drawn anew, and with probability
/// 1/2 many others. The step sizes `max_num_seqs` and `max_num_batched_tokens` are kept.
pub(super) fn policy(dice: &mut Dice, settings: &mut EngineSettings, block_size: u32) {
    let policies: Vec<Policy> = Policy::ALL.iter().map(|(policy, _)| *policy).collect();
    let SchedulerSettings { max_num_seqs, max_num_batched_tokens, .. } = settings.scheduler;
    settings.use_policy(dice.pick(&policies));
    settings.scheduler.max_num_seqs = max_num_seqs;
    settings.scheduler.max_num_batched_tokens = max_num_batched_tokens;
    settings.scheduler.background_prefill_percent = dice.pick(&[1, 25, 100]);
    settings.scheduler.watermark_percent = dice.pick(&[0.0, 0.0, 3.0, 3.0, 10.0, 50.0]);
    settings.preemption.max_per_request = dice.pick(&[0, 1, 8]);
    if dice.chance(0.5) {
        scheduler(dice, &mut settings.scheduler, block_size);
        preemption(dice, &mut settings.preemption);
        reservation(dice, &mut settings.reservation);
        settings.shedding.late = dice.pick(&[Late::Wait, Late::BestEffort, Late::Refuse]);
        let forms = [SheddingForm::Forecast, SheddingForm::Forecast, SheddingForm::Share];
        settings.shedding.form = dice.pick(&forms);
    }
}

/// Macro that replaces each setting of its list, with probability 1/3, by one of the values listed for it, drawn at
/// random.
macro_rules! redraw {
    ($dice:ident, $($field:expr => [$($value:expr),+ $(,)?];)+) => {
        $(if $dice.chance(0.33) { $field = $dice.pick(&[$($value),+]); })+
    };
}

fn scheduler(dice: &mut Dice, s: &mut SchedulerSettings, block_size: u32) {
    redraw! { dice,
        s.order => [Order::Arrival, Order::Tier, Order::Shortest, Order::Fair];
        s.batching => [Batching::Continuous, Batching::Continuous, Batching::Static];
        s.mix => [StepMix::Mixed, StepMix::PromptsAlone];
        s.budget => [Budget::Fixed, Budget::Slack];
        s.chunked_prefill => [true, false];
        s.max_prefill_tokens => [0, 1, 7];
        s.chunk_alignment => [0, block_size, 64];
        s.long_prefill_token_threshold => [0, 1, block_size, block_size + 1, 7];
        s.long_prefill_percent => [0.0, 4.0, 30.0];
        s.max_partial_prefills => [0, 1, 2];
        s.prefill_order => [PrefillOrder::Rank, PrefillOrder::Deadline, PrefillOrder::Shortest];
        s.pause_background => [true, false];
        s.fair_tenants => [true, false];
        s.fair_tiers => [true, false];
        s.allocation => [Allocation::OnDemand, Allocation::UpFront];
        s.full_sequence_check => [true, false];
        s.background_watermark_percent => [0.0, 7.0, 50.0];
        s.ageing_s => [0.0, 0.002, 0.05];
        s.ageing_cap => [AgeingCap::Standard, AgeingCap::Premium];
    }
}

fn reservation(dice: &mut Dice, r: &mut ReservationSettings) {
    redraw! { dice,
        r.kind => [Reservation::Hard, Reservation::Lent];
        r.premium_blocks_percent => [0.0, 10.0, 60.0];
        r.standard_blocks_percent => [0.0, 5.0, 30.0];
        r.premium_slots_percent => [0.0, 10.0, 60.0];
        r.standard_slots_percent => [0.0, 5.0, 30.0];
    }
}

fn preemption(dice: &mut Dice, p: &mut PreemptionSettings) {
    redraw! { dice,
        p.to_start => [ToStart::Never, ToStart::LowerTier];
        p.victim => [
            VictimRule::Rank,
            VictimRule::LeastProgress,
            VictimRule::LatestArrival,
            VictimRule::ReverseFifo,
            VictimRule::LeastRecent,
            VictimRule::LongestRemaining,
            VictimRule::Slack,
            VictimRule::ResumeCost,
        ];
        p.victim_release => [VictimRelease::All, VictimRelease::Unshared, VictimRelease::Needed];
        p.victim_release_blocks => [1, 2, 7];
        p.premium_yields => [true, false];
        p.background_takes => [true, false];
        p.min_tokens => [0, 1, 5];
        p.delay_ms => [0, 1, 20];
        p.at_limit => [AtLimit::Spare, AtLimit::Promote, AtLimit::Drop];
        p.resume => [ResumeOrder::Rank, ResumeOrder::First, ResumeOrder::Last];
        p.resume_from => [ResumeFrom::Cache, ResumeFrom::OwnCopies];
        p.mirror_percent => [0, 10, 100];
    }
}
