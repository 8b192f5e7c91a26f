//! Call parser of the Llama 3 dialect: `{"name": …, "parameters": {…}}`, as the whole answer or after `<|python_tag|>`.
//! Semicolons or whitespace separate several calls.

use super::form::{Form, Held, Step, give_back, is_space};
use super::json_call::JsonCall;
use super::sink::Sink;

/// Maximum length of the separator between two calls, bytes.
const BETWEEN_BYTES_MAX: usize = 64;

/// Call parser of the Llama 3 dialect, after the trigger if there is one.
#[derive(Debug)]
pub(super) struct Llama {
    call: JsonCall,
    /// Text after a complete call; `None` within a call.
    between: Option<String>,
}

impl Llama {
    pub(super) fn new(opening: &str) -> Llama {
        Llama { call: JsonCall::new(Held::new(opening), true), between: None }
    }
}

impl Form for Llama {
    fn feed(&mut self, ch: char, out: &mut Sink) -> Step {
        if let Some(between) = &mut self.between {
            if ch != '{' {
                between.push(ch);
                let separates = (is_space(ch) || ch == ';') && between.len() <= BETWEEN_BYTES_MAX;
                return if separates { Step::Taken } else { give_back(std::mem::take(between)) };
            }
            self.call = JsonCall::new(Held::new(between), true);
            self.between = None;
        }
        match self.call.feed(ch, out) {
            Step::Over => {
                self.between = Some(String::new());
                Step::Taken
            }
            step => step,
        }
    }

    fn finish(&mut self, _: &mut Sink) -> String {
        if self.between.is_some() { String::new() } else { self.call.finish() }
    }
}
