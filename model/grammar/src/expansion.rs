//! Limits the size to which llguidance expands a JSON schema.
//!
//! Where several parts of a schema restrict one value (`allOf`, `anyOf` beside `properties`, and so on), llguidance
//! forms their intersection: each alternative of one part with each alternative of the other, as copies. The
//! intersection of two lists of 100 references has 10,000 objects. llguidance limits the number of intersections and
//! not the size of an intersection, so a schema of 90 KB can take gigabytes. Therefore this module estimates the size
//! of the expansion before llguidance compiles the schema, and refuses a schema whose estimated expansion exceeds the
//! limit.

mod shape;

use crate::GrammarError;
use crate::expansion::shape::Shape;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

/// Maximum size of the expansion of one schema, bytes of text. llguidance's form takes several times as much memory.
const BYTES_MAX: f64 = (16 << 20) as f64;
/// Maximum work for a `oneOf` whose options llguidance compares in pairs: number of compared options times bytes.
const PAIRS_MAX: f64 = 5e7;
/// Maximum number of parts and members that an estimate visits.
const VISITS_MAX: usize = 2_000_000;
/// Maximum number of nested parts within a part of an estimate.
const DEPTH_MAX: usize = 100;

/// Checks that no schema within a root schema expands beyond the limits.
///
/// # Errors
/// [`GrammarError::TooComplex`].
pub(crate) fn check_expansion(root: &Value) -> Result<(), GrammarError> {
    let mut estimate = Estimate { root, known: HashMap::new(), visits: 0, depth: 0 };
    estimate.shape(root)?;
    Ok(())
}

/// Estimate of the expansions within one root schema.
struct Estimate<'a> {
    root: &'a Value,
    /// Shapes of the schemas that references point to; `None` while the shape is being estimated.
    known: HashMap<&'a str, Option<Rc<Shape<'a>>>>,
    visits: usize,
    depth: usize,
}

fn too_complex(what: &str) -> GrammarError {
    GrammarError::TooComplex(format!(
        "{what}; use fewer alternatives in 'allOf', 'anyOf' and 'oneOf'"
    ))
}

impl<'a> Estimate<'a> {
    /// Counts the visit of parts with so many members.
    fn visit(&mut self, members: usize) -> Result<(), GrammarError> {
        self.visits += 1 + members;
        match self.visits > VISITS_MAX || self.depth > DEPTH_MAX {
            true => {
                Err(too_complex("the JSON schema has too many parts that restrict the same value"))
            }
            false => Ok(()),
        }
    }

