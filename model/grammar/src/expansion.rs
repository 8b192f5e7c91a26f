//! Limits the size to which llguidance expands a JSON schema.
//!
//! Where several parts of a schema restrict one value (`allOf`, `anyOf` beside `properties`, and so on), llguidance forms
//! their intersection: each alternative of one part with each alternative of the other, as copies. Two lists of 100
//! references become 10,000 objects. llguidance limits the number of intersections and not their size, so a schema of
//! 90 KB can take gigabytes. Therefore the size is estimated beforehand, and a large expansion is refused.

use crate::GrammarError;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

/// Maximum size of the expansion of one schema, bytes of text. llguidance's form takes several times as much memory.
const BYTES_MAX: f64 = (16 << 20) as f64;
/// Maximum work for a `oneOf` whose options llguidance compares in pairs: options times bytes of all options.
const PAIRS_MAX: f64 = 5e7;
/// Maximum number of parts that an estimate visits.
const VISITS_MAX: usize = 200_000;
/// Maximum number of nested parts within a part of an estimate.
const DEPTH_MAX: usize = 100;
/// Assumed size of a part without content, bytes.
const LEAF_BYTES: f64 = 16.0;

/// Checks that no schema within a root schema expands beyond the limits.
///
/// # Errors
/// [`GrammarError::TooComplex`].
pub(crate) fn check_expansion(root: &Value) -> Result<(), GrammarError> {
    let mut estimate = Estimate { root, known: HashMap::new(), visits: 0, depth: 0 };
    estimate.shape(root)?;
    Ok(())
}

/// What a schema expands to: a number of alternatives of an average content.
#[derive(Debug, Clone)]
struct Shape<'a> {
    /// Number of alternatives; a fraction if only some of the surrounding alternatives have this part.
    alternatives: f64,
    /// Content of an alternative without its members, bytes.
    bytes: f64,
    /// Members of an alternative that have a name: properties, and array items by place.
    members: BTreeMap<&'a str, Rc<Shape<'a>>>,
    /// All other members: additional properties, properties by pattern, and array items.
    rest: Option<Rc<Shape<'a>>>,
    /// References among the alternatives, which llguidance follows only in an intersection.
    references: Vec<(f64, &'a str)>,
    /// Whether the alternatives must exclude each other.
    one_of: bool,
}

