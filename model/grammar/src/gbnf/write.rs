//! Writes the rules of a GBNF grammar as a Lark grammar.
//!
//! Rules without recursion become terminals, which llguidance matches much faster than rules. All characters but ASCII
//! letters and digits are written as escapes, so that no character can end the regular expression around it.

use super::{Element, Item, Repeat, Rule};
use crate::GrammarError;
use std::collections::{HashMap, HashSet};
use std::fmt::Write;

/// Returns the rules as a Lark grammar whose rule `start` is the rule `root`.
pub(super) fn lark(rules: &[Rule]) -> Result<String, GrammarError> {
    let mut places = HashMap::new();
    for (place, rule) in rules.iter().enumerate() {
        if places.insert(rule.name.as_str(), place).is_some() {
            let why = format!("line {}: the rule '{}' is defined twice", rule.line, rule.name);
            return Err(GrammarError::Invalid(why));
        }
    }
    let no_root = || GrammarError::Invalid("the grammar has no rule 'root'".to_owned());
    let root = *places.get("root").ok_or_else(no_root)?;
    let mut references = Vec::with_capacity(rules.len());
    for rule in rules {
        let mut found = HashSet::new();
        collect(&rule.alternatives, &places, &mut found)?;
        references.push(found);
    }
    let terminals = terminals(&references);
    let names: Vec<String> = rules
        .iter()
        .enumerate()
        .map(|(place, rule)| {
            let name = rule.name.replace('-', "_");
            match terminals[place] {
                true => format!("T{place}_{}", name.to_ascii_uppercase()),
                false => format!("r{place}_{}", name.to_ascii_lowercase()),
            }
        })
        .collect();
    let writer = Writer { places, names };
    let mut lark = format!("start: {}\n", writer.names[root]);
    for (place, rule) in rules.iter().enumerate() {
        let _ = writeln!(lark, "{}: {}", writer.names[place], writer.choice(&rule.alternatives));
    }
    Ok(lark)
}

/// Collects the indexes of the rules to which alternatives refer.
fn collect(
    alternatives: &[Vec<Item>],
    places: &HashMap<&str, usize>,
    found: &mut HashSet<usize>,
) -> Result<(), GrammarError> {
    for item in alternatives.iter().flatten() {
        match &item.element {
            Element::Reference(name, line) => {
                let missing =
                    || GrammarError::Invalid(format!("line {line}: there is no rule '{name}'"));
                found.insert(*places.get(name.as_str()).ok_or_else(missing)?);
            }
            Element::Group(group) => collect(group, places, found)?,
            Element::Text(_) | Element::Class { .. } | Element::Any => {}
        }
    }
    Ok(())
}

/// Returns for each rule whether the rule is a terminal, which means that all rules to which the rule refers are
/// terminals.
fn terminals(references: &[HashSet<usize>]) -> Vec<bool> {
    let mut users = vec![Vec::new(); references.len()];
    for (place, found) in references.iter().enumerate() {
        found.iter().for_each(|used| users[*used].push(place));
    }
    let mut open: Vec<usize> = references.iter().map(HashSet::len).collect();
    let mut ready: Vec<usize> = (0..open.len()).filter(|place| open[*place] == 0).collect();
    let mut terminals = vec![false; references.len()];
    while let Some(place) = ready.pop() {
        terminals[place] = true;
        for user in &users[place] {
            open[*user] -= 1;
            if open[*user] == 0 {
                ready.push(*user);
            }
        }
    }
    terminals
}

struct Writer<'a> {
    places: HashMap<&'a str, usize>,
    names: Vec<String>,
}

impl Writer<'_> {
    fn choice(&self, alternatives: &[Vec<Item>]) -> String {
        let sequences: Vec<String> =
            alternatives.iter().map(|items| self.sequence(items)).collect();
        sequences.join(" | ")
    }

    fn sequence(&self, items: &[Item]) -> String {
        let items: Vec<String> = items.iter().map(|item| self.item(item)).collect();
        if items.is_empty() { "\"\"".to_owned() } else { items.join(" ") }
    }

    fn item(&self, item: &Item) -> String {
        let element = match &item.element {
            Element::Text(text) if text.is_empty() => "\"\"".to_owned(),
            Element::Text(text) => format!("/{}/", text.chars().map(literal).collect::<String>()),
            Element::Any => "/(?s:.)/".to_owned(),
            Element::Class { negated, ranges } => class(*negated, ranges),
            Element::Reference(name, _) => self
                .places
                .get(name.as_str())
                .map_or(String::new(), |place| self.names[*place].clone()),
            Element::Group(group) => format!("({})", self.choice(group)),
        };
        match item.repeat {
            None => element,
            Some(Repeat { least: 0, most: None }) => format!("{element}*"),
            Some(Repeat { least: 1, most: None }) => format!("{element}+"),
            Some(Repeat { least: 0, most: Some(1) }) => format!("{element}?"),
            Some(Repeat { least, most: None }) => format!("{element}{{{least},}}"),
            Some(Repeat { least, most: Some(most) }) => format!("{element}{{{least},{most}}}"),
        }
    }
}

fn class(negated: bool, ranges: &[(char, char)]) -> String {
    let mut class = String::from(if negated { "/[^" } else { "/[" });
    for (first, last) in ranges {
        class.push_str(&literal(*first));
        if last > first {
            class.push('-');
            class.push_str(&literal(*last));
        }
    }
    class + "]/"
}

/// Returns a character as part of a regular expression.
fn literal(c: char) -> String {
    if c.is_ascii_alphanumeric() { c.to_string() } else { format!("\\x{{{:x}}}", u32::from(c)) }
}
