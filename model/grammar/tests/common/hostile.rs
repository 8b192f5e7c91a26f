//! Hostile sources of grammars: they explode, recurse, are huge, never end or backtrack.

use serde_json::{Map, Value, json};
use std::fmt::Write;
use tiercel_grammar::Source;

/// Returns all hostile sources with their names.
pub(crate) fn hostile_sources() -> Vec<(String, Source)> {
    [regexes(), larks(), gbnfs(), schemas()].into_iter().flatten().collect()
}

fn regexes() -> Vec<(String, Source)> {
    let alternatives: Vec<String> = (0..8000).map(|n| format!("{n:06}")).collect();
    let list = [
        "(a+)+b".to_owned(),
        "(a|a)*b".into(),
        "(a*)*(b*)*c".into(),
        "(x|xx|xxx|xxxx)*y".into(),
        "(a?){500}a{500}".into(),
        "(a{1000}){1000}".into(),
        "((((a{30}){30}){30}){30}){30}".into(),
        "a{100000}".into(),
        "(.*a){60}".into(),
        "(.|\\n)*x(.|\\n){300}".into(),
        "[ab]*a[ab]{200}".into(),
        "(\\w{1,100}){1,100}".into(),
        "(?i)(\\p{L}{300}\\p{N}{300})+".into(),
        "(?s:.*)(?s:.*)(?s:.*)(?s:.*)(?s:.*)z".into(),
        alternatives.join("|"),
        "a".repeat(60_000),
        format!("{}a{}", "(".repeat(99), ")*".repeat(99)),
        "[a-z]*".repeat(3000),
        "(a|b|c|d)?".repeat(3000),
        "\\PN{1,1000}".into(),
        "[^\\x00-\\x{10FFFF}]".into(),
        "x*".into(),
    ];
    list.into_iter()
        .enumerate()
        .map(|(n, regex)| (format!("regex {n}"), Source::Regex(regex)))
        .collect()
}

/// Returns rules `name0: body(1)`, `name1: body(2)` and so on; the last rule is `"a"`.
fn rules(count: usize, name: &str, body: impl Fn(&str) -> String) -> String {
    let mut grammar = format!("start: {name}0\n");
    for n in 0..count {
        let _ = writeln!(grammar, "{name}{n}: {}", body(&format!("{name}{}", n + 1)));
    }
    grammar + &format!("{name}{count}: \"a\"\n")
}

fn larks() -> Vec<(String, Source)> {
    let many: String = (0..6000).map(|n| format!("| \"{n}\" ")).collect();
    let nested = |n: usize| format!("start: {}\"a\"{}", "(".repeat(n), ")*".repeat(n));
    let list = [
        "start: start \"a\" | \"a\"".to_owned(),
        "start: \"a\" start | \"a\"".into(),
        "start: a\na: b\nb: a".into(),
        "start: start".into(),
        "start: start start | \"a\" |".into(),
        "start: (a | b)*\na: (b | )*\nb: (a | )*".into(),
        "start: s\ns: s s s | s s | \"a\" | \"aa\" | \"aaa\"".into(),
        rules(40, "r", |next| format!("{next} {next}")),
        rules(40, "T", |next| format!("{next} {next}")),
        rules(40, "T", |next| format!("({next} | {next})*")),
        rules(4000, "r", |next| next.to_owned()),
        rules(4000, "T", |next| next.to_owned()),
        rules(2000, "r", |next| format!("\"(\" {next} \")\"")),
        format!("start: \"x\" {many}"),
        nested(28),
        nested(5000),
        "start: /a/{1,1000000}".into(),
        "start: ((\"a\"{1000}){1000}){1000}".into(),
        "start: T\nT: ((\"a\"{1000}){1000}){1000}".into(),
        "start: T\nT: /(.*a){20}/ & /(.*b){20}/ & /(.*c){20}/ & ~/(.*d){20}/".into(),
        format!("start: T\nT: {}", ["/(.*a){20}/"; 60].join(" & ")),
        "start: T\nT: /(.*a){30}/ & /(.*b){30}/ & /(.*c){30}/ & /(.*d){30}/".into(),
        format!("start: T\nT: {}/a/{}", "~(".repeat(3), ")".repeat(3)),
        "%ignore /(.|\\n)*/\nstart: \"a\" \"b\"".into(),
        "start: A B C D\nA: /.*/\nB: /.*/\nC: /.*/\nD: /.*/".into(),
        "start: T\nT: T \"a\"".into(),
        "start: a[lazy] \"b\"\na[lazy]: /(.|\\n)*/".into(),
        "start: <[0-256]>*".into(),
        "start: <[*]> <|end|> <|unknown|>".into(),
        "start: @other".into(),
        "start: %json {\"$ref\": \"#\"}".into(),
        "start: %lark { start: %lark { start: \"a\" } }".into(),
        "".into(),
        "\u{0}\u{1}\u{2}".into(),
        "start: \"".into(),
        "x".repeat(60_000),
    ];
    list.into_iter()
        .enumerate()
        .map(|(n, lark)| (format!("lark {n}"), Source::Lark(lark)))
        .collect()
}

