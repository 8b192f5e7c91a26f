//! Parser of one answer by a response template.

use super::call;
use super::content::Content;
use super::delimiter::Found;
use super::field::{Field, Role};
use super::template::ResponseTemplate;
use super::text::FieldText;
use crate::Tools;
use crate::parser::{HELD_BYTES_MAX, Sink};
use serde_json::{Map, Value};
use std::sync::Arc;

/// Maximum length of the text of a field with calls, bytes. A longer text is content.
const CALLS_BYTES_MAX: usize = 1 << 20;
/// Length of the parsed text from which on it is removed, bytes.
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
    /// Length of the text that the prompt has begun the answer with. It is parsed and not passed on.
    begun: usize,
    /// Index of the field that is open at the end of the parsed text; `None` if no field is open.
    field: Option<usize>,
    /// Whether the current field has begun. The implicit field begins with its first character.
    is_open: bool,
    /// Text of the opening delimiter of the current field.
    opening: String,
    captures: Map<String, Value>,
    /// Text of the current field, if the field holds calls.
    body: String,
    out: FieldText,
    /// For each field, whether a part of it has been passed on.
    passed: Vec<bool>,
    /// Text outside of all fields; `None` once a field has begun, because the text outside is then markup.
    outside: Option<String>,
}

/// Delimiter that was found.
struct Hit {
    field: usize,
    opens: bool,
    start: usize,
    end: usize,
    captures: Map<String, Value>,
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
            out: FieldText::new(true),
            passed: vec![false; template.fields.len()],
            outside: Some(String::new()),
        };
        regions.reset();
        regions.parse(false, &mut Sink::default());
        regions.outside = Some(String::new());
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
        if let Some(outside) = self.outside.take() {
            out.content(outside.trim());
        }
    }

    fn parse(&mut self, is_whole: bool, out: &mut Sink) {
        // Number of empty delimiters at one position, which must not go on forever.
        let mut empty = 0;
        loop {
            let (hit, held) = self.scan(is_whole);
            let hit = hit.filter(|hit| hit.end > hit.start || empty <= self.template.fields.len());
            if let Some(hit) = hit {
                empty = if hit.end > hit.start { 0 } else { empty + 1 };
                self.pass(hit.start, out);
                let delimiter = self.text[hit.start..hit.end].to_owned();
                self.at = hit.end;
                if hit.opens {
                    self.close("", true, out);
                    self.open(hit, delimiter);
                } else {
                    self.captures.extend(hit.captures);
                    self.close(&delimiter, true, out);
                }
                continue;
            }
            let is_full = self.text.len() - held > HELD_BYTES_MAX;
            self.pass(if is_whole || is_full { self.text.len() } else { held }, out);
            if is_whole {
                self.close("", false, out);
            }
            return;
        }
    }

    /// Searches for the next delimiter. Returns the first delimiter that is certain, and the position from which on the
    /// text may be a delimiter.
    fn scan(&self, is_whole: bool) -> (Option<Hit>, usize) {
        let mut held = self.text.len();
        let mut best: Option<Hit> = None;
        for (number, field) in self.template.fields.iter().enumerate() {
            let opens = self.field == self.template.implicit;
            let is_current = self.field == Some(number);
            let delimiter = match () {
                () if opens && !is_current => field
                    .open
                    .as_ref()
                    .filter(|_| field.role != Role::Calls || self.tools.is_some()),
                () if is_current => field.close.as_ref(),
                () => None,
            };
            let Some(delimiter) = delimiter else { continue };
            match delimiter.search(&self.text, self.at, is_whole) {
                Found::Nothing => (),
                Found::Held(start) => held = held.min(start),
                Found::Match(found) => {
                    let whole = found.get_match();
                    let group = |name: &str| {
                        Some((name.to_owned(), Value::from(found.name(name)?.as_str())))
                    };
                    let hit = Hit {
                        field: number,
                        opens: !is_current,
                        start: whole.start(),
                        end: whole.end(),
                        captures: delimiter.groups().filter_map(group).collect(),
                    };
                    if best.as_ref().is_none_or(|best| hit.is_before(best)) {
                        best = Some(hit);
                    }
                }
            }
        }
        // A delimiter at or after a text that may become one waits, because the earlier delimiter counts.
        (best.filter(|best| best.start < held || is_whole), held)
    }

    /// Takes the text up to the position `end` as text of the current field.
    fn pass(&mut self, end: usize, out: &mut Sink) {
        if end <= self.at {
            return;
        }
        let (start, own) = (self.at, self.at.max(self.begun.min(end)));
        self.at = end;
        let Some(number) = self.field else {
            let text = &self.text[own..end];
            match &mut self.outside {
                Some(outside) if outside.len() + text.len() <= HELD_BYTES_MAX => {
                    outside.push_str(text)
                }
                Some(outside) => out.content(&(std::mem::take(outside) + text)),
                None => (),
            }
            return;
        };
        self.is_open = true;
        let role = self.role(number);
        if role == Role::Calls {
            self.body.push_str(&self.text[start..end]);
            if self.body.len() > CALLS_BYTES_MAX {
                self.refuse("", out);
            }
            return;
        }
        self.out.skip(&self.text[start..own]);
        let is_later = self.passed[number] && self.out.is_fresh();
        let text = self.out.push(&self.text[own..end]);
        if text.is_empty() {
            return;
        }
        if is_later {
            write(role, &self.template.fields[number].join, out);
        }
        self.passed[number] = true;
        write(role, &text, out);
    }

    /// Returns the part of the answer that a field holds. If the parser does not look for calls, calls are content.
    fn role(&self, number: usize) -> Role {
        match self.template.fields[number].role {
            Role::Calls if self.tools.is_none() => Role::Content,
            role => role,
        }
    }

    fn open(&mut self, hit: Hit, opening: String) {
        self.field = Some(hit.field);
        self.is_open = true;
        self.opening = opening;
        self.captures = hit.captures;
        self.outside = None;
        self.out = FieldText::new(strips(&self.template.fields[hit.field]));
    }

    /// Ends the current field. `closing` is the text of its closing delimiter; `is_certain` says that the field has
    /// ended before the end of the answer.
    fn close(&mut self, closing: &str, is_certain: bool, out: &mut Sink) {
        let is_calls = |number: &usize| self.is_open && self.role(*number) == Role::Calls;
        if let (Some(number), Some(tools)) = (self.field.filter(is_calls), &self.tools) {
            let field = &self.template.fields[number];
            let is_certain = is_certain || field.close.is_none() || field.content.shows_its_end();
            let value = field.value(&self.body, &self.captures).filter(|_| is_certain);
            match value.and_then(|value| call::calls(value, tools)) {
                Some(calls) => calls.iter().for_each(|call| {
                    out.begin(&call.name);
                    out.arguments(&call.arguments);
                    out.end();
                }),
                None => return self.refuse(closing, out),
            }
        }
        self.reset();
    }

    /// Passes on the text of a field that holds no calls as content, unchanged.
    fn refuse(&mut self, closing: &str, out: &mut Sink) {
        out.content(&self.opening);
        out.content(&self.body);
        out.content(closing);
        self.reset();
    }

    /// Goes back to the implicit field.
    fn reset(&mut self) {
        self.field = self.template.implicit;
        self.is_open = false;
        self.opening.clear();
        self.captures.clear();
        self.body.clear();
        let strip = self.field.is_none_or(|field| strips(&self.template.fields[field]));
        self.out = FieldText::new(strip);
    }
}

impl Hit {
    /// Whether this delimiter counts before another one: the first, then the longest, then one that opens a field.
    fn is_before(&self, other: &Hit) -> bool {
        let key = |hit: &Hit| (hit.start, std::cmp::Reverse(hit.end - hit.start), !hit.opens);
        key(self) < key(other)
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