    /// Estimates a schema, and checks its expansion.
    fn shape(&mut self, schema: &'a Value) -> Result<Shape<'a>, GrammarError> {
        let Value::Object(fields) = schema else { return Ok(Shape::leaf(0.0)) };
        let mut whole = Shape::leaf(0.0);
        for (keyword, value) in fields {
            let part = match (keyword.as_str(), value) {
                ("allOf", Value::Array(parts)) => {
                    for part in parts {
                        let part = self.shape(part)?;
                        whole = self.intersection(whole, part)?;
                    }
                    continue;
                }
                ("anyOf" | "oneOf", Value::Array(options)) => {
                    let options =
                        options.iter().map(|option| Ok((1.0, Rc::new(self.shape(option)?))));
                    let options = options.collect::<Result<Vec<_>, GrammarError>>()?;
                    let mut shape = self.mixture(&options)?;
                    if keyword == "oneOf" {
                        // The values of an `enum`, which is one option, are not compared with each other.
                        let largest = options.iter().map(|(_, option)| option.alternatives);
                        let largest = largest.fold(0.0, f64::max);
                        shape.compared = shape.compared.max(shape.alternatives - largest);
                    }
                    shape
                }
                ("enum", Value::Array(values)) if !values.is_empty() => {
                    let count = values.len() as f64;
                    let mut shape = Shape::leaf(value.to_string().len() as f64 / count);
                    shape.alternatives = count;
                    shape
                }
                ("$ref", Value::String(reference)) => {
                    let mut shape = Shape::leaf(0.0);
                    shape.references.insert(reference, 1.0);
                    shape
                }
                _ => continue,
            };
            whole = self.intersection(whole, part)?;
        }
        let own = self.own(fields)?;
        let whole = self.intersection(whole, own)?;
        check(&whole)?;
        Ok(whole)
    }

    /// Estimates the keywords of a schema that restrict a value by themselves or through its members.
    fn own(&mut self, fields: &'a Map<String, Value>) -> Result<Shape<'a>, GrammarError> {
        let mut own = Shape::leaf(0.0);
        let (mut rest, mut patterns) = (Vec::new(), Vec::new());
        for (keyword, value) in fields {
            match (keyword.as_str(), value) {
                ("properties", Value::Object(members)) => {
                    for (name, member) in members {
                        own.members.insert(name, Rc::new(self.shape(member)?));
                    }
                    own.bytes += members.keys().map(|name| name.len() as f64).sum::<f64>();
                }
                ("patternProperties", Value::Object(members)) => {
                    for (pattern, member) in members {
                        patterns.push((pattern, Rc::new(self.shape(member)?)));
                    }
                    own.bytes += members.keys().map(|name| name.len() as f64).sum::<f64>();
                }
                ("prefixItems" | "items", Value::Array(items)) => {
                    let mut places = PLACES.iter();
                    for item in items {
                        let item = Rc::new(self.shape(item)?);
                        match places.next().filter(|place| !own.members.contains_key(*place)) {
                            Some(place) => _ = own.members.insert(place, item),
                            None => rest.push((1.0, item)),
                        }
                    }
                }
                ("additionalProperties" | "additionalItems" | "items", schema) => {
                    rest.push((1.0, Rc::new(self.shape(schema)?)));
                }
                ("$defs" | "definitions", Value::Object(schemas)) => {
                    for schema in schemas.values() {
                        self.shape(schema)?;
                    }
                }
                ("required" | "pattern" | "const", value) => {
                    own.bytes += value.to_string().len() as f64;
                }
                _ => {}
            }
        }
        for (pattern, shape) in &patterns {
            for (name, member) in &mut own.members {
                if may_match(pattern, name) {
                    *member = self.joint(member, shape)?;
                }
            }
        }
        rest.extend(patterns.into_iter().map(|(_, shape)| (1.0, shape)));
        if !rest.is_empty() {
            own.rest = Some(Rc::new(self.mixture(&rest)?));
        }
        Ok(own)
    }

    /// Estimates a member that both or one of two parts have.
    fn joint(
        &mut self,
        one: &Rc<Shape<'a>>,
        other: &Rc<Shape<'a>>,
    ) -> Result<Rc<Shape<'a>>, GrammarError> {
        let (a, b) = (one.present, other.present);
        let mut both = self.intersection((**one).clone(), (**other).clone())?;
        both.present = 1.0;
        if a < 1.0 || b < 1.0 {
            let alone = [(1.0 - b, one), (1.0 - a, other)];
            let mut parts = vec![(1.0, Rc::new(both))];
            parts.extend(alone.map(|(weight, part)| (weight.max(0.0), Rc::clone(part))));
            both = self.mixture(&parts)?;
        }
        both.present = a + b - a * b;
        Ok(Rc::new(both))
    }

    /// Estimates the intersection of two parts, and checks its size.
    fn intersection(
        &mut self,
        one: Shape<'a>,
        other: Shape<'a>,
    ) -> Result<Shape<'a>, GrammarError> {
        self.visit(one.members.len() + other.members.len())?;
        if one.is_empty() || other.is_empty() {
            return Ok(if one.is_empty() { other } else { one });
        }
        self.depth += 1;
        let (one, other) = (self.resolved(one)?, self.resolved(other)?);
        let mut members = BTreeMap::new();
        for (mine, others) in [(&one, &other), (&other, &one)] {
            for (name, member) in &mine.members {
                if members.contains_key(name) {
                    continue;
                }
                let member = match others.members.get(name).or(others.rest.as_ref()) {
                    Some(partner) => self.joint(member, partner)?,
                    None => Rc::clone(member),
                };
                members.insert(*name, member);
            }
        }
        let rest = match (&one.rest, &other.rest) {
            (Some(one), Some(other)) => Some(self.joint(one, other)?),
            (one, other) => one.as_ref().or(other.as_ref()).cloned(),
        };
        self.depth -= 1;
        let both = Shape {
            alternatives: one.alternatives * other.alternatives,
            bytes: one.bytes + other.bytes,
            members,
            rest,
            compared: (one.compared * other.alternatives).max(other.compared * one.alternatives),
            ..Shape::leaf(0.0)
        };
        check(&both)?;
        Ok(both)
    }

