//! Parser of one answer by a response template.

use super::call::{self, Call};
use super::content::Content;
use super::field::{Field, Role};
use super::outside::Outside;
use super::scan::{Hit, Unparsed, Watched};
use super::template::ResponseTemplate;
use super::text::FieldText;
use crate::Tools;
use crate::parser::Sink;
use serde_json::{Map, Value};
use std::sync::Arc;

/// Maximum length of the text of a field with calls, bytes. A longer text is content.
const CALLS_BYTES_MAX: usize = 1 << 20;
/// Length of the parsed text above which its beginning is removed, bytes.
const PARSED_BYTES_MAX: usize = 64 << 10;
/// Bytes of parsed text before the unparsed text that are kept, as context for `\b`, `^` and the like in delimiters.
const KEPT_BYTES: usize = 64;

/// Parser of one answer. The text is in one field at a time. In the implicit field, the parser searches for the opening
/// delimiters of the other fields; in another field, for the closing delimiter of this field.
#[derive(Debug)]
pub(crate) struct Regions {
    template: Arc<ResponseTemplate>,
    /// Functions that the request offers; `None` if the parser does not look for calls.
    tools: Option<Tools>,
    /// Text from the beginning of the answer on, of which long parsed parts are removed.
    text: String,
    /// Length of the parsed text.
    at: usize,
    /// Length of the answer's beginning in the prompt. This beginning is parsed and not passed on.
    begun: usize,
    /// Index of the field that is open at the end of the parsed text; `None` if no field is open.
    field: Option<usize>,
    /// Whether the current field has begun. The implicit field begins with its first character.
    is_open: bool,
    /// Text of the opening delimiter of the current field, without its part in the prompt.
    opening: String,
    captures: Map<String, Value>,
    /// Text of the current field, if the field holds calls.
    body: String,
    /// Length of the part of `body` that is in the prompt.
    body_begun: usize,
    /// Text of the current field. If the field holds calls: text of the implicit field before the calls.
    out: FieldText,
    /// For each field, whether a part of it has been passed on.
    passed: Vec<bool>,
    outside: Outside,
    /// Number of empty delimiters that were found at the end of the parsed text, which must not go on forever.
    empty: usize,
}

impl Regions {
    /// Creates the parser of an answer to a prompt that ends with `prompt`.
    pub(crate) fn new(
        template: &Arc<ResponseTemplate>,
        prompt: &str,
        tools: Option<&Tools>,
    ) -> Regions {
        let begun = template.begun(prompt);
        let mut regions = Regions {
            template: template.clone(),
            tools: tools.cloned(),
            text: begun.to_owned(),
            at: 0,
            begun: begun.len(),
            field: template.implicit,
            is_open: false,
            opening: String::new(),
            captures: Map::new(),
            body: String::new(),
            body_begun: 0,
            out: FieldText::new(true),
            passed: vec![false; template.fields.len()],
            outside: Outside::new(),
            empty: 0,
        };
        regions.reset();
        regions.parse(false, &mut Sink::default());
        regions.outside = Outside::new();
        regions
    }

    /// Whether the current text is reasoning.
    pub(crate) fn is_reasoning(&self) -> bool {
        self.is_open && self.field.is_some_and(|field| self.role(field) == Role::Reasoning)
    }

    /// Parses the next part of the text.
    pub(crate) fn feed(&mut self, text: &str, out: &mut Sink) {
        self.text.push_str(text);
        self.parse(false, out);
        if self.at > PARSED_BYTES_MAX {
            let cut = self.text.floor_char_boundary(self.at - KEPT_BYTES);
            self.text.drain(..cut);
            self.at -= cut;
            self.begun = self.begun.saturating_sub(cut);
        }
    }

    /// Ends the text.
    pub(crate) fn finish(&mut self, out: &mut Sink) {
        self.parse(true, out);
        self.outside.pass(out);
    }

    fn parse(&mut self, is_whole: bool, out: &mut Sink) {
        loop {
            let text = Unparsed {
                text: &self.text,
                from: self.at,
                is_whole,
                may_be_empty: self.empty <= self.template.fields.len(),
            };
            let (hit, end) = text.scan(&self.watched());
            if !self.pass(end, out) {
                continue;
            }
            match hit {
                Some(hit) => self.take(hit, out),
                None if is_whole => return self.close("", false, out),
                None => return,
            }
        }
    }

