//! Where live requests stand: their positions in line, for listings and for the comments of response streams that wait.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use tiercel_actors::{EngineHandle, SequenceState, SequenceView, Snapshot};
use tiercel_device::{SeqId, Tier};
use tokio::sync::Mutex;

/// Age up to which the comments of response streams share a snapshot, ms.
const SNAPSHOT_AGE_MS: u64 = 1_000;

/// Position of a sequence in the line of its tier: of the tier's sequences that have no first token and are not paused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Position {
    /// Number of the position: the sequence with position 1 is served first.
    pub(crate) number: usize,
    /// Expected time until the first token, ms, from the position and the rate at which the line drains (Little's law);
    /// `None` if that rate is unknown.
    pub(crate) first_token_in_ms: Option<u64>,
}

/// Returns the sequences of a snapshot in the order of service, with the positions of those that are in line.
pub(crate) fn in_order(snapshot: &Snapshot) -> Vec<(&SequenceView, Option<Position>)> {
    let mut views: Vec<&SequenceView> = snapshot.sequences.iter().collect();
    views.sort_unstable_by_key(|view| view.order);
    let in_line = |view: &SequenceView| view.first_token_at.is_none() && !view.paused;
    let mut lengths = [0_usize; Tier::ALL.len()];
    views.iter().filter(|view| in_line(view)).for_each(|view| lengths[view.tier.index()] += 1);
    let mut numbers = [0_usize; Tier::ALL.len()];
    let mut position = |view: &SequenceView| {
        let tier = view.tier.index();
        numbers[tier] += 1;
        let (number, part) = (numbers[tier], numbers[tier] as f64 / lengths[tier] as f64);
        let drain_us = snapshot.drain_us[tier];
        let first_token_in_ms = drain_us.map(|drain_us| (drain_us * part / 1e3) as u64);
        Position { number, first_token_in_ms }
    };
    views.into_iter().map(|view| (view, in_line(view).then(|| position(view)))).collect()
}

/// Where a request stands that sends nothing to its client at the moment. As text it is the comment for the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// The request is in line and has not started.
    Waiting(Position),
    /// The prompt is being computed: so many of its tokens are done.
    Prefill { done: u32, of: u32, position: Position },
    /// An operator paused the request.
    Paused { tokens: u32 },
    /// The request was preempted, after so many output tokens.
    Preempted { tokens: u32 },
    /// Blocks of the preempted request are being copied back.
    Resuming { tokens: u32 },
    /// The request decodes, or nothing is known of it yet.
    Other,
}

impl Standing {
    fn of(view: &SequenceView, position: Option<Position>) -> Standing {
        let tokens = view.output_tokens;
        match (view.state, position) {
            _ if view.paused => Standing::Paused { tokens },
            (SequenceState::Waiting, Some(position)) => Standing::Waiting(position),
            (SequenceState::Prefill, Some(position)) => {
                let of = view.prompt_tokens;
                Standing::Prefill { done: view.computed_tokens.min(of), of, position }
            }
            (SequenceState::Preempted, _) => Standing::Preempted { tokens },
            (SequenceState::Resuming, _) => Standing::Resuming { tokens },
            (SequenceState::Waiting | SequenceState::Prefill | SequenceState::Decode, _) => {
                Standing::Other
            }
        }
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "position {}", self.number)?;
        match self.first_token_in_ms {
            Some(ms) => write!(f, ", first token in about {ms} ms"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Standing::Waiting(position) => write!(f, "waiting, {position}"),
            Standing::Prefill { done, of, position } => {
                write!(f, "computing the prompt, {done} of {of} tokens done, {position}")
            }
            Standing::Paused { tokens } => write!(f, "paused by an operator, {tokens} tokens done"),
            Standing::Preempted { tokens } => write!(f, "preempted, {tokens} tokens done"),
            Standing::Resuming { tokens } => write!(f, "resuming, {tokens} tokens done"),
            Standing::Other => f.write_str("waiting"),
        }
    }
}

/// Where all live sequences stand, by the latest snapshot. All response streams of the process share it: for a snapshot
/// it is computed once, by the first stream that asks, and each stream then takes one look-up for each of its choices.
/// While no stream asks, no snapshot is taken.
pub(crate) struct Standings {
    engine: EngineHandle,
    latest: Mutex<Index>,
}

/// Standings by one snapshot, each with its rank: how many sequences are served before it.
#[derive(Default)]
struct Index {
    snapshot: Arc<Snapshot>,
    of: HashMap<SeqId, (usize, Standing)>,
}

impl Standings {
    pub(crate) fn new(engine: EngineHandle) -> Standings {
        Standings { engine, latest: Mutex::default() }
    }