fn gbnfs() -> Vec<(String, Source)> {
    let chain: String = (0..3000).map(|n| format!("r{n} ::= r{}\n", n + 1)).collect();
    let list = [
        "root ::= root".to_owned(),
        "root ::= root root | \"a\" | ".into(),
        "root ::= ((\"a\"{9999}){9999}){9999}".into(),
        "root ::= [^\\n]* [^\\n]* [^\\n]* \"x\"".into(),
        format!("root ::= r0\n{chain}r3000 ::= \"a\""),
        "root ::= x* y*\nx ::= y*\ny ::= \"\" | root".into(),
    ];
    list.into_iter()
        .enumerate()
        .map(|(n, gbnf)| (format!("gbnf {n}"), Source::Gbnf(gbnf)))
        .collect()
}

/// Returns a schema with the definitions `d0` to `dN`. `body` makes each definition from a reference to the next one.
fn chain(count: usize, body: impl Fn(Value) -> Value) -> Value {
    let mut definitions: Map<String, Value> = (0..count)
        .map(|n| (format!("d{n}"), body(json!({"$ref": format!("#/$defs/d{}", n + 1)}))))
        .collect();
    definitions.insert(format!("d{count}"), json!({"type": "null"}));
    json!({"$defs": definitions, "$ref": "#/$defs/d0"})
}

fn schemas() -> Vec<(String, Source)> {
    let names = |count: usize| (0..count).map(|n| format!("p{n}")).collect::<Vec<_>>();
    let properties = |count: usize, schema: Value| -> Value {
        names(count).into_iter().map(|name| (name, schema.clone())).collect::<Map<_, _>>().into()
    };
    let two = json!({"anyOf": [{"properties": {"a": {"type": "integer"}}}, {"properties": {"b": {"type": "string"}}}]});
    let mut deep = json!({"type": "null"});
    for _ in 0..30 {
        deep = json!({"anyOf": [deep.clone(), {"items": deep}]});
        if deep.to_string().len() > 100_000 {
            break;
        }
    }
    let consts: Vec<Value> = (0..4000).map(|n| json!({"const": format!("value {n}")})).collect();
    let patterns: Vec<Value> =
        (0..60).map(|n| json!({"pattern": format!("(.*{n}){{10}}")})).collect();
    let list = [
        json!({"$ref": "#"}),
        json!({"allOf": [{"$ref": "#"}]}),
        json!({"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}),
        json!({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}),
        chain(5000, |next| next),
        chain(3000, |next| json!({"items": next, "type": "array"})),
        chain(
            40,
            |next| json!({"type": "array", "prefixItems": [next.clone(), next], "items": false, "minItems": 2}),
        ),
        chain(20, |next| json!({"allOf": [next.clone(), {"anyOf": [next.clone(), next]}]})),
        json!({"allOf": vec![two; 16]}),
        deep,
        json!({"enum": (0..4900).map(|n| format!("member {n} of an enum that is long")).collect::<Vec<_>>()}),
        json!({"anyOf": consts.clone()}),
        json!({"oneOf": consts}),
        json!({"type": "object", "properties": properties(3000, json!({"type": "integer"}))}),
        json!({"type": "object", "properties": properties(2000, json!({})), "required": names(2000)}),
        json!({"type": "object", "properties": properties(500, two_levels())}),
        json!({"type": "string", "maxLength": 900_000_000}),
        json!({"type": "string", "minLength": 900_000}),
        json!({"type": "array", "minItems": 900_000_000, "items": {"type": "integer"}}),
        json!({"type": "array", "maxItems": 1_000_000, "items": {"type": "array", "maxItems": 1_000_000}}),
        json!({"type": "string", "pattern": "(.*a){100}(b|.*){100}"}),
        json!({"type": "string", "allOf": patterns}),
        json!({"type": "string", "allOf": patterns[..3], "maxLength": 500}),
        json!({"type": "string", "allOf": [{"pattern": "(.*a){30}"}, {"pattern": "(.*b){30}"}, {"pattern": "(.*c){30}"}, {"pattern": "(.*d){30}"}]}),
        json!({"patternProperties": (0..16).map(|n| (format!("(.*{n}){{9}}"), json!({}))).collect::<Map<_, _>>()}),
        json!({"type": "string", "pattern": "[ab]*a[ab]{300}", "maxLength": 1000}),
        json!({"patternProperties": {"(.*a){20}": {}, "(.*b){20}": {}, "(.*c){20}": {}}}),
        json!({"type": "number", "multipleOf": 1e-300}),
        json!({"type": "number", "multipleOf": 1.0000001, "minimum": 0.1234567, "maximum": 987654321.1}),
        json!({"type": "integer", "multipleOf": 999_999_937}),
        json!({"type": "integer", "minimum": -9_007_199_254_740_991_i64, "maximum": 9_007_199_254_740_991_i64}),
        json!({"minLength": 10, "maxLength": 5, "type": "string"}),
        json!({"not": {}}),
        json!({"properties": {"a".repeat(60_000): {}}, "additionalProperties": {"type": "null"}}),
        json!({"$ref": "https://example.com/schema"}),
        json!({"$ref": "#/properties/~2"}),
        json!({"$id": "a:\u{0}b", "$ref": "c"}),
        json!({"type": "string", "format": "x".repeat(60_000)}),
    ];
    list.into_iter()
        .enumerate()
        .map(|(n, schema)| (format!("schema {n}"), Source::JsonSchema(schema)))
        .collect()
}

fn two_levels() -> Value {
    json!({"type": "object", "properties": {"a": {"type": "string", "maxLength": 50}, "b": {"type": "array", "items": {"type": "number"}}}})
}
