//! Supervision of the actors: an engine with a dead actor must stop loudly.
//!
//! actix closes the mailbox of an actor whose handler panics, and does not restart the actor. Each actor holds a
//! [`Lifeline`]. If a lifeline is dropped before it was released, the engine is declared dead.

use tokio::sync::watch;

/// Channel on which the death of an engine is announced. Only the first cause is kept.
pub type Obituary = watch::Sender<Option<String>>;

/// Death guard that each actor owns. Dropping it announces the death of the actor, unless it was released before.
pub struct Lifeline {
    name: &'static str,
    obituary: Obituary,
    armed: bool,
}

impl Lifeline {
    /// Makes a death guard for the actor of this name.
    pub fn new(name: &'static str, obituary: &Obituary) -> Lifeline {
        Lifeline { name, obituary: obituary.clone(), armed: true }
    }

    /// Announces a fault after which the engine cannot go on, such as a lost device, although the actor that noticed it
    /// survives.
    pub(crate) fn fatal(&self, why: &str) {
        announce(&self.obituary, format!("{}: {why}", self.name));
    }

    /// Disarms the death guard, because the actor is about to stop in an orderly way, which is not a death.
    pub(crate) fn release(&mut self) {
        self.armed = false;
    }
}

impl Drop for Lifeline {
    fn drop(&mut self) {
        if self.armed {
            announce(&self.obituary, format!("actor {} died", self.name));
        }
    }
}

fn announce(obituary: &Obituary, cause: String) {
    obituary.send_if_modified(|first| {
        if first.is_some() {
            return false;
        }
        tracing::error!(%cause, "the engine has died and serves no more requests");
        *first = Some(cause);
        true
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_unreleased_lifeline_announces_and_the_first_cause_stays() {
        let obituary = watch::Sender::new(None);
        let mut orderly = Lifeline::new("a", &obituary);
        orderly.release();
        drop(orderly);
        assert_eq!(*obituary.borrow(), None);
        drop(Lifeline::new("b", &obituary));
        drop(Lifeline::new("c", &obituary));
        assert_eq!(obituary.borrow().as_deref(), Some("actor b died"));
    }

    #[test]
    fn a_fatal_fault_is_announced_with_the_name_of_the_actor_that_noticed_it() {
        let obituary = watch::Sender::new(None);
        let mut lifeline = Lifeline::new("Executor", &obituary);
        lifeline.fatal("device lost");
        lifeline.release();
        assert_eq!(obituary.borrow().as_deref(), Some("Executor: device lost"));
    }
}
