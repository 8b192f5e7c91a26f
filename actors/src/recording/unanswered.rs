//! A recorded request between its arrival and the engine's answer.

use crate::recording::recorder::Recorder;
use crate::recording::rows::Place;
use tiercel_device::SeqId;

/// A recorded request that the engine has not answered. Dropping it records that the request's client left.
#[derive(Debug)]
pub(crate) struct Unanswered<'a> {
    recorder: &'a Recorder,
    place: Option<Place>,
}

impl<'a> Unanswered<'a> {
    pub(crate) fn new(recorder: &'a Recorder, place: Option<Place>) -> Unanswered<'a> {
        Unanswered { recorder, place }
    }

    /// Records that the engine has accepted the request as sequence `seq`, or has refused it.
    pub(crate) fn answered(mut self, accepted: Option<SeqId>) {
        if let Some(place) = self.place.take() {
            self.recorder.answered(place, accepted);
        }
    }
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        if let Some(place) = self.place.take() {
            self.recorder.abandoned(place);
        }
    }
}
