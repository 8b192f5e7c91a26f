//! Plays one client of a fuzzing scenario, from the sending of its request to the last event of its response stream.

use super::run::Stage;
use super::scenario::{Client, Habit};
use std::rc::Rc;
use tiercel_actors::{FinishReason, Refusal, RequestFault, StreamEvent, TokenStream, Usage};
use tiercel_device::TokenId;

/// Tokens that a client of a fuzzing scenario received, and how its request ended.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Seen {
    pub(super) tokens: Vec<TokenId>,
    /// Number of received tokens that came with log-probabilities.
    pub(super) with_logprobs: usize,
    pub(super) ending: Ending,
}

/// How a request ended from the client's point of view.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Ending {
    Refused(Refusal),
    Finished {
        reason: FinishReason,
        usage: Usage,
    },
    Failed(RequestFault),
    /// The client closed its response stream early.
    Left,
    /// The client ended the output because it had enough tokens. Holds the token counts (usage) that the engine told
    /// it; `None` if it was told none.
    Stopped(Option<Usage>),
    /// The engine closed the response stream without a last event, which is an error.
    Cut,
    /// The response stream had more tokens than requested, or an event after its last one, which is an error.
    TooMuch,
}

/// Sends the request of a fuzzing client, reads the response stream as the client's habit says, and returns what the
/// client received.
pub(super) async fn visit(stage: Rc<Stage>, number: usize, client: Client) -> Seen {
    let clock = stage.engine.clock().clone();
    clock.sleep_until(client.at).await;
    let most = client.request.max_tokens as usize;
    let mut seen = Seen { tokens: Vec::new(), with_logprobs: 0, ending: Ending::Left };
    match stage.engine.submit(stage.keyed(&client.request)).await {
        Err(refusal) => seen.ending = Ending::Refused(refusal),
        Ok(stream) => {
            stage.admitted(number, stream.seq());
            if let Habit::LeavesAfter(us) = client.habit {
                let reading = read(&stage, client.habit, most, stream, &mut seen);
                if let Some(ending) = clock.timeout_us(us, reading).await {
                    seen.ending = ending;
                }
            } else {
                seen.ending = read(&stage, client.habit, most, stream, &mut seen).await;
            }
        }
    }
    stage.progress();
    seen
}

async fn read(
    stage: &Stage,
    habit: Habit,
    most: usize,
    mut stream: TokenStream,
    seen: &mut Seen,
) -> Ending {
    let clock = stage.engine.clock();
    if let Habit::ReadsLate(us) = habit {
        clock.sleep_us(us).await;
    }
    loop {
        if let Habit::ReadsSlowly(us) = habit {
            clock.sleep_us(us).await;
        }
        let event = stream.next().await;
        stage.progress();
        let ending = match event {
            Some(StreamEvent::Token { token, logprobs }) => {
                seen.tokens.push(token);
                seen.with_logprobs += usize::from(logprobs.is_some());
                match habit {
                    Habit::LeavesAt(tokens) if seen.tokens.len() >= tokens as usize => {
                        return Ending::Left;
                    }
                    Habit::StopsAt(tokens) if seen.tokens.len() >= tokens as usize => {
                        return Ending::Stopped(stream.stop().await);
                    }
                    _ if seen.tokens.len() > most => return Ending::TooMuch,
                    _ => continue,
                }
            }
            Some(StreamEvent::Finished { reason, usage }) => Ending::Finished { reason, usage },
            Some(StreamEvent::Failed(fault)) => Ending::Failed(fault),
            None => return Ending::Cut,
        };
        return if stream.next().await.is_none() { ending } else { Ending::TooMuch };
    }
}