    /// Returns the delimiters that may come next.
    fn watched(&self) -> Vec<Watched<'_>> {
        let is_implicit = self.field == self.template.implicit;
        let mut watched = Vec::new();
        for (number, field) in self.template.fields.iter().enumerate() {
            let opens = self.field != Some(number);
            let may_open = is_implicit && (field.role != Role::Calls || self.tools.is_some());
            let delimiter = if opens { field.open.as_ref() } else { field.close.as_ref() };
            if let Some(delimiter) = delimiter.filter(|_| !opens || may_open) {
                watched.push(Watched { field: number, opens, delimiter });
            }
        }
        watched
    }

    /// Takes a delimiter at the end of the parsed text.
    fn take(&mut self, hit: Hit, out: &mut Sink) {
        self.empty = if hit.end > hit.start { 0 } else { self.empty + 1 };
        self.at = hit.end;
        let delimiter = self.text[hit.start.max(self.begun.min(hit.end))..hit.end].to_owned();
        if hit.opens {
            self.open(hit, delimiter, out);
        } else {
            self.captures.extend(hit.captures);
            self.close(&delimiter, true, out);
        }
    }

    /// Takes the text up to the position `end` as text of the current field. Returns `false` if the field cannot have
    /// all of this text, so that the rest is text of another field.
    fn pass(&mut self, end: usize, out: &mut Sink) -> bool {
        if end <= self.at {
            return true;
        }
        self.empty = 0;
        // Position from which on the text is not in the prompt.
        let own = self.at.max(self.begun.min(end));
        if self.holds_calls() {
            return self.pass_calls(end, own, out);
        }
        let start = std::mem::replace(&mut self.at, end);
        let Some(number) = self.field else {
            self.outside.push(&self.text[own..end], out);
            return true;
        };
        self.is_open = true;
        self.out.skip(&self.text[start..own]);
        let is_fresh = self.out.is_fresh();
        let text = self.out.push(&self.text[own..end]);
        self.write(number, is_fresh, &text, out);
        true
    }

    /// Takes text of a field that holds calls.
    fn pass_calls(&mut self, end: usize, own: usize, out: &mut Sink) -> bool {
        self.is_open = true;
        let room = CALLS_BYTES_MAX - self.body.len();
        let taken = end.min(self.text.floor_char_boundary(self.at + room));
        self.body.push_str(&self.text[self.at..taken]);
        self.body_begun += own.min(taken) - self.at;
        self.at = taken;
        if taken < end {
            self.refuse("", out);
            self.outside.resume();
        }
        taken == end
    }

    /// Passes on a part of a field of text. `is_fresh` says that the field has begun again since its last part.
    fn write(&mut self, number: usize, is_fresh: bool, text: &str, out: &mut Sink) {
        if text.is_empty() {
            return;
        }
        let role = self.role(number);
        if is_fresh && self.passed[number] {
            write(role, &self.template.fields[number].join, out);
        }
        self.passed[number] = true;
        write(role, text, out);
    }

    /// Returns the part of the answer that a field holds. If the parser does not look for calls, calls are content.
    fn role(&self, number: usize) -> Role {
        match self.template.fields[number].role {
            Role::Calls if self.tools.is_none() => Role::Content,
            role => role,
        }
    }

    /// Whether the current field holds calls.
    fn holds_calls(&self) -> bool {
        self.field.is_some_and(|number| self.role(number) == Role::Calls)
    }

    fn open(&mut self, hit: Hit, opening: String, out: &mut Sink) {
        if self.holds_calls() {
            self.close("", true, out);
        }
        self.field = Some(hit.field);
        self.is_open = true;
        self.opening = opening;
        self.captures = hit.captures;
        // A call may be refused. The call is then content, like the text before it.
        if !self.holds_calls() {
            self.out = FieldText::new(strips(&self.template.fields[hit.field]));
            self.outside = Outside::Markup;
        }
    }

    /// Ends the current field. `closing` is the text of its closing delimiter; `is_certain` says that the field has
    /// ended before the end of the answer.
    fn close(&mut self, closing: &str, is_certain: bool, out: &mut Sink) {
        if self.is_open && self.holds_calls() {
            let Some(calls) = self.calls(is_certain) else { return self.refuse(closing, out) };
            for call in &calls {
                self.outside = Outside::Markup;
                out.begin(&call.name);
                out.arguments(&call.arguments);
                out.end();
            }
        }
        self.reset();
    }

    /// Returns the calls in the current field; `None` if the text is no call.
    fn calls(&self, is_certain: bool) -> Option<Vec<Call>> {
        let field = &self.template.fields[self.field?];
        if !is_certain && field.close.is_some() && !field.content.shows_its_end() {
            return None;
        }
        call::calls(field.value(&self.body, &self.captures)?, self.tools.as_ref()?)
    }

    /// Passes on the text of a field that holds no calls as content, unchanged.
    fn refuse(&mut self, closing: &str, out: &mut Sink) {
        let text = [&self.opening, &self.body[self.body_begun..], closing].concat();
        self.leave();
        match self.field {
            Some(number) if self.role(number) == Role::Content => {
                let is_fresh = self.out.is_fresh();
                let text = self.out.verbatim(&text);
                self.write(number, is_fresh, &text, out);
            }
            Some(_) => {
                out.content(&text);
                self.reset();
            }
            None => self.outside.refuse(&text, out),
        }
    }

    /// Begins the implicit field again.
    fn reset(&mut self) {
        self.leave();
        let strip = self.field.is_none_or(|field| strips(&self.template.fields[field]));
        self.out = FieldText::new(strip);
    }

    /// Goes back to the implicit field.
    fn leave(&mut self) {
        self.field = self.template.implicit;
        self.is_open = false;
        self.opening.clear();
        self.captures.clear();
        self.body = String::new();
        self.body_begun = 0;
    }
}

fn strips(field: &Field) -> bool {
    !matches!(field.content, Content::Text { strip: false })
}

fn write(role: Role, text: &str, out: &mut Sink) {
    match role {
        Role::Reasoning => out.reasoning(text),
        Role::Content | Role::Calls => out.content(text),
    }
}
