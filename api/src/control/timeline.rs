//! Timelines of requests as the control API shows them.

use serde::Serialize;
use tiercel_actors::{Happening, Moment, Timeline};
use tiercel_device::Timestamp;
use utoipa::ToSchema;

/// What happened to one choice of a request: the last moments, oldest first.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub(crate) struct TimelineView {
    /// Number of earlier moments, which are left out here.
    dropped: u64,
    moments: Vec<MomentView>,
}

/// One moment of a request.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
struct MomentView {
    /// Time since the request arrived, ms.
    at_ms: f64,
    /// Step that the moment belongs to.
    step: u64,
    #[serde(flatten)]
    what: HappeningView,
}

/// What happened at a moment.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(tag = "what", rename_all = "snake_case")]
enum HappeningView {
    Queued { tier: &'static str },
    Started,
    FirstToken,
    Preempted { strategy: &'static str },
    Copying,
    Resumed,
    Paused,
    Unpaused,
    Moved { from: &'static str, to: &'static str },
}

impl TimelineView {
    /// Makes the view of the timeline of a request that came at `arrival`.
    pub(crate) fn new(timeline: &Timeline, arrival: Timestamp) -> TimelineView {
        TimelineView::latest(timeline, arrival, usize::MAX)
    }

    /// Makes the view of the latest moments of a timeline, at most `most` of them.
    pub(crate) fn latest(timeline: &Timeline, arrival: Timestamp, most: usize) -> TimelineView {
        let left_out = timeline.moments().count().saturating_sub(most);
        let moments = timeline.moments().skip(left_out);
        TimelineView {
            dropped: timeline.dropped() + left_out as u64,
            moments: moments.map(|moment| MomentView::new(moment, arrival)).collect(),
        }
    }
}

impl MomentView {
    fn new(moment: &Moment, arrival: Timestamp) -> MomentView {
        let what = match moment.what {
            Happening::Queued { tier } => HappeningView::Queued { tier: tier.name() },
            Happening::Started => HappeningView::Started,
            Happening::FirstToken => HappeningView::FirstToken,
            Happening::Preempted { swap } => {
                HappeningView::Preempted { strategy: if swap { "swap" } else { "recompute" } }
            }
            Happening::Copying => HappeningView::Copying,
            Happening::Resumed => HappeningView::Resumed,
            Happening::Paused => HappeningView::Paused,
            Happening::Unpaused => HappeningView::Unpaused,
            Happening::Moved { from, to } => {
                HappeningView::Moved { from: from.name(), to: to.name() }
            }
        };
        MomentView { at_ms: moment.at.since_ms(arrival), step: moment.step.0, what }
    }
}
