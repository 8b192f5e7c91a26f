//! Tests that preemptions never change the output of a sequence that follows a grammar.

use super::{prompt, settled, tiers, tight};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde_json::json;
use std::sync::Arc;
use tiercel_actors::{FinishReason, Request, StreamEvent};
use tiercel_config::PreemptionMode;
use tiercel_device::{Constraint, SamplingParams, TokenId};
use tiercel_grammar::{Grammars, STACK_BYTES, Source, TokenText, Vocabulary};
use tiercel_simulation::{Collected, Laboratory, collect, request, simulate};

/// Token that ends an output.
const END: TokenId = 300;
/// Minimum number of swaps, and of recomputes, in all storms of a test.
const PREEMPTIONS: u64 = 500;
/// Maximum number of storms in a test. A storm is a set of requests that are sent at random times to an engine with too
/// little memory.
const STORMS_MAX: u64 = 200;
/// Number of requests in one storm.
const REQUESTS: usize = 60;

/// Returns one or more constraints for each kind of source. Some constraints let outputs end early, some never force an
/// end.
fn constraints() -> Vec<Arc<dyn Constraint>> {
    let sources = [
        Source::Regex("([a-z]{2}[0-9]{1,3};)+".into()),
        Source::Regex("(.|\\n)*".into()),
        Source::Choice(vec!["yes, certainly".into(), "no".into(), "not in a hundred years".into()]),
        Source::Lark("start: \"(\" start \")\" start | /[a-z]{1,9}/".into()),
        Source::Gbnf("root ::= item+\nitem ::= \"- \" [a-z]+ \"\\n\"".into()),
        Source::JsonSchema(json!({"type": "array", "items": {"type": "object", "properties": {
            "name": {"type": "string", "maxLength": 5}, "size": {"type": "integer"}}, "required": ["name", "size"]}})),
        Source::JsonObject,
    ];
    let compile = move || {
        let text = |id| match id {
            0..256 => TokenText::Bytes(vec![id as u8]),
            END => TokenText::Special(b"end".to_vec()),
            _ => TokenText::Bytes(format!(" t{id}").into_bytes()),
        };
        let grammars = Grammars::new(&Vocabulary::new(1000, &[END], text)).unwrap();
        let compile = |source| grammars.compile(source).unwrap().constraint;
        sources.iter().map(compile).collect()
    };
    let thread = std::thread::Builder::new().stack_size(STACK_BYTES).spawn(compile).unwrap();
    thread.join().unwrap()
}

/// Returns the requests of a storm.
fn requests(seed: u64, constraints: &[Arc<dyn Constraint>]) -> Vec<Request> {
    let mut rng = SmallRng::seed_from_u64(seed);
    (0..REQUESTS)
        .map(|n| {
            let len = rng.random_range(1..60);
            let tokens = prompt(&mut rng, len);
            let constraint = Some(constraints[n % constraints.len()].clone());
            let sampling = SamplingParams { constraint, ..SamplingParams::greedy() };
            Request {
                tier: tiers(&mut rng),
                stop_tokens: Arc::new([END]),
                sampling: Arc::new(sampling),
                ..request(&tokens, rng.random_range(5..60))
            }
        })
        .collect()
}

/// Runs the requests one after the other on an engine with enough memory, and returns their outputs.
fn undisturbed(requests: &[Request]) -> Vec<Collected> {
    simulate(async |clock| {
        let engine = Laboratory::tiny(clock).start();
        let mut outputs = Vec::new();
        for request in requests {
            outputs.push(collect(engine.submit(request.clone()).await.unwrap()).await);
        }
        outputs
    })
}

fn ending(output: &Collected) -> Option<FinishReason> {
    match &output.end {
        Some(StreamEvent::Finished { reason, .. }) => Some(*reason),
        _ => None,
    }
}

/// Sends the requests at random times to an engine with too little memory, and compares their outputs with the outputs
/// of undisturbed runs. Returns the numbers of swaps and of recomputes.
fn storm(
    seed: u64,
    constraints: &[Arc<dyn Constraint>],
    adjust: &dyn Fn(&mut Laboratory),
) -> (u64, u64) {
    let requests = requests(seed, constraints);
    let expected = undisturbed(&requests);
    simulate(async |clock| {
        let mut laboratory = tight(clock, PreemptionMode::Swap);
        adjust(&mut laboratory);
        let faults = laboratory.device.faults.step_fails > 0.0;
        let log = laboratory.device.log.clone();
        let engine = laboratory.start();
        let mut rng = SmallRng::seed_from_u64(!seed);
        let mut readers = Vec::new();
        for request in requests {
            engine.clock().sleep_us(rng.random_range(0..4_000)).await;
            let stream = engine.submit(request).await.unwrap();
            readers.push(actix_rt::spawn(collect(stream)));
        }
        for (expected, reader) in expected.iter().zip(readers) {
            let output = reader.await.unwrap();
            let reason = ending(&output);
            assert!(faults || reason.is_some(), "seed {seed}: {:?}", output.end);
            if reason.is_some() {
                let (found, wanted) = (&output.tokens, &expected.tokens);
                assert_eq!((found, reason), (wanted, ending(expected)), "seed {seed}");
            }
        }
        let counters = settled(&engine).await.counters;
        assert_eq!(log.total(), 0, "{:?}", log.first());
        (counters.swaps.iter().sum(), counters.recomputes.iter().sum())
    })
}

#[test]
fn swaps_and_recomputes_never_change_an_output_that_follows_a_grammar() {
    let constraints = constraints();
    let of_mode =
        |mode| move |laboratory: &mut Laboratory| laboratory.settings.preemption.mode = mode;
    let (mut swaps, mut recomputes) = (0, 0);
    for seed in 0..STORMS_MAX {
        if swaps < PREEMPTIONS {
            swaps += storm(seed, &constraints, &of_mode(PreemptionMode::Swap)).0;
        }
        if recomputes < PREEMPTIONS {
            recomputes += storm(seed, &constraints, &of_mode(PreemptionMode::Recompute)).1;
        }
    }
    println!("{swaps} swaps, {recomputes} recomputes");
    assert!(swaps >= PREEMPTIONS && recomputes >= PREEMPTIONS, "{swaps} and {recomputes}");
}

#[test]
fn two_steps_in_flight_failed_steps_and_late_masks_change_nothing_either() {
    let constraints = constraints();
    for seed in 0..4 {
        for (step_fails, mask_late) in [(0.0, 0.0), (0.02, 0.0), (0.0, 0.3), (0.02, 0.3)] {
            storm(seed, &constraints, &|laboratory| {
                laboratory.device.host_us = 10_000;
                laboratory.device.faults.step_fails = step_fails;
                laboratory.device.faults.mask_late = mask_late;
                laboratory.settings.preemption.mode = PreemptionMode::Auto;
            });
        }
    }
}

#[test]
fn outputs_follow_their_grammars() {
    let constraints = constraints();
    let mut complete = 0;
    for (request, output) in
        requests(7, &constraints).iter().zip(undisturbed(&requests(7, &constraints)))
    {
        let mut state = request.sampling.constraint.as_ref().unwrap().start();
        for token in &output.tokens {
            assert!(state.mask().unwrap().allows(*token), "{output:?}");
            state.advance(*token).unwrap();
        }
        if ending(&output) == Some(FinishReason::Stop) {
            assert!(state.mask().unwrap().allows(END), "{output:?}");
            complete += 1;
        }
    }
    assert!(complete >= 10, "{complete} outputs are complete");
}
