//! Handlers of the Scheduler for messages of clients and operators: cancel, stop, turn away for a higher tier,
//! operator commands, and drain.

use super::SchedulerActor;
use super::drain::Draining;
use crate::messages::{Cancel, Command, Displace, Drain, SetLimits, Stop, TierChanged};
use crate::request::{Changed, Control, RequestFault};
use actix::Handler;
use tiercel_config::EngineSettings;
use tiercel_policy::scheduler::Hold;

impl Handler<Cancel> for SchedulerActor {
    type Result = ();

    fn handle(&mut self, Cancel(seq): Cancel, _: &mut Self::Context) {
        self.core.cancel(seq);
        self.drive();
    }
}

impl Handler<Stop> for SchedulerActor {
    type Result = ();

    fn handle(&mut self, Stop(seq): Stop, _: &mut Self::Context) {
        self.core.stop(seq);
        self.drive();
    }
}

impl Handler<Displace> for SchedulerActor {
    type Result = bool;

    fn handle(&mut self, message: Displace, _: &mut Self::Context) -> bool {
        let Displace { tier, choices } = message;
        let displaced = self.core.displace(tier, choices, self.clock.now());
        self.drive();
        displaced
    }
}

impl Handler<Command> for SchedulerActor {
    type Result = Changed;

    fn handle(&mut self, Command(control): Command, _: &mut Self::Context) -> Changed {
        let (now, step) = (self.clock.now(), self.core.last_step());
        let before = control.seq().and_then(|seq| self.core.inspect(seq, now));
        let known = match control.clone() {
            Control::Reprioritize { seq, tier, priority } => {
                let known = self.core.reprioritize(seq, tier, priority);
                self.promise(seq);
                if known {
                    self.peers.admission.tier.do_send(TierChanged { seq, tier });
                }
                known
            }
            Control::Pause(seq) => self.core.set_hold(seq, Hold::Operator, true),
            Control::Resume(seq) => self.core.set_hold(seq, Hold::Operator, false),
            Control::Cancel(seq) => {
                self.core.fail(seq, RequestFault::Cancelled);
                before.is_some()
            }
            Control::SetPolicy(policy) => {
                self.core.set_policy(policy);
                true
            }
            Control::Adjust(settings) => {
                self.core.adjust(&settings);
                let EngineSettings { admission, patience, reservation, .. } = *settings;
                let limits = SetLimits { admission, patience, reservation };
                self.peers.admission.limits.do_send(limits);
                true
            }
        };
        tracing::debug!(?control, known, %step, "received an operator command");
        self.trace.command(&control, known);
        if let (true, Some(before)) = (known, &before) {
            self.timelines.command(&control, before, (now, step));
        }
        let after = control.seq().and_then(|seq| self.core.inspect(seq, now));
        self.drive();
        Changed { known, before, after, step }
    }
}

impl Handler<Drain> for SchedulerActor {
    type Result = ();

    fn handle(&mut self, asked: Drain, _: &mut Self::Context) {
        self.drain = Some(Draining::new(asked));
        self.core.wake();
        self.drive();
    }
}
