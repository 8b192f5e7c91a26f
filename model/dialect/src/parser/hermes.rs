//! Call parser of the Hermes dialect: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`.

use super::closing::Closing;
use super::form::{Form, Held, Step};
use super::json_call::JsonCall;
use super::sink::Sink;

/// Call parser of the Hermes dialect, after the opening tag.
#[derive(Debug)]
pub(super) struct Hermes {
    call: JsonCall,
    /// Parser of the closing tag; `None` before the end of the object. The closing brace of the object may be missing.
    closing: Option<Closing>,
}

impl Hermes {
    pub(super) fn new(opening: &str) -> Hermes {
        Hermes { call: JsonCall::new(Held::new(opening), false), closing: None }
    }
}

impl Form for Hermes {
    fn feed(&mut self, ch: char, out: &mut Sink) -> Step {
        if let Some(closing) = &mut self.closing {
            return closing.feed(ch);
        }
        match self.call.feed(ch, out) {
            Step::Over => {
                self.closing = Some(Closing::new("</tool_call>"));
                Step::Taken
            }
            Step::Refused(refusal) if self.call.is_complete() => {
                let closing = self.closing.insert(Closing::new("</tool_call>"));
                closing.feed_all(&refusal.text)
            }
            step => step,
        }
    }

    fn finish(&mut self, _: &mut Sink) -> String {
        self.call.finish()
    }
}
