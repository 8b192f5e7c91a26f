//! Tests of the estimate: hostile schemas are refused before they take time or memory, honest ones are not.

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
    let one_of = |count| json!({"oneOf": names(count).into_iter().map(option).collect::<Vec<_>>()});
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
        let members =
            names(60).into_iter().map(|name| (format!("{name}x{n}"), json!({"type": "string"})));
        json!({"type": "object", "properties": members.collect::<Map<_, _>>()})
    };
    let schema =
        json!({"allOf": (0..8).map(mixin).collect::<Vec<_>>(), "additionalProperties": true});
    assert_eq!(check_expansion(&schema), Ok(()));
}

/// Returns levels of unions, each with `width` references to the level below.
fn levels(width: usize, height: usize) -> Map<String, Value> {
    let mut defs = Map::new();
    defs.insert("k".to_owned(), json!({"type": "object"}));
    defs.insert("u0".to_owned(), json!({"properties": {"p": {"$ref": "#/$defs/k"}}}));
    for level in 1..=height {
        defs.insert(format!("u{level}"), references(&format!("u{}", level - 1), width));
    }
    defs
}

#[test]
fn the_estimate_itself_takes_little_memory_and_time() {
    let unions = json!({"$defs": levels(60, 5),
        "allOf": [{"$ref": "#/$defs/u5"}, {"required": ["p"]}]});
    assert!(check_expansion(&unions).is_err(), "60^5 alternatives");
    let members: Map<_, _> = names(9000).into_iter().map(|name| (name, json!({}))).collect();
    let by_pattern =
        json!({"properties": members, "patternProperties": {"": {"properties": members}}});
    assert!(check_expansion(&by_pattern).is_err());
    let mut parts = vec![json!({"required": []}); 9900];
    parts[0] = json!({"properties": members});
    let many = json!({"allOf": parts});
    assert!(check_expansion(&many).is_err(), "9,900 times 9,000 members");
}

#[test]
fn copies_that_an_average_would_hide_are_counted() {
    let large: Map<_, _> = names(14_000).into_iter().map(|name| (name, json!(1))).collect();
    let mut options = vec![json!({"type": "object", "properties": {"p": {}}})];
    options.resize(3001, json!({"type": "object", "required": ["a"]}));
    let rare = json!({"allOf": [{"properties": {"p": {"const": large}}}, {"anyOf": options}]});
    assert!(check_expansion(&rare).is_err(), "few options have the member");
    let mut options = vec![json!({"$ref": "#/$defs/a"}); 60];
    options.push(json!({"type": "object", "required": names(10_000)}));
    let beside = vec![json!({"type": "object", "required": ["a"]}); 3000];
    let inline = json!({"$defs": {"a": {"type": "object"}}, "allOf": [{"anyOf": options}, {"anyOf": beside}]});
    assert!(check_expansion(&inline).is_err(), "references beside a large option");
    let place = json!({"properties": {"0": {"const": large}}, "prefixItems": [{}],
        "anyOf": vec![json!({"properties": {"0": {"minLength": 1}}}); 3000]});
    assert!(check_expansion(&place).is_err(), "an item does not hide a property");
}

#[test]
fn values_of_an_enum_are_not_compared_with_each_other() {
    let option = json!({"type": "object", "properties": {"t": {"type": "string"}}});
    assert_eq!(check_expansion(&json!({"oneOf": [{"enum": names(1500)}, option]})), Ok(()));
    assert_eq!(
        check_expansion(&json!({"oneOf": [{"enum": names(5000)}, {"type": "null"}]})),
        Ok(())
    );
}

#[test]
fn a_pattern_counts_only_for_members_that_may_match() {
    let member = |count| json!({"enum": names(count)});
    let schema = json!({"properties": {"a": member(250), "b": member(600), "c": member(180), "d": member(600)},
        "patternProperties": {"^x-unit-": member(400)}});
    assert_eq!(check_expansion(&schema), Ok(()));
}
