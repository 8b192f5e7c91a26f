//! Tests of operators' commands: a raised request starts at once, and a lowered one is preempted and goes on unchanged.

use super::{prompt, settled, tight};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tiercel_actors::{
    Control, EngineHandle, Request, SequenceState, SequenceView, StreamEvent, TokenStream,
};
use tiercel_config::PreemptionMode;
use tiercel_device::{SeqId, Tier, TokenId};
use tiercel_simulation::{collect, request, simulate};

/// Number of random scenarios of each test.
const SEEDS: u64 = 1_000;

/// Submits `count` requests of a tier with random prompts of up to 60 tokens and outputs of 40 to 90 tokens.
async fn flood(
    engine: &EngineHandle,
    rng: &mut SmallRng,
    (count, tier): (usize, Tier),
) -> Vec<(Vec<TokenId>, u32, TokenStream)> {
    let mut streams = Vec::new();
    for _ in 0..count {
        let len = rng.random_range(1..=60);
        let (tokens, output) = (prompt(rng, len), rng.random_range(40..=90));
        let stream = engine.submit(Request { tier, ..request(&tokens, output) }).await.unwrap();
        streams.push((tokens, output, stream));
        engine.clock().sleep_us(rng.random_range(0..300)).await;
    }
    streams
}

async fn view(engine: &EngineHandle, seq: SeqId) -> Option<SequenceView> {
    let snapshot = engine.snapshot(0).await.unwrap();
    snapshot.sequences.iter().find(|view| view.seq == seq).cloned()
}

/// Raises a random waiting request among a flood of background ones, and returns the number of steps from the change to
/// its first token.
async fn steps_to_first_token(engine: &EngineHandle, seed: u64) -> u64 {
    let mut rng = SmallRng::seed_from_u64(seed);
    let streams = flood(engine, &mut rng, (24, Tier::Background)).await;
    engine.clock().sleep_us(rng.random_range(0..30_000)).await;
    let snapshot = engine.snapshot(0).await.unwrap();
    let waits = |view: &&SequenceView| view.state == SequenceState::Waiting;
    let waiting: Vec<SeqId> =
        snapshot.sequences.iter().filter(waits).map(|view| view.seq).collect();
    let seq = waiting[rng.random_range(0..waiting.len())];
    let raise = Control::Reprioritize { seq, tier: Tier::Premium, priority: 0 };
    let changed = engine.command(raise).await.unwrap();
    let first = loop {
        if let Some(step) = view(engine, seq).await.unwrap().first_token_step {
            break step;
        }
        engine.clock().sleep_us(200).await;
    };
    drop(streams);
    settled(engine).await;
    first.0 - changed.step.0
}

#[test]
fn a_raised_request_has_its_first_token_within_three_steps() {
    for mode in [PreemptionMode::Recompute, PreemptionMode::Auto] {
        let mut counts = [0; 8];
        for seed in 0..SEEDS {
            let steps = simulate(async |clock| {
                let engine = tight(clock, mode).start_checked();
                steps_to_first_token(&engine, seed).await
            });
            counts[(steps as usize).min(7)] += 1;
        }
        assert_eq!(counts[4..], [0; 4], "{mode:?}: {counts:?}");
        assert_eq!(counts[0], 0, "{mode:?}: {counts:?}");
    }
}

#[test]
fn a_lowered_request_is_preempted_and_goes_on_with_the_same_text() {
    let mut preempted = 0;
    for seed in 0..SEEDS {
        preempted += simulate(async |clock| {
            let laboratory = tight(clock, PreemptionMode::Auto);
            let oracle = laboratory.device.oracle();
            let engine = laboratory.start_checked();
            let mut rng = SmallRng::seed_from_u64(seed);
            let tokens = prompt(&mut rng, 40);
            let own = Request { tier: Tier::Premium, ..request(&tokens, 90) };
            let stream = engine.submit(own).await.unwrap();
            let seq = stream.seq();
            let reader = actix_rt::spawn(collect(stream));
            let others = flood(&engine, &mut rng, (8, Tier::Standard)).await;
            let readers: Vec<_> =
                others.into_iter().map(|(_, _, stream)| actix_rt::spawn(collect(stream))).collect();
            engine.clock().sleep_us(rng.random_range(0..8_000)).await;
            let lower = Control::Reprioritize { seq, tier: Tier::Background, priority: 0 };
            engine.control(lower).await.unwrap();
            let got = reader.await.unwrap();
            assert_eq!(got.tokens, oracle.output(&tokens, 90), "seed {seed}");
            for reader in readers {
                reader.await.unwrap();
            }
            settled(&engine).await;
            match got.end {
                Some(StreamEvent::Finished { usage, .. }) => u64::from(usage.preemptions > 0),
                other => panic!("seed {seed}: {other:?}"),
            }
        });
    }
    assert!(preempted > SEEDS / 2, "only {preempted} of {SEEDS} lowered requests were preempted");
}
