//! A kit for testing one actor alone: stand-ins for the other actors.
//!
//! An actor knows the other actors as recipients of messages. A test gives the actor stand-ins that record their
//! messages, sends it messages, lets all mailboxes drain, and looks at what the stand-ins received. Time comes from
//! [`Clock::simulated`](tiercel_device::Clock::simulated), and sizes and speed of a device from [`small_device`].

use crate::lifeline::{Lifeline, Obituary};
use actix::dev::MessageResult;
use actix::{Actor, AsyncContext, Context, Handler, Message, Recipient};
use std::cell::RefCell;
use std::rc::Rc;
use tiercel_device::{DeviceInfo, DeviceProfile, MockProfile};
use tokio::sync::watch;

/// Number of turns of the event loop that [`settle`] waits: more than any chain of messages between actors has
/// messages.
const TURNS: usize = 64;

/// Messages that a stand-in for an actor received and the test has not taken yet, in order.
#[derive(Debug)]
pub struct Received<M>(Rc<RefCell<Vec<M>>>);

impl<M> Received<M> {
    /// Removes and returns the messages that the stand-in received so far, in order.
    pub fn take(&self) -> Vec<M> {
        std::mem::take(&mut *self.0.borrow_mut())
    }
}

/// Function that computes the answer to a message.
type Answer<M> = Box<dyn FnMut(&M) -> <M as Message>::Result>;

/// Stand-in for an actor in a test: keeps every message that it receives and answers it.
struct Recorder<M: Message> {
    received: Rc<RefCell<Vec<M>>>,
    answer: Answer<M>,
}

impl<M: Message + Unpin + 'static> Actor for Recorder<M>
where
    M::Result: Send,
{
    type Context = Context<Self>;
}

impl<M> Handler<M> for Recorder<M>
where
    M: Message + Unpin + Send + 'static,
    M::Result: Send + 'static,
{
    type Result = MessageResult<M>;

    fn handle(&mut self, message: M, _: &mut Self::Context) -> MessageResult<M> {
        let answer = (self.answer)(&message);
        self.received.borrow_mut().push(message);
        MessageResult(answer)
    }
}

/// Starts a stand-in for a neighbour of the actor under test. It keeps every message and answers it with the result of
/// `answer`.
pub fn answering<M>(answer: impl FnMut(&M) -> M::Result + 'static) -> (Recipient<M>, Received<M>)
where
    M: Message + Unpin + Send + 'static,
    M::Result: Send + 'static,
{
    let received = Rc::new(RefCell::new(Vec::new()));
    let recorder = Recorder { received: Rc::clone(&received), answer: Box::new(answer) };
    (recorder.start().recipient(), Received(received))
}

/// Starts a stand-in for a neighbour of the actor under test. It keeps every message and answers nothing.
pub fn recorder<M>() -> (Recipient<M>, Received<M>)
where
    M: Message<Result = ()> + Unpin + Send + 'static,
{
    answering(|_| ())
}

/// Returns a recipient of messages whose actor has died, so that every send to it fails.
pub fn dead<M>() -> Recipient<M>
where
    M: Message + Unpin + Send + 'static,
    M::Result: Send + 'static,
{
    // Make a mailbox that no actor reads: it is closed as soon as it is dropped.
    let mailbox = Context::<Recorder<M>>::new();
    mailbox.address().recipient()
}

/// Returns a lifeline (death guard) for an actor under test, and the channel on which the actor's death is announced.
pub fn lifeline(name: &'static str) -> (Lifeline, Obituary) {
    let obituary = watch::Sender::new(None);
    (Lifeline::new(name, &obituary), obituary)
}

/// Returns the sizes and the speed of a small device: the mock device `tiny`, with one step in flight.
///
/// # Panics
/// If the built-in profile `tiny` does not parse.
pub fn small_device() -> (DeviceInfo, DeviceProfile) {
    let profile = MockProfile::named("tiny").expect("a built-in profile");
    (DeviceInfo { max_steps_in_flight: 1, ..profile.info() }, profile.device_profile())
}

/// Waits until all actors on this thread have handled the messages that they have.
pub async fn settle() {
    for _ in 0..TURNS {
        tokio::task::yield_now().await;
    }
}
