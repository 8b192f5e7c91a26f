//! Checks of a fuzzing run: conditions that the result of each request and the engine's counters must meet.

use super::client::{Ending, Seen};
use super::run::{Failure, Summary};
use super::scenario::{Act, Client, DrainPlan, Habit, Scenario};
use std::ops::RangeInclusive;
use tiercel_actors::{Counters, FinishReason, Refusal, RequestFault, Usage};
use tiercel_config::{AtLimit, Budget, PreemptionMode, ReservationSettings, SheddingForm};
use tiercel_device::{MockOracle, Tier, Timestamp, TokenId};
use tiercel_policy::scheduler::Reservations;

/// Complete output that a request must get according to the oracle, and the reason for which it must end.
struct Answer {
    tokens: Vec<TokenId>,
    reason: FinishReason,
}

/// Checks what the clients received against the oracle's expected output, and the engine's counters against the
/// clients' requests and results.
pub(super) fn check(
    scenario: &Scenario,
    seen: &[Seen],
    counters: Option<&Counters>,
) -> Result<(), Failure> {
    let oracle = scenario.oracle();
    let answers: Vec<Answer> =
        scenario.clients.iter().map(|client| answer(scenario, &oracle, client)).collect();
    for (request, (client, seen)) in scenario.clients.iter().zip(seen).enumerate() {
        let answer = &answers[request];
        let wrong = |what| Failure::Request { request, what };
        check_tokens(client, seen, answer).map_err(wrong)?;
        let cacheable = cacheable(scenario, &answers, request);
        check_ending(scenario, client, seen, answer, cacheable).map_err(wrong)?;
    }
    match counters {
        Some(counters) => check_counters(scenario, seen, counters).map_err(Failure::Counters),
        None => Ok(()),
    }
}

fn answer(scenario: &Scenario, oracle: &MockOracle, client: &Client) -> Answer {
    let request = &client.request;
    let room = scenario.profile.max_model_len.saturating_sub(request.prompt.len() as u32);
    let mut tokens = oracle.output(&request.prompt, request.max_tokens.min(room) as usize);
    let stop = tokens.iter().position(|token| request.stop_tokens.contains(token));
    tokens.truncate(stop.unwrap_or(tokens.len()));
    let reason = if stop.is_some() { FinishReason::Stop } else { FinishReason::Length };
    Answer { tokens, reason }
}

/// Checks that the tokens that a client read are a prefix of the expected output of its request: no token is lost,
/// doubled or changed, whatever preemptions there were.
fn check_tokens(client: &Client, seen: &Seen, answer: &Answer) -> Result<(), String> {
    if !answer.tokens.starts_with(&seen.tokens) {
        let same = answer.tokens.iter().zip(&seen.tokens).take_while(|(a, b)| a == b).count();
        let (got, whole) = (seen.tokens.len(), answer.tokens.len());
        return Err(format!(
            "token {same} of {got} read differs from the expected answer of {whole}"
        ));
    }
    let wanted = if client.request.sampling.logprobs.is_some() { seen.tokens.len() } else { 0 };
    if seen.with_logprobs != wanted {
        return Err(format!(
            "{} tokens had log-probabilities, expected {wanted}",
            seen.with_logprobs
        ));
    }
    Ok(())
}

