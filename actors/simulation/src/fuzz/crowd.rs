//! Draws the clients of a fuzzing scenario, the operator's commands and the drain (shutdown) of the engine at random.

use super::dice::Dice;
use super::scenario::{Act, Client, DrainPlan, Habit, Order, Scenario, Waiting};
use std::sync::Arc;
use tiercel_actors::Request;
use tiercel_config::{Policy, Reservation, SloTargets, Target};
use tiercel_device::{MockOracle, MockProfile, SamplingParams, Tier, Timestamp, TokenId};
use tiercel_policy::Weight;
use tiercel_policy::blocks::Salt;

/// Adds clients, operator commands and the time of the server's shutdown to a fuzz scenario.
pub(super) fn gather(scenario: &mut Scenario) {
    let (mut dice, mut of_keys) = (Dice::new(scenario.seed, 2), Dice::new(scenario.seed, 3));
    let requests = requests(&mut dice, &scenario.profile, &scenario.oracle());
    let mut at = Timestamp(0);
    let longest_gap_us = dice.pick(&[1, 300, 3_000, 10_000]);
    for request in requests {
        at = at + dice.below_us(longest_gap_us);
        let habit = habit(&mut dice, request.max_tokens);
        scenario.clients.push(Client { at, request, habit });
    }
    // Spread commands and drain over twice the time of the arrivals, because most work happens after the last arrival.
    let end_us = 2 * at.0 + 50_000;
    for _ in 0..dice.pick(&[0, 0, 2, 6]) {
        let at = Timestamp(dice.below_us(end_us));
        let act = act(&mut dice, &mut of_keys, scenario.clients.len());
        scenario.orders.push(Order { at, act });
    }
    keys(&mut of_keys, scenario, end_us);
    if dice.chance(0.2) {
        let at = Timestamp(dice.below_us(end_us));
        scenario.drain = DrainPlan::Amid { at, grace_ms: dice.pick(&[0, 5, 10_000]) };
    }
}

fn requests(dice: &mut Dice, profile: &MockProfile, oracle: &MockOracle) -> Vec<Request> {
    let heads: Vec<Vec<TokenId>> = (0..3)
        .map(|_| {
            let len = dice.between(1..=profile.max_model_len);
            tokens(dice, profile, len)
        })
        .collect();
    let mut drawn: Vec<Request> = Vec::new();
    let most = dice.pick(&[10, 25, 40]);
    for _ in 0..dice.between(5..=most) {
        let prompt = prompt(dice, profile, oracle, &heads, &drawn);
        let max_tokens = output_len(dice, profile, prompt.len() as u32);
        let stop_tokens = if dice.chance(0.2) {
            let at = dice.between(1..=max_tokens.min(profile.max_model_len)) as usize;
            oracle.output(&prompt, at).into_iter().skip(at - 1).collect()
        } else {
            Arc::from([])
        };
        let logprobs = dice.chance(0.1).then(|| dice.pick(&[0, 2]));
        let tier = dice.pick(&[Tier::Premium, Tier::Standard, Tier::Background]);
        let priority = dice.pick(&[-1, 0, 0, 1]);
        let tenant: u8 = dice.pick(&[0, 0, 0, 1]);
        drawn.push(Request {
            tier,
            priority,
            salt: Salt([tenant; 16]),
            weight: Weight::new(if tenant == 1 { 3.0 } else { 1.0 }),
            prompt: prompt.into(),
            max_tokens,
            stop_tokens,
            sampling: Arc::new(SamplingParams { logprobs, ..SamplingParams::greedy() }),
            targets: SloTargets::default(),
            may_tighten: None,
            max_wait_ms: dice.chance(0.05).then(|| dice.pick(&[5, 50, 500])),
            waited_ms: 0,
            sibling: false,
            cache_salt: None,
            returning: false,
        });
    }
    drawn
}

fn tokens(dice: &mut Dice, profile: &MockProfile, len: u32) -> Vec<TokenId> {
    (0..len).map(|_| dice.between(0..=profile.vocab_size - 1)).collect()
}

/// Draws the prompt of a fuzzing client: random tokens, a beginning shared with other prompts and then random tokens, a
/// copy of an earlier prompt, or an earlier prompt with its answer, continued.
fn prompt(
    dice: &mut Dice,
    profile: &MockProfile,
    oracle: &MockOracle,
    heads: &[Vec<TokenId>],
    earlier: &[Request],
) -> Vec<TokenId> {
    let len = prompt_len(dice, profile);
    let mut prompt = match dice.between(0..=9) {
        0..=2 if !earlier.is_empty() => {
            let before = dice.pick(earlier);
            let answered = dice.between(0..=before.max_tokens.min(profile.max_model_len));
            [&before.prompt[..], &oracle.output(&before.prompt, answered as usize)].concat()
        }
        3..=4 if !earlier.is_empty() => return dice.pick(earlier).prompt.to_vec(),
        5..=7 => dice.pick(heads),
        _ => Vec::new(),
    };
    let missing = len.saturating_sub(prompt.len() as u32);
    prompt.extend(tokens(dice, profile, missing));
    prompt.truncate(len as usize);
    prompt
}