    /// Estimates a list of alternatives, of which each counts by its weight.
    fn mixture(&mut self, parts: &[(f64, Rc<Shape<'a>>)]) -> Result<Shape<'a>, GrammarError> {
        let size = |part: &Shape<'_>| part.members.len() + part.references.len();
        self.visit(parts.iter().map(|(_, part)| size(part)).sum())?;
        if let [(1.0, part)] = parts {
            return Ok((**part).clone());
        }
        self.depth += 1;
        let alternatives: f64 = parts.iter().map(|(weight, part)| weight * part.alternatives).sum();
        let mut mixed = Shape::leaf(0.0);
        let (mut members, mut rest) = (BTreeMap::<&str, Vec<_>>::new(), Vec::new());
        for (weight, part) in parts {
            let share = weight * part.alternatives / alternatives.max(f64::MIN_POSITIVE);
            mixed.bytes += share * part.bytes;
            mixed.compared = mixed.compared.max(part.compared);
            for (reference, count) in &part.references {
                *mixed.references.entry(reference).or_default() += weight * count;
            }
            for (name, member) in &part.members {
                members.entry(name).or_default().push((share, Rc::clone(member)));
            }
            rest.extend(part.rest.iter().map(|rest| (share, Rc::clone(rest))));
        }
        for (name, parts) in members {
            mixed.members.insert(name, Rc::new(self.mixture(&parts)?));
        }
        if !rest.is_empty() {
            mixed.rest = Some(Rc::new(self.mixture(&rest)?));
        }
        mixed.alternatives = alternatives;
        mixed.present = parts.iter().map(|(weight, part)| weight * part.present).sum();
        self.depth -= 1;
        Ok(mixed)
    }

    /// Replaces the references among the alternatives of a part by the schemas that they point to.
    fn resolved(&mut self, mut part: Shape<'a>) -> Result<Shape<'a>, GrammarError> {
        if part.references.is_empty() {
            return Ok(part);
        }
        let present = part.present;
        let mut parts = Vec::new();
        for (reference, count) in part.take_references() {
            parts.push((count, self.referred(reference)?));
        }
        parts.push((1.0, Rc::new(part)));
        let mixed = Shape { present, ..self.mixture(&parts)? };
        check(&mixed)?;
        Ok(mixed)
    }

    fn referred(&mut self, reference: &'a str) -> Result<Rc<Shape<'a>>, GrammarError> {
        if let Some(known) = self.known.get(reference) {
            return Ok(known.clone().unwrap_or_else(|| Rc::new(Shape::leaf(0.0))));
        }
        self.known.insert(reference, None);
        let target = reference.strip_prefix('#').and_then(|pointer| self.root.pointer(pointer));
        let shape = match target {
            Some(target) => {
                let shape = self.shape(target)?;
                self.resolved(shape)?
            }
            None => Shape::leaf(0.0),
        };
        let shape = Rc::new(shape);
        self.known.insert(reference, Some(Rc::clone(&shape)));
        Ok(shape)
    }
}

/// Names of the first items of an array, which no property has. Further items count together.
const PLACES: [&str; 8] =
    ["\u{0}0", "\u{0}1", "\u{0}2", "\u{0}3", "\u{0}4", "\u{0}5", "\u{0}6", "\u{0}7"];

/// Whether a pattern may match a name; false only if the pattern is a plain prefix that the name lacks.
fn may_match(pattern: &str, name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    match pattern.strip_prefix('^') {
        Some(prefix) if prefix.chars().all(plain) => name.starts_with(prefix),
        _ => true,
    }
}

fn check(shape: &Shape<'_>) -> Result<(), GrammarError> {
    let bytes = shape.total_bytes();
    if bytes > BYTES_MAX {
        return Err(too_complex("the JSON schema expands to more than 16 MiB"));
    }
    match bytes * shape.compared > PAIRS_MAX {
        true => Err(too_complex("a 'oneOf' of the JSON schema has too many options to compare")),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests;