    /// Returns where a request stands: where that one of its choices stands that is served first. `sequences` are the
    /// sequences of the choices.
    pub(crate) async fn of(&self, sequences: &[SeqId]) -> Standing {
        // Hold the lock until the index is there, so that streams that ask meanwhile wait for it instead of asking the
        // engine for snapshots of their own.
        let mut latest = self.latest.lock().await;
        let Ok(snapshot) = self.engine.snapshot(SNAPSHOT_AGE_MS).await else {
            return Standing::Other;
        };
        if !Arc::ptr_eq(&snapshot, &latest.snapshot) {
            *latest = Index::new(snapshot);
        }
        latest.first_of(sequences)
    }
}

impl Index {
    fn new(snapshot: Arc<Snapshot>) -> Index {
        let ranked = in_order(&snapshot).into_iter().enumerate();
        let of = ranked
            .map(|(rank, (view, position))| (view.seq, (rank, Standing::of(view, position))))
            .collect();
        Index { snapshot, of }
    }

    fn first_of(&self, sequences: &[SeqId]) -> Standing {
        let found = sequences.iter().filter_map(|seq| self.of.get(seq));
        found.min_by_key(|(rank, _)| *rank).map_or(Standing::Other, |(_, standing)| *standing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::future::join_all;
    use tiercel_actors::{Control, Request, TokenStream};
    use tiercel_simulation::{Laboratory, request, simulate};

    /// Starts an engine that serves one request at a time, lets it serve a premium request, and submits requests of the
    /// given tiers.
    async fn waiting(
        clock: &tiercel_device::Clock,
        tiers: &[Tier],
    ) -> (EngineHandle, Vec<TokenStream>) {
        let mut laboratory = Laboratory::tiny(clock.clone());
        laboratory.settings.scheduler.max_num_seqs = 1;
        let engine = laboratory.start();
        let of = |tier| Request { tier, ..request(&[1, 2, 3], 1_000) };
        let mut streams = vec![engine.submit(of(Tier::Premium)).await.unwrap()];
        streams[0].next().await;
        for tier in tiers {
            streams.push(engine.submit(of(*tier)).await.unwrap());
        }
        (engine, streams)
    }

    #[test]
    fn a_request_is_told_its_position_among_the_requests_of_its_tier() {
        simulate(async |clock| {
            let tiers = [Tier::Background, Tier::Background, Tier::Standard, Tier::Background];
            let (engine, streams) = waiting(&clock, &tiers).await;
            engine.control(Control::Pause(streams[1].seq())).await.unwrap();
            let standings = Standings::new(engine);
            let mut told = Vec::new();
            for stream in &streams {
                told.push(standings.of(&[stream.seq()]).await.to_string());
            }
            let expected = [
                "waiting",
                "paused by an operator, 0 tokens done",
                "waiting, position 1",
                "waiting, position 1",
                "waiting, position 2",
            ];
            assert_eq!(told, expected);
            let choices = [streams[4].seq(), streams[2].seq(), SeqId(999)];
            let first = standings.of(&choices).await.to_string();
            assert_eq!(first, "waiting, position 1", "the choice that is served first");
        });
    }

    #[test]
    fn all_streams_share_the_snapshot_of_a_second() {
        simulate(async |clock| {
            let (engine, streams) = waiting(&clock, &[Tier::Standard; 50]).await;
            let standings = Standings::new(engine.clone());
            let look = async || {
                let seqs: Vec<[SeqId; 1]> = streams.iter().map(|stream| [stream.seq()]).collect();
                let told = join_all(seqs.iter().map(|seq| standings.of(seq))).await;
                assert!(matches!(told[50], Standing::Waiting(_)));
                standings.latest.lock().await.snapshot.clone()
            };
            let first = look().await;
            clock.sleep_us(SNAPSHOT_AGE_MS * 1_000 - 1).await;
            let second = look().await;
            assert!(Arc::ptr_eq(&first, &second));
            clock.sleep_us(1).await;
            let third = look().await;
            assert!(third.at > first.at);
            assert!(Arc::ptr_eq(&third, &engine.snapshot(60_000).await.unwrap()));
        });
    }

    #[test]
    fn a_comment_says_how_far_a_request_is() {
        let position = Position { number: 12, first_token_in_ms: Some(3_400) };
        let text = |standing: Standing| standing.to_string();
        let waiting = "waiting, position 12, first token in about 3400 ms";
        assert_eq!(text(Standing::Waiting(position)), waiting);
        let position = Position { number: 1, first_token_in_ms: None };
        let prefill = Standing::Prefill { done: 256, of: 1_000, position };
        assert_eq!(text(prefill), "computing the prompt, 256 of 1000 tokens done, position 1");
        assert_eq!(text(Standing::Preempted { tokens: 40 }), "preempted, 40 tokens done");
        assert_eq!(text(Standing::Resuming { tokens: 40 }), "resuming, 40 tokens done");
    }
}
