//! Parser of GBNF grammars.

use super::{Element, Item, NESTING_MAX, REPETITIONS_MAX, Repeat, Rule};
use crate::GrammarError;
use std::iter::Peekable;
use std::str::Chars;

/// Returns whether a character may be in the name of a rule.
pub(super) fn is_name_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '_')
}

/// Parses all rules of a grammar.
pub(super) fn rules(grammar: &str) -> Result<Vec<Rule>, GrammarError> {
    let mut reader = Reader { chars: grammar.chars().peekable(), line: 1 };
    let mut rules = Vec::new();
    reader.skip(true);
    while reader.peek().is_some() {
        rules.push(reader.rule()?);
        reader.skip(true);
    }
    Ok(rules)
}

struct Reader<'a> {
    chars: Peekable<Chars<'a>>,
    line: usize,
}

impl Reader<'_> {
    fn peek(&mut self) -> Option<char> {
        self.chars.peek().copied()
    }

    fn next(&mut self) -> Option<char> {
        let next = self.chars.next();
        self.line += usize::from(next == Some('\n'));
        next
    }

    fn takes(&mut self, wanted: char) -> bool {
        let found = self.peek() == Some(wanted);
        if found {
            self.next();
        }
        found
    }

    fn wrong(&self, what: impl std::fmt::Display) -> GrammarError {
        GrammarError::Invalid(format!("line {}: {what}", self.line))
    }

    /// Skips spaces and comments, and line breaks too if `lines`.
    fn skip(&mut self, lines: bool) {
        while let Some(next) = self.peek() {
            match next {
                ' ' | '\t' => {}
                '\r' | '\n' if lines => {}
                '#' => {
                    while self.peek().is_some_and(|c| c != '\n') {
                        self.next();
                    }
                    continue;
                }
                _ => return,
            }
            self.next();
        }
    }

    fn name(&mut self) -> String {
        let mut name = String::new();
        while let Some(c) = self.peek().filter(|c| is_name_char(*c)) {
            name.push(c);
            self.next();
        }
        name
    }

    fn rule(&mut self) -> Result<Rule, GrammarError> {
        let (line, name) = (self.line, self.name());
        if name.is_empty() {
            return Err(self.wrong("the name of a rule is expected"));
        }
        self.skip(false);
        if !(self.takes(':') && self.takes(':') && self.takes('=')) {
            return Err(self.wrong(format!("'::=' is expected after the name '{name}'")));
        }
        self.skip(true);
        let alternatives = self.alternatives(0)?;
        self.skip(false);
        match self.peek() {
            None | Some('\r' | '\n') => Ok(Rule { name, alternatives, line }),
            Some(other) => Err(self.wrong(format!("{other:?} is not expected here"))),
        }
    }

    fn alternatives(&mut self, depth: usize) -> Result<Vec<Vec<Item>>, GrammarError> {
        if depth > NESTING_MAX {
            let why = format!("line {}: groups are nested too deep", self.line);
            return Err(GrammarError::TooComplex(why));
        }
        let mut alternatives = Vec::new();
        loop {
            alternatives.push(self.sequence(depth)?);
            self.skip(depth > 0);
            if !self.takes('|') {
                return Ok(alternatives);
            }
            self.skip(true);
        }
    }

    fn sequence(&mut self, depth: usize) -> Result<Vec<Item>, GrammarError> {
        let mut items = Vec::new();
        loop {
            self.skip(depth > 0);
            let Some(element) = self.element(depth)? else { return Ok(items) };
            let repeat = self.repeat()?;
            items.push(Item { element, repeat });
        }
    }

    /// Parses the next element of a sequence; `None` at the end of the sequence.
    fn element(&mut self, depth: usize) -> Result<Option<Element>, GrammarError> {
        let element = match self.peek() {
            None | Some('|' | ')' | '\r' | '\n') => return Ok(None),
            Some('"') => Element::Text(self.text()?),
            Some('[') => self.class()?,
            Some('.') => {
                self.next();
                Element::Any
            }
            Some('(') => {
                self.next();
                let group = self.alternatives(depth + 1)?;
                self.skip(true);
                if !self.takes(')') {
                    return Err(self.wrong("a group has no ')'"));
                }
                Element::Group(group)
            }
            Some('<' | '!') => {
                let at = format!("line {}", self.line);
                return Err(GrammarError::unsupported(&at, "a token ('<...>')"));
            }
            Some(c) if is_name_char(c) => Element::Reference(self.name(), self.line),
            Some(other) => return Err(self.wrong(format!("{other:?} is not expected here"))),
        };
        Ok(Some(element))
    }

    fn repeat(&mut self) -> Result<Option<Repeat>, GrammarError> {
        let (least, most) = match self.peek() {
            Some('*') => (0, None),
            Some('+') => (1, None),
            Some('?') => (0, Some(1)),
            Some('{') => return self.counted().map(Some),
            _ => return Ok(None),
        };
        self.next();
        Ok(Some(Repeat { least, most }))
    }

    fn counted(&mut self) -> Result<Repeat, GrammarError> {
        self.next();
        let mut inner = String::new();
        while let Some(c) = self.next().filter(|c| *c != '}') {
            inner.push(c);
        }
        let number = |text: &str| text.trim().parse::<u32>().ok().filter(|n| *n <= REPETITIONS_MAX);
        let read = match inner.split_once(',') {
            None => number(&inner).map(|n| Repeat { least: n, most: Some(n) }),
            Some((least, most)) if most.trim().is_empty() => {
                number(least).map(|least| Repeat { least, most: None })
            }
            Some((least, most)) => number(least)
                .zip(number(most))
                .filter(|(least, most)| least <= most)
                .map(|(least, most)| Repeat { least, most: Some(most) }),
        };
        let expected = format!("must be {{m}}, {{m,}} or {{m,n}}, at most {REPETITIONS_MAX}");
        read.ok_or_else(|| self.wrong(format!("the repetition {expected}")))
    }

    fn text(&mut self) -> Result<String, GrammarError> {
        self.next();
        let mut text = String::new();
        loop {
            match self.peek() {
                None | Some('\n') => return Err(self.wrong("the text has no end")),
                Some('"') => break,
                Some(_) => text.push(self.character()?),
            }
        }
        self.next();
        Ok(text)
    }

    fn class(&mut self) -> Result<Element, GrammarError> {
        self.next();
        let negated = self.takes('^');
        let mut ranges = Vec::new();
        loop {
            match self.peek() {
                None | Some('\n') => {
                    return Err(self.wrong("the class of characters has no end"));
                }
                Some(']') => break,
                Some(_) => {}
            }
            let first = self.character()?;
            let mut ahead = self.chars.clone();
            let is_range = ahead.next() == Some('-') && ahead.next() != Some(']');
            let last = if is_range {
                self.next();
                self.character()?
            } else {
                first
            };
            if last < first {
                return Err(self.wrong(format!("the range {first:?} to {last:?} is empty")));
            }
            ranges.push((first, last));
        }
        self.next();
        match ranges.is_empty() {
            true => Err(self.wrong("the class of characters is empty")),
            false => Ok(Element::Class { negated, ranges }),
        }
    }

    /// Reads one character of a literal or character class, which may be an escape.
    fn character(&mut self) -> Result<char, GrammarError> {
        let end = "the grammar ends within a text or a class";
        let c = self.next().ok_or_else(|| self.wrong(end))?;
        if c != '\\' {
            return Ok(c);
        }
        let escape = self.next().ok_or_else(|| self.wrong(end))?;
        let digits = match escape {
            'n' => return Ok('\n'),
            'r' => return Ok('\r'),
            't' => return Ok('\t'),
            '\\' | '"' | '[' | ']' => return Ok(escape),
            'x' => 2,
            'u' => 4,
            'U' => 8,
            _ => return Err(self.wrong(format!("the escape '\\{escape}' is not known"))),
        };
        let mut code = String::new();
        while code.len() < digits
            && let Some(digit) = self.peek().filter(char::is_ascii_hexdigit)
        {
            code.push(digit);
            self.next();
        }
        let number = u32::from_str_radix(&code, 16).ok().filter(|_| code.len() == digits);
        let read = number.and_then(char::from_u32);
        read.ok_or_else(|| self.wrong(format!("the escape '\\{escape}{code}' is no character")))
    }
}
