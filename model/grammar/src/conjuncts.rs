//! Limits the number of regular expressions whose intersection llguidance must compute for one string.
//!
//! For a string that must match several expressions, llguidance combines the states of these expressions, without a
//! limit on memory. Therefore the number of expressions is limited. The expressions of a string are `pattern`, `format`
//! and the length limits of its schema, and of all schemas that `allOf`, `anyOf`, `oneOf` and `$ref` join to it.

use serde_json::{Map, Value};
use std::collections::HashMap;

/// Maximum number of expressions that one string may have to match at once.
pub(crate) const CONJUNCTS_MAX: usize = 4;
/// Maximum number of intersections (`&`) and negations (`~`) in a Lark grammar.
pub(crate) const OPERATORS_MAX: usize = 3;

/// Counter of the expressions that one string must match at once, for the schemas within one root schema.
#[derive(Debug)]
pub(crate) struct Conjuncts<'a> {
    root: &'a Value,
    /// Counts of the schemas that references point to; 0 while the count of a schema is being computed.
    counted: HashMap<&'a str, usize>,
}

impl<'a> Conjuncts<'a> {
    pub(crate) fn new(root: &'a Value) -> Conjuncts<'a> {
        Conjuncts { root, counted: HashMap::new() }
    }

    /// Returns the maximum number of expressions that a string which follows `schema` may have to match at once.
    pub(crate) fn count(&mut self, schema: &'a Value) -> usize {
        let Value::Object(fields) = schema else { return 0 };
        let any = |keywords: &[&str]| keywords.iter().any(|keyword| fields.contains_key(*keyword));
        let own = usize::from(any(&["pattern"]))
            + usize::from(any(&["format"]))
            + usize::from(any(&["minLength", "maxLength"]));
        let joined: usize = options(fields, "allOf").iter().map(|part| self.count(part)).sum();
        let chosen: usize = ["anyOf", "oneOf"]
            .iter()
            .map(|keyword| {
                let counts = options(fields, keyword).iter().map(|option| self.count(option));
                counts.max().unwrap_or(0)
            })
            .sum();
        own + joined + chosen + self.referred(fields)
    }

    fn referred(&mut self, fields: &'a Map<String, Value>) -> usize {
        let Some(reference) = fields.get("$ref").and_then(Value::as_str) else { return 0 };
        if let Some(count) = self.counted.get(reference) {
            return *count;
        }
        self.counted.insert(reference, 0);
        let target = reference.strip_prefix('#').and_then(|pointer| self.root.pointer(pointer));
        let count = target.map_or(0, |target| self.count(target));
        self.counted.insert(reference, count);
        count
    }
}

fn options<'a>(fields: &'a Map<String, Value>, keyword: &str) -> &'a [Value] {
    fields.get(keyword).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn expressions_that_meet_in_one_text_are_counted() {
        let root = json!({"$defs": {
            "a": {"pattern": "a", "maxLength": 5},
            "b": {"allOf": [{"$ref": "#/$defs/a"}, {"format": "date"}]},
            "loop": {"allOf": [{"$ref": "#/$defs/loop"}, {"pattern": "x"}]},
        }});
        let schemas = [
            (json!({"properties": {"x": {"pattern": "a"}}}), 0),
            (json!({"$ref": "#/$defs/b", "pattern": "c"}), 4),
            (json!({"anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}], "minLength": 1}), 4),
            (json!({"$ref": "#/$defs/loop"}), 1),
            (json!({"allOf": vec![json!({"pattern": "a"}); 9]}), 9),
        ];
        let mut conjuncts = Conjuncts::new(&root);
        for (schema, count) in &schemas {
            assert_eq!(conjuncts.count(schema), *count, "{schema}");
        }
    }
}