/// Draws the length of a prompt, tokens: often at the edge of a block or of the longest sequence, and now and then one
/// token too long to be accepted.
fn prompt_len(dice: &mut Dice, profile: &MockProfile) -> u32 {
    let MockProfile { block_size, max_model_len, .. } = *profile;
    let any = dice.between(1..=max_model_len);
    let short = dice.between(1..=max_model_len.div_ceil(3));
    let most = if dice.chance(0.03) { max_model_len } else { max_model_len - 1 };
    let edges =
        [1, block_size, block_size + 1, 2 * block_size, max_model_len, any, short, short, short];
    dice.pick(&edges).clamp(1, most)
}

fn output_len(dice: &mut Dice, profile: &MockProfile, prompt: u32) -> u32 {
    let MockProfile { block_size, max_model_len, device_blocks, .. } = *profile;
    let fits = max_model_len.min(device_blocks * block_size).saturating_sub(prompt).max(1);
    let any = dice.between(1..=fits);
    dice.pick(&[1, block_size, fits, fits, fits + block_size, any, any, any])
}

fn habit(dice: &mut Dice, max_tokens: u32) -> Habit {
    match dice.between(0..=99) {
        0..=7 => Habit::ReadsSlowly(dice.below_us(5_000)),
        8..=12 => Habit::ReadsLate(dice.pick(&[20_000, 200_000, 900_000])),
        13..=24 => {
            let most = dice.pick(&[100, 5_000, 60_000]);
            Habit::LeavesAfter(dice.below_us(most))
        }
        25..=29 => Habit::LeavesAt(dice.between(1..=max_tokens)),
        30..=36 => Habit::StopsAt(dice.between(1..=max_tokens)),
        _ => Habit::Reads,
    }
}

/// Adds reloads of the keys, looks of the operator, and targets that requests state, which their keys may let them
/// tighten.
fn keys(dice: &mut Dice, scenario: &mut Scenario, end_us: u64) {
    for client in &mut scenario.clients {
        if dice.chance(0.2) {
            client.request.targets.ttft_ms = Some(dice.pick(&[0.5, 20.0, 2_000.0]));
            client.request.targets.tpot_ms = Some(dice.pick(&[0.05, 2.0, 200.0]));
        }
    }
    for _ in 0..dice.pick(&[0, 0, 1, 3]) {
        let at = Timestamp(dice.below_us(end_us));
        let act = match dice.chance(0.3) {
            true => {
                Act::Look { client: dice.between(0..=scenario.clients.len() as u32 - 1) as usize }
            }
            false => Act::ReloadKeys {
                tenant: dice.pick(&[0, 1]),
                weight: dice.pick(&[0.01, 1.0, 100.0]),
                may_tighten: dice.chance(0.5),
            },
        };
        scenario.orders.push(Order { at, act });
    }
}

/// Draws the limits of waiting for a change of settings: some so wide that no request of the scenario reaches them, as
/// by default, others so tight that requests reach them.
fn waiting(dice: &mut Dice) -> Waiting {
    Waiting {
        patience_s: dice.pick(&[600.0, 0.0, 0.002, 0.02]),
        shares_percent: dice.pick(&[[50.0, 35.0], [98.0, 1.0], [1.0, 1.0], [34.0, 33.0]]),
        queued_requests: dice.pick(&[256, 256, 2, 1]),
        queued_tokens: dice.pick(&[1 << 20, 1 << 20, 20]),
        ageing_s: dice.pick(&[0.0, 0.002, 0.05]),
    }
}

fn act(dice: &mut Dice, of_keys: &mut Dice, clients: usize) -> Act {
    let client = dice.between(0..=clients as u32 - 1) as usize;
    match dice.between(0..=10) {
        9 | 10 => {
            let policy = dice.pick(Policy::ALL).0;
            Act::Adjust {
                policy,
                seqs_percent: dice.pick(&[1, 30, 100]),
                target: dice.pick(&[Target::Auto, Target::None, Target::Ms(0.5), Target::Ms(50.0)]),
                kind: dice.pick(&[Reservation::Hard, Reservation::Lent]),
                reserved_percent: dice.pick(&[0.0, 0.0, 30.0, 60.0]),
                waiting: waiting(of_keys),
            }
        }
        8 => Act::Cancel { client },
        0 | 4 => Act::SetPolicy(dice.pick(Policy::ALL).0),
        1 | 5 => {
            let for_us = dice.pick(&[100, 5_000, 400_000]);
            Act::Pause { client, for_us }
        }
        _ => {
            let tier = dice.pick(&[Tier::Premium, Tier::Standard, Tier::Background]);
            Act::Reprioritize { client, tier, priority: dice.pick(&[-2, 0, 2]) }
        }
    }
}