fn check_ending(
    scenario: &Scenario,
    client: &Client,
    seen: &Seen,
    answer: &Answer,
    cacheable: u32,
) -> Result<(), String> {
    // An operator may change reservations, so that a request fits at one time and not at another.
    let all = scenario.all_settings();
    let fitting: Vec<bool> =
        all.iter().map(|settings| fits(scenario, client, &settings.reservation)).collect();
    let fits = fitting.iter().all(|fits| *fits);
    if !fitting.contains(&true) && !matches!(seen.ending, Ending::Refused(_)) {
        return Err("a request that can never fit was accepted".to_owned());
    }
    match &seen.ending {
        Ending::Left => Ok(()),
        Ending::Cut => Err("the stream closed without a last event".to_owned()),
        Ending::TooMuch => Err("the stream went on after its last event".to_owned()),
        Ending::Refused(why) if may_refuse(scenario, client, why, fits) => Ok(()),
        Ending::Refused(why) => Err(format!("refused without a valid reason: {why}")),
        Ending::Failed(why) if may_fail(scenario, client, why) => Ok(()),
        Ending::Failed(why) => Err(format!("failed without a valid reason: {why}")),
        Ending::Finished { reason, usage } => {
            if seen.tokens != answer.tokens || *reason != answer.reason {
                let (got, whole) = (seen.tokens.len(), answer.tokens.len());
                return Err(format!(
                    "ended with {reason:?} after {got} of {whole} expected tokens"
                ));
            }
            check_usage(client, usage, (seen.tokens.len(), seen.tokens.len()), cacheable)
        }
        Ending::Stopped(None) if may_break_off(scenario) => Ok(()),
        Ending::Stopped(None) => Err("the client stopped reading and was sent no usage".to_owned()),
        // A client that stops the output early may be told of more output tokens than it read, because tokens that were
        // on their way to it count too.
        Ending::Stopped(Some(usage)) => {
            check_usage(client, usage, (seen.tokens.len(), answer.tokens.len()), cacheable)
        }
    }
}

/// Returns the most prompt tokens that the request may find in the prefix cache: its longest common prefix with the
/// prompt and answer of another request of the same salt, in full blocks and without the prompt's last token.
fn cacheable(scenario: &Scenario, answers: &[Answer], request: usize) -> u32 {
    if !scenario.settings.prefix_cache.enabled {
        return 0;
    }
    let own = &scenario.clients[request].request;
    let others = scenario.clients.iter().zip(answers).enumerate();
    let common = others.filter(|(other, _)| *other != request).map(|(_, (client, answer))| {
        let other = &client.request;
        let said = other.prompt.iter().chain(&answer.tokens);
        let same = own.prompt.iter().zip(said).take_while(|(a, b)| a == b).count();
        if other.salt == own.salt { same } else { 0 }
    });
    let most = common.max().unwrap_or(0).min(own.prompt.len() - 1) as u32;
    most - most % scenario.profile.block_size
}

/// Whether the client's request fits into the device pool when it runs alone, without the blocks that are
/// reserved for other tiers, and its prompt is shorter than the longest sequence.
fn fits(scenario: &Scenario, client: &Client, reservations: &ReservationSettings) -> bool {
    let profile = &scenario.profile;
    let prompt = client.request.prompt.len() as u32;
    let longest = (prompt + client.request.max_tokens).min(profile.max_model_len);
    let reservations = Reservations::new(reservations, profile.device_blocks);
    let blocks = profile.device_blocks - reservations.reserved_for_others(client.request.tier);
    prompt < profile.max_model_len && longest <= blocks * profile.block_size
}

/// Allowed range of the retry time that a refused client is told, ms.
const RETRY_MS: RangeInclusive<u64> = 1_000..=180_001;

fn drained_amid(scenario: &Scenario) -> bool {
    matches!(scenario.drain, DrainPlan::Amid { .. })
}

/// Whether an operator's command sets the patience `patience_ms`. Without such commands, patience is minutes, longer
/// than any wait in a fuzzing scenario.
fn is_adjusted_patience(scenario: &Scenario, patience_ms: u64) -> bool {
    let adjusted = scenario.all_settings().into_iter().skip(1);
    adjusted
        .flat_map(|settings| settings.patience.seconds())
        .any(|seconds| seconds > 0.0 && (seconds * 1e3).round() as u64 == patience_ms)
}