impl<'a> Shape<'a> {
    fn leaf(bytes: f64) -> Shape<'a> {
        let (members, references) = (BTreeMap::new(), Vec::new());
        Shape { alternatives: 1.0, bytes, members, rest: None, references, one_of: false }
    }

    /// Whether an intersection with this part leaves the other part as it is.
    fn is_empty(&self) -> bool {
        self.alternatives == 1.0
            && self.bytes == 0.0
            && self.members.is_empty()
            && self.rest.is_none()
            && self.references.is_empty()
    }

    /// Returns the size of all alternatives, bytes.
    fn total_bytes(&self) -> f64 {
        let members: f64 = self.members.values().map(|member| member.total_bytes()).sum();
        let rest = self.rest.as_ref().map_or(0.0, |rest| rest.total_bytes());
        self.alternatives * (LEAF_BYTES + self.bytes + members + rest)
    }
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
    fn visit(&mut self) -> Result<(), GrammarError> {
        self.visits += 1;
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
                    shape.one_of |= keyword == "oneOf";
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
                    shape.references.push((1.0, reference));
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
                    for member in members.values() {
                        patterns.push((1.0, Rc::new(self.shape(member)?)));
                    }
                    own.bytes += members.keys().map(|name| name.len() as f64).sum::<f64>();
                }
                ("prefixItems" | "items", Value::Array(items)) => {
                    for (place, item) in PLACES.iter().zip(items) {
                        own.members.insert(place, Rc::new(self.shape(item)?));
                    }
                    for item in items.iter().skip(PLACES.len()) {
                        rest.push((1.0, Rc::new(self.shape(item)?)));
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
        if !patterns.is_empty() {
            let pattern = Rc::new(self.mixture(&patterns)?);
            for member in own.members.values_mut() {
                *member = Rc::new(self.intersection((**member).clone(), (*pattern).clone())?);
            }
        }
        rest.extend(patterns);
        if !rest.is_empty() {
            own.rest = Some(Rc::new(self.mixture(&rest)?));
        }
        Ok(own)
    }

    /// Estimates the intersection of two parts, and checks its size.
    fn intersection(
        &mut self,
        one: Shape<'a>,
        other: Shape<'a>,
    ) -> Result<Shape<'a>, GrammarError> {
        self.visit()?;
        if one.is_empty() || other.is_empty() {
            return Ok(if one.is_empty() { other } else { one });
        }
        self.depth += 1;
        let (one, other) = (self.resolved(one)?, self.resolved(other)?);
        let mut members = BTreeMap::new();
        for (mine, others) in [(&one, &other), (&other, &one)] {
            for (name, member) in &mine.members {
                let partner = others.members.get(name).or(others.rest.as_ref());
                if members.contains_key(name) {
                    continue;
                }
                let member = match partner {
                    Some(partner) => {
                        let both = self.intersection((**member).clone(), (**partner).clone())?;
                        Rc::new(both)
                    }
                    None => Rc::clone(member),
                };
                members.insert(*name, member);
            }
        }
        let rest = match (one.rest, other.rest) {
            (Some(one), Some(other)) => {
                Some(Rc::new(self.intersection((*one).clone(), (*other).clone())?))
            }
            (one, other) => one.or(other),
        };
        self.depth -= 1;
        let both = Shape {
            alternatives: one.alternatives * other.alternatives,
            bytes: one.bytes + other.bytes,
            members,
            rest,
            references: Vec::new(),
            one_of: one.one_of || other.one_of,
        };
        check(&both)?;
        Ok(both)
    }

    /// Estimates a list of alternatives, of which each counts by its weight.
    fn mixture(&mut self, parts: &[(f64, Rc<Shape<'a>>)]) -> Result<Shape<'a>, GrammarError> {
        self.visit()?;
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
            mixed.one_of |= part.one_of;
            mixed.references.extend(part.references.iter().map(|(of, to)| (weight * of, *to)));
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
        self.depth -= 1;
        Ok(mixed)
    }

    /// Replaces the references among the alternatives of a part by the schemas that they point to.
    fn resolved(&mut self, mut part: Shape<'a>) -> Result<Shape<'a>, GrammarError> {
        let references = std::mem::take(&mut part.references);
        if references.is_empty() {
            return Ok(part);
        }
        let weight: f64 = references.iter().map(|(weight, _)| weight).sum();
        part.alternatives = (part.alternatives - weight).max(0.0);
        let mut parts = Vec::new();
        for (weight, reference) in references {
            parts.push((weight, self.referred(reference)?));
        }
        parts.push((1.0, Rc::new(part)));
        self.mixture(&parts)
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

/// Names of the first items of an array. Further items count as one.
const PLACES: [&str; 8] = ["0", "1", "2", "3", "4", "5", "6", "7"];

fn check(shape: &Shape<'_>) -> Result<(), GrammarError> {
    let bytes = shape.total_bytes();
    if bytes > BYTES_MAX {
        return Err(too_complex("the JSON schema expands to more than 16 MiB"));
    }
    match shape.one_of && bytes * shape.alternatives > PAIRS_MAX {
        true => Err(too_complex("a 'oneOf' of the JSON schema has too many options to compare")),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn names(count: usize) -> Vec<String> {
        (0..count).map(|n| format!("name{n}")).collect()
    }

    fn references(to: &str, count: usize) -> Value {
        json!({"anyOf": vec![json!({"$ref": format!("#/$defs/{to}")}); count]})
    }

    #[test]
    fn products_of_alternatives_are_refused() {
        let defs = json!({
            "x": {"type": "object", "required": names(1000)},
            "y": {"type": "object", "properties": {"a": {"const": 1}}, "required": names(900)},
        });
        let wide = |n| json!({"$defs": defs, "allOf": [references("x", n), references("y", n), references("y", n)]});
        assert!(matches!(check_expansion(&wide(36)), Err(GrammarError::TooComplex(_))));
        let member = json!({"$defs": defs, "allOf": [
            {"properties": {"p": references("x", 100)}}, {"properties": {"p": references("y", 100)}}]});
        assert!(matches!(check_expansion(&member), Err(GrammarError::TooComplex(_))));
        let apart = json!({"$defs": defs, "allOf": [
            {"properties": {"p": references("x", 100)}}, {"properties": {"q": references("y", 100)}}]});
        assert_eq!(check_expansion(&apart), Ok(()), "different members are not multiplied");
        let by_pattern = json!({"properties": names(2000).iter().map(|name| (name.clone(), json!({"minLength": 1})))
            .collect::<Map<_, _>>(), "patternProperties": {"n": {"enum": names(2000)}}});
        assert!(matches!(check_expansion(&by_pattern), Err(GrammarError::TooComplex(_))));
    }

    #[test]
    fn options_that_are_compared_in_pairs_are_limited() {
        let option = |n| json!({"type": "object", "properties": {"t": {"type": "string"}}, "required": ["t", n]});
        let one_of =
            |count| json!({"oneOf": names(count).into_iter().map(option).collect::<Vec<_>>()});
        assert_eq!(check_expansion(&one_of(300)), Ok(()));
        assert!(matches!(check_expansion(&one_of(3000)), Err(GrammarError::TooComplex(_))));
    }

    #[test]
    fn recursive_unions_of_many_kinds_are_not_multiplied() {
        let kinds = names(60);
        let of = |kind: &String| json!({"$ref": format!("#/$defs/{kind}")});
        let any = json!({"anyOf": kinds.iter().map(of).collect::<Vec<_>>()});
        let node = |kind: &String| {
            json!({"type": "object", "required": ["kind"], "properties": {
            "kind": {"const": kind}, "left": any, "right": any, "list": {"type": "array", "items": any}}})
        };
        let defs: Map<_, _> = kinds.iter().map(|kind| (kind.clone(), node(kind))).collect();
        let mut schema = any.clone();
        schema["$defs"] = Value::Object(defs);
        assert_eq!(check_expansion(&schema), Ok(()));
        schema["required"] = json!(["kind"]);
        assert_eq!(check_expansion(&schema), Ok(()), "also beside another keyword");
    }

    #[test]
    fn mixins_are_not_refused() {
        let mixin = |n: usize| {
            let members = names(60)
                .into_iter()
                .map(|name| (format!("{name}x{n}"), json!({"type": "string"})));
            json!({"type": "object", "properties": members.collect::<Map<_, _>>()})
        };
        let schema =
            json!({"allOf": (0..8).map(mixin).collect::<Vec<_>>(), "additionalProperties": true});
        assert_eq!(check_expansion(&schema), Ok(()));
    }
}
