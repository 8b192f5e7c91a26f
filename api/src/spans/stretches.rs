//! Cuts the timeline of a sequence that has ended into stretches: waiting, copying, prefill, decode and preempted.

use tiercel_actors::{EndedTimeline, Happening, Moment};
use tiercel_device::Timestamp;

/// What a sequence does in a stretch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Doing {
    /// The sequence waits for its start.
    Queue,
    /// The sequence's prompt is computed, up to the first output token.
    Prefill,
    /// The sequence's output is computed, after the first output token.
    Decode,
    /// The sequence is preempted, until it has its blocks again.
    Preempted {
        /// Whether its blocks are copied to the host pool rather than only given up.
        swap: bool,
    },
    /// Blocks of the sequence are copied from the host pool to the device, for its start or after a preemption.
    Copying,
}

/// A time in which a sequence does one thing.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Stretch {
    pub(super) doing: Doing,
    pub(super) from: Timestamp,
    pub(super) to: Timestamp,
    /// Operators' commands in the stretch.
    pub(super) commands: Vec<(Timestamp, &'static str)>,
}

/// Returns the stretches of a sequence, in order and without gaps. If the timeline has dropped moments, the stretches
/// begin with the first kept moment that tells what the sequence does.
pub(super) fn stretches(ended: &EndedTimeline) -> Vec<Stretch> {
    let moments: Vec<Moment> = ended.timeline.moments().copied().collect();
    cut(&moments, ended.timeline.dropped() > 0, ended.at)
}

/// Returns the stretches of a sequence that ended at `end`. `has_dropped` says whether earlier moments were dropped.
fn cut(moments: &[Moment], has_dropped: bool, end: Timestamp) -> Vec<Stretch> {
    let first_token = |moment: &Moment| moment.what == Happening::FirstToken;
    // If moments were dropped and the first token is not among the others, it is taken for one of those dropped.
    let mut has_token = has_dropped && !moments.iter().any(first_token);
    let mut stretches: Vec<Stretch> = Vec::new();
    for moment in moments {
        has_token |= first_token(moment);
        let running = if has_token { Doing::Decode } else { Doing::Prefill };
        let doing = match moment.what {
            Happening::Queued { .. } => Doing::Queue,
            Happening::Started | Happening::FirstToken | Happening::Resumed => running,
            Happening::Preempted { swap } => Doing::Preempted { swap },
            Happening::Copying => Doing::Copying,
            Happening::Paused => {
                command(&mut stretches, moment.at, "paused");
                continue;
            }
            Happening::Unpaused => {
                command(&mut stretches, moment.at, "unpaused");
                continue;
            }
            Happening::Moved { .. } => {
                command(&mut stretches, moment.at, "moved to another tier");
                continue;
            }
        };
        if let Some(last) = stretches.last_mut() {
            // A token that a step sampled before a preemption does not end the preemption.
            let preempted = matches!(last.doing, Doing::Preempted { .. } | Doing::Copying);
            if last.doing == doing || (preempted && first_token(moment)) {
                continue;
            }
            last.to = moment.at;
        }
        stretches.push(Stretch { doing, from: moment.at, to: end, commands: Vec::new() });
    }
    stretches
}

fn command(stretches: &mut [Stretch], at: Timestamp, what: &'static str) {
    if let Some(last) = stretches.last_mut() {
        last.commands.push((at, what));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tiercel_device::{StepId, Tier};

    /// Cuts a timeline with a moment at each of the times 0, 10, 20 and so on, and its end 10 after the last moment.
    /// Returns what the sequence does and since when.
    fn cut_of(happenings: &[Happening], has_dropped: bool) -> Vec<(Doing, u64)> {
        let moment = |(place, what): (u64, &Happening)| Moment {
            at: Timestamp(place * 10),
            step: StepId(place),
            what: *what,
        };
        let moments: Vec<Moment> = (0..).zip(happenings).map(moment).collect();
        let end = Timestamp(moments.len() as u64 * 10);
        let stretches = cut(&moments, has_dropped, end);
        assert!(stretches.windows(2).all(|pair| pair[0].to == pair[1].from), "{stretches:?}");
        assert_eq!(stretches.last().map(|last| last.to), Some(end));
        stretches.iter().map(|stretch| (stretch.doing, stretch.from.0)).collect()
    }

    #[test]
    fn a_timeline_is_cut_where_the_sequence_begins_to_do_another_thing() {
        use Happening::{Copying, FirstToken, Moved, Paused, Preempted, Queued, Resumed, Started};
        let tier = Tier::Standard;
        let moved = Moved { from: tier, to: Tier::Premium };
        let (swap, recompute) = (Preempted { swap: true }, Preempted { swap: false });
        let (swapped, freed) = (Doing::Preempted { swap: true }, Doing::Preempted { swap: false });
        let whole = [
            Queued { tier },
            moved,
            Copying,
            Started,
            swap,
            Copying,
            Resumed,
            FirstToken,
            recompute,
            Resumed,
        ];
        let expected = [
            (Doing::Queue, 0),
            (Doing::Copying, 20),
            (Doing::Prefill, 30),
            (swapped, 40),
            (Doing::Copying, 50),
            (Doing::Prefill, 60),
            (Doing::Decode, 70),
            (freed, 80),
            (Doing::Decode, 90),
        ];
        assert_eq!(cut_of(&whole, false), expected);
        let late_token = [Queued { tier }, Started, recompute, FirstToken, Resumed];
        let expected = [(Doing::Queue, 0), (Doing::Prefill, 10), (freed, 20), (Doing::Decode, 40)];
        assert_eq!(cut_of(&late_token, false), expected);
        let rest = [Paused, Resumed, swap, Resumed];
        let expected = [(Doing::Decode, 10), (swapped, 20), (Doing::Decode, 30)];
        assert_eq!(cut_of(&rest, true), expected);
        assert_eq!(cut_of(&[swap, Resumed, FirstToken], true)[1], (Doing::Prefill, 10));
    }
}