fn may_refuse(scenario: &Scenario, client: &Client, why: &Refusal, fits: bool) -> bool {
    let all = scenario.all_settings();
    let clients = scenario.clients.len() as u32;
    let tokens: usize = scenario.clients.iter().map(|client| client.request.prompt.len()).sum();
    match why {
        Refusal::NeverFits(_) => !fits,
        // A refusal for lateness is valid only if the scenario's policy computes its step budget from targets, since
        // only such a policy forecasts TTFTs, or if the operator changes the policy. The forecast itself is only
        // checked to reach the limit.
        Refusal::Late { expected_ms, limit_ms, retry_after_ms, .. } => {
            let knows = scenario.settings.scheduler.budget == Budget::Slack;
            (knows || changes_policy(scenario))
                && expected_ms >= limit_ms
                && RETRY_MS.contains(retry_after_ms)
        }
        Refusal::OverShare { tier, had_percent, due_percent, retry_after_ms } => {
            let by_share = scenario.settings.shedding.form == SheddingForm::Share;
            (by_share || changes_policy(scenario))
                && *tier > Tier::Premium
                && had_percent >= due_percent
                && RETRY_MS.contains(retry_after_ms)
        }
        // A refusal for lack of patience is valid only if the request itself stated its longest wait.
        Refusal::OutOfPatience { expected_ms, patience_ms, .. } => {
            client.request.max_wait_ms == Some(*patience_ms) && expected_ms >= patience_ms
        }
        Refusal::QueueFull { retry_after_ms, .. } => {
            let short = all.iter().map(|settings| &settings.admission).any(|limits| {
                clients > limits.max_queued_requests_per_tier
                    || tokens as u64 > limits.max_queued_tokens_per_tier
            });
            short && RETRY_MS.contains(retry_after_ms)
        }
        Refusal::ServerFull { limit, reserved, retry_after_ms, .. } => {
            clients > limit - reserved && RETRY_MS.contains(retry_after_ms)
        }
        Refusal::ShuttingDown | Refusal::EngineStopped => drained_amid(scenario),
    }
}

fn may_fail(scenario: &Scenario, client: &Client, why: &RequestFault) -> bool {
    let stall_us = scenario.settings.stream.stall_timeout_ms * 1000;
    match why {
        RequestFault::Dropped => may_drop(scenario),
        // Turning away a request is valid only if there are so many clients that a request of a higher tier may have
        // needed its permit; no fuzzing scenario lasts long enough for other reasons.
        RequestFault::TurnedAway { .. } => {
            scenario.clients.len() as u32 > scenario.settings.admission.max_requests / 2
        }
        RequestFault::OutOfPatience { stated, patience_ms, .. } => match stated {
            true => client.request.max_wait_ms == Some(*patience_ms),
            false => is_adjusted_patience(scenario, *patience_ms),
        },
        RequestFault::Stalled => matches!(client.habit, Habit::ReadsLate(us) if us >= stall_us),
        RequestFault::ShuttingDown => drained_amid(scenario),
        RequestFault::Cancelled => {
            scenario.orders.iter().any(|order| matches!(order.act, Act::Cancel { .. }))
        }
        RequestFault::Step(_) => scenario.faults.step_fails > 0.0 || scenario.loses_device(),
        RequestFault::Model(_) | RequestFault::Constraint(_) => false,
    }
}

/// Whether the scenario's settings let a preemption end the victim's request (drop). No preset of a policy does that.
fn may_drop(scenario: &Scenario) -> bool {
    let preemption = &scenario.settings.preemption;
    preemption.mode == PreemptionMode::Drop || preemption.at_limit == AtLimit::Drop
}

/// Whether the operator changes the scheduling policy during the scenario. Then swaps and recomputes are valid under
/// any preemption mode, and refusals by the rules of any policy.
fn changes_policy(scenario: &Scenario) -> bool {
    let changes = |act: &Act| matches!(act, Act::SetPolicy(_) | Act::Adjust { .. });
    scenario.orders.iter().any(|order| changes(&order.act))
}

/// Whether a request of the scenario may end without its client's doing: by a drop, a failed step, a lost device or a
/// drain.
fn may_break_off(scenario: &Scenario) -> bool {
    may_drop(scenario)
        || scenario.faults.step_fails > 0.0
        || scenario.loses_device()
        || drained_amid(scenario)
}

fn check_usage(
    client: &Client,
    usage: &Usage,
    (least, most): (usize, usize),
    cacheable: u32,
) -> Result<(), String> {
    let prompt = client.request.prompt.len() as u32;
    let right = usage.prompt_tokens == prompt
        && (least..=most).contains(&(usage.completion_tokens as usize))
        && usage.cached_tokens <= cacheable;
    let should = format!(
        "{prompt} prompt tokens, {least} to {most} output tokens, at most {cacheable} cached"
    );
    if right { Ok(()) } else { Err(format!("{usage:?} should be {should}")) }
}

fn check_counters(scenario: &Scenario, seen: &[Seen], counters: &Counters) -> Result<(), String> {
    let mode = scenario.settings.preemption.mode;
    let [swaps, recomputes, drops] = [counters.swaps, counters.recomputes, counters.drops]
        .map(|by_tier| by_tier.iter().sum::<u64>());
    let changes = changes_policy(scenario);
    let saves = changes || matches!(mode, PreemptionMode::Auto | PreemptionMode::Swap);
    let usages = || {
        seen.iter().filter_map(|seen| match &seen.ending {
            Ending::Finished { usage, .. } | Ending::Stopped(Some(usage)) => Some(usage),
            _ => None,
        })
    };
    let all_prompts: u64 = scenario.clients.iter().map(|c| c.request.prompt.len() as u64).sum();
    let preempted: u64 = usages().map(|usage| u64::from(usage.preemptions)).sum();
    let cached: u64 = usages().map(|usage| u64::from(usage.cached_tokens)).sum();
    let dropped = |seen: &&Seen| matches!(seen.ending, Ending::Failed(RequestFault::Dropped));
    let longest = seen.iter().map(|seen| seen.tokens.len() as u64).max().unwrap_or(0);
    let rules = [
        ("swaps", swaps == 0 || (saves && scenario.profile.host_blocks > 0)),
        ("recomputes", recomputes == 0 || changes || mode != PreemptionMode::Drop),
        ("drops", drops == 0 || may_drop(scenario)),
        ("drops that clients saw", seen.iter().filter(dropped).count() as u64 <= drops),
        ("preemptions that clients were told of", preempted <= counters.preemptions()),
        ("failed steps", counters.failed_steps == 0 || scenario.faults.step_fails > 0.0),
        ("postponed draws", counters.postponed_draws == 0 || scenario.faults.mask_late > 0.0),
        ("steps", counters.steps >= longest),
        ("prefix hits", counters.prefix_hit_tokens <= counters.prefix_query_tokens),
        ("prefix look-ups", counters.prefix_query_tokens <= all_prompts),
        ("prefix hits that clients were told of", cached <= counters.prefix_hit_tokens),
        ("recomputed tokens", counters.recomputed_tokens == 0 || counters.preemptions() > 0),
    ];
    match rules.into_iter().find(|(_, holds)| !holds) {
        None => Ok(()),
        Some((rule, _)) => Err(format!("{rule}: {counters:?}")),
    }
}

/// Sums up requests, tokens and engine counters of a fuzzing run in which every check held.
pub(super) fn summary(seen: &[Seen], counters: Option<Counters>, end: Timestamp) -> Summary {
    let mut summary = Summary {
        requests: seen.len() as u64,
        simulated_us: end.0,
        counters: counters.unwrap_or_default(),
        ..Summary::default()
    };
    for seen in seen {
        summary.tokens += seen.tokens.len() as u64;
        summary.impatient += u64::from(matches!(
            seen.ending,
            Ending::Failed(RequestFault::OutOfPatience { stated: false, .. })
        ));
        let count = match seen.ending {
            Ending::Refused(_) => &mut summary.refused,
            Ending::Finished { .. } => &mut summary.finished,
            Ending::Failed(_) | Ending::Cut | Ending::TooMuch => &mut summary.failed,
            Ending::Left | Ending::Stopped(_) => &mut summary.left,
        };
        *count += 1;
    }
    summary
}
