//! Grammars of answers that may have calls or reasoning.

use crate::http::ApiError;
use crate::openai::structured::Rule;
use crate::openai::tools::{Demand, Offer};
use crate::text::Forms;
use serde_json::json;
use tiercel_dialect::grammar::{self, GRAMMAR_BYTES_MAX, GrammarTooLong, Output};
use tiercel_dialect::{Dialects, Tool, ToolDialect, Tools};
use tiercel_grammar::{SOURCE_BYTES_MAX, Source};

// The compiler of grammars accepts sources of up to `SOURCE_BYTES_MAX` bytes, so it accepts every grammar of this
// module.
const _: () = assert!(GRAMMAR_BYTES_MAX <= SOURCE_BYTES_MAX);

/// Returns the grammar of the answers to a request that offers the tools in `offer`. `stated` is the grammar that the
/// request states for the content of the answers.
///
/// A demanded call follows the schema of its function, with or without `strict`. If the model decides whether it calls
/// functions, only calls of functions with `strict` follow their schemas. The answer then has no grammar if there are
/// no such functions and the model may call every function that it is shown. The answer has no grammar either if calls
/// of the dialect need no opening text and the vocabulary has no special token that opens calls. A stated grammar
/// applies to the text after the reasoning, and an answer that consists of calls need not follow a stated grammar. So a
/// stated grammar has no effect if calls are demanded. If a stated grammar cannot be combined with reasoning, the
/// answer has no reasoning.
///
/// # Errors
/// 400 if the stated grammar cannot be combined with calls or reasoning, and if the stated grammar or the schemas of
/// the functions are too large.
pub(crate) fn rule(
    stated: Option<Rule>,
    offer: &Offer,
    dialects: &Dialects,
    forms: &Forms,
) -> Result<Option<Rule>, ApiError> {
    if let Some(stated) = &stated {
        let refused =
            |error| ApiError::param(&*stated.param, format!("'{}': {error}", stated.param));
        stated.source.check_size().map_err(refused)?;
    }
    let special = |text: &str| forms.special.get(text).copied();
    let output = Output {
        dialect: dialects.tools.unwrap_or(ToolDialect::Hermes),
        reasoning: dialects.reasoning,
        reasoning_open: dialects.reasoning_open,
        special: &special,
    };
    let demands = offer.is_open() && offer.demand != Demand::Auto;
    let stated = stated.filter(|_| !demands);
    if offer.is_open() && dialects.tools.is_none() {
        return without_dialect(stated, offer);
    }
    let Some(stated) = stated else { return of_calls(offer, &output) };
    if !offer.is_open() && dialects.reasoning.is_none() {
        return Ok(Some(stated));
    }
    let Some(reply) = rule_body(&stated.source) else {
        if !offer.is_open() && !dialects.reasoning_open {
            return Ok(Some(stated));
        }
        let message = format!(
            "'{}' with a grammar cannot stand beside tools or reasoning; send tool_choice \"none\", and turn reasoning off",
            stated.param
        );
        return Err(ApiError::unsupported(stated.param, message));
    };
    let source = grammar::reply(&output, &loose(offer), offer.parallel, &reply);
    let source =
        source.map_err(|error| match offer.is_open() && reply.len() <= GRAMMAR_BYTES_MAX {
            true => too_large(error),
            false => stated_too_large(&stated.param, reply.len()),
        })?;
    Ok(Some(Rule { source: Source::Lark(source), param: stated.param }))
}

/// Returns the grammar of answers that may have calls of a form that only the model's response template describes:
/// none, because the server has no grammar of this form.
fn without_dialect(stated: Option<Rule>, offer: &Offer) -> Result<Option<Rule>, ApiError> {
    let (param, advice) = match stated {
        Some(stated) => (stated.param, "send tool_choice \"none\""),
        None if offer.demand == Demand::Auto => return Ok(None),
        None => ("tool_choice".to_owned(), "send tool_choice \"auto\""),
    };
    let message = format!(
        "'{param}' needs a grammar of this model's calls, which the server lacks; {advice}"
    );
    Err(ApiError::unsupported(param, message))
}

/// Returns the grammar of answers that must have calls, or may have calls of functions with `strict` or of some of the
/// listed functions alone.
fn of_calls(offer: &Offer, output: &Output<'_>) -> Result<Option<Rule>, ApiError> {
    if !offer.is_open() {
        return Ok(None);
    }
    let demanded = |parallel| grammar::required(output, &offer.callable, parallel).map(Some);
    let (source, param) = match offer.demand {
        Demand::Required => (demanded(offer.parallel), "tool_choice"),
        Demand::Named => (demanded(false), "tool_choice"),
        Demand::Auto if offer.strict.is_empty() && !offer.is_restricted() => return Ok(None),
        Demand::Auto => (grammar::auto(output, &loose(offer), offer.parallel), "tools"),
    };
    let source = source.map_err(too_large)?;
    Ok(source.map(|text| Rule { source: Source::Lark(text), param: param.to_owned() }))
}

/// Returns the error for a stated grammar that is too large beside calls or reasoning.
fn stated_too_large(param: &str, bytes: usize) -> ApiError {
    let message = format!(
        "'{param}' has {bytes} bytes as a part of a grammar with tools or reasoning, which may have \
         {GRAMMAR_BYTES_MAX}; make it smaller, or send tool_choice \"none\" and turn reasoning off"
    );
    ApiError::param(param, message)
}

/// Returns the error for functions whose grammar is too long.
fn too_large(GrammarTooLong: GrammarTooLong) -> ApiError {
    let message = format!(
        "the schemas of 'tools' that the answer must follow make a grammar of more than {GRAMMAR_BYTES_MAX} bytes; \
         offer fewer functions or smaller schemas, or send tool_choice \"auto\" without 'strict'"
    );
    ApiError::param("tools", message)
}

/// Returns the callable functions. Functions without `strict` may have any arguments.
fn loose(offer: &Offer) -> Tools {
    let loose = |tool: &Tool| match offer.strict.contains(&tool.name) {
        true => tool.clone(),
        false => {
            let parameters = Some(json!({"additionalProperties": true}));
            Tool { name: tool.name.clone(), parameters }
        }
    };
    Tools::new(offer.callable.iter().map(loose).collect())
}

/// Returns the body of a Lark rule for a JSON schema or a list of choices. Returns `None` for a regular expression, a
/// Lark grammar or a GBNF grammar.
fn rule_body(source: &Source) -> Option<String> {
    let quoted = |text: &str| serde_json::Value::from(text).to_string();
    match source {
        Source::JsonObject => Some("%json {\"type\": \"object\"}".to_owned()),
        Source::JsonSchema(schema) => Some(format!("%json {schema}")),
        Source::Choice(texts) => {
            Some(texts.iter().map(|text| quoted(text)).collect::<Vec<_>>().join(" | "))
        }
        Source::Regex(_) | Source::Lark(_) | Source::Gbnf(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openai::fields::Fields;
    use serde_json::{Value, json};
    use tiercel_dialect::ReasoningDialect;

    fn offer(extra: Value) -> Offer {
        let function = |name: &str, strict: bool| json!({"function": {"name": name, "strict": strict, "parameters": {"properties": {name: {}}}}});
        let mut body = json!({"tools": [function("f", true), function("g", false)]});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        Offer::read(&Fields::root(&body).unwrap()).unwrap()
    }

    fn stated() -> Option<Rule> {
        let schema = json!({"type": "array"});
        Some(Rule { source: Source::JsonSchema(schema), param: "response_format".into() })
    }

    fn source(stated: Option<Rule>, offer: &Offer, open: bool) -> Option<String> {
        let reasoning = open.then_some(ReasoningDialect::Think);
        let dialects =
            Dialects { tools: Some(ToolDialect::Hermes), reasoning, reasoning_open: open };
        let rule = rule(stated, offer, &dialects, &Forms::default()).unwrap();
        rule.map(|rule| match rule.source {
            Source::Lark(text) => text,
            other => format!("{other:?}"),
        })
    }

    #[test]
    fn demanded_calls_follow_all_schemas_and_free_calls_the_strict_ones() {
        let required = source(None, &offer(json!({"tool_choice": "required"})), false).unwrap();
        assert!(required.contains("\"f\":{}") && required.contains("\"g\":{}"), "{required}");
        let named = json!({"tool_choice": {"type": "function", "function": {"name": "g"}}});
        let named = source(None, &offer(named), false).unwrap();
        assert!(named.contains("\"g\":{}") && !named.contains("\"f\":{}"), "{named}");
        let auto = source(None, &offer(json!({})), false).unwrap();
        assert!(auto.contains("\"f\":{}") && !auto.contains("\"g\":{}"), "{auto}");
        assert_eq!(source(None, &offer(json!({"tool_choice": "none"})), false), None);
        let lenient = offer(json!({"tools": [{"function": {"name": "f"}}]}));
        assert_eq!(source(None, &lenient, false), None);
    }

    #[test]
    fn free_calls_of_some_of_the_tools_alone_follow_a_grammar_of_their_names() {
        let auto = source(
            None,
            &offer(json!({
                "tools": [{"function": {"name": "read"}}, {"function": {"name": "delete"}}],
                "tool_choice": {"type": "allowed_tools", "allowed_tools": {
                    "mode": "auto", "tools": [{"type": "function", "function": {"name": "read"}}]}},
            })),
            false,
        );
        let auto = auto.expect("a grammar");
        assert!(auto.contains("read") && !auto.contains("delete"), "{auto}");
    }

    #[test]
    fn a_stated_grammar_stands_beside_calls_and_after_reasoning() {
        let none = offer(json!({"tool_choice": "none"}));
        assert_eq!(
            source(stated(), &none, false).unwrap(),
            format!("{:?}", stated().unwrap().source)
        );
        let after = source(stated(), &none, true).unwrap();
        assert!(after.starts_with("start: thought reply\n"), "{after}");
        let beside = source(stated(), &offer(json!({})), false).unwrap();
        assert!(beside.starts_with("start: (reply | \"<tool_call>\" after"), "{beside}");
    }

    #[test]
    fn a_stated_grammar_has_no_effect_on_demanded_calls() {
        let required = offer(json!({"tool_choice": "required"}));
        let calls = source(None, &required, false);
        assert!(calls.is_some() && source(stated(), &required, false) == calls);
    }

    #[test]
    fn an_expression_cannot_stand_beside_calls() {
        let regex = Rule { source: Source::Regex("a".into()), param: "guided_regex".into() };
        let dialects = Dialects { tools: Some(ToolDialect::Hermes), ..Dialects::default() };
        let error = rule(Some(regex), &offer(json!({})), &dialects, &Forms::default()).unwrap_err();
        assert_eq!(error.body()["error"]["param"], "guided_regex");
    }

    #[test]
    fn what_is_too_large_is_refused_and_named() {
        let tool = |properties: Value| json!({"function": {"name": "f", "strict": true, "parameters": {"properties": properties}}});
        let many =
            |count: usize| (0..count).map(|at| (format!("p{at}"), json!({}))).collect::<Value>();
        let dialects = |tools| Dialects { tools: Some(tools), ..Dialects::default() };
        let named = |body: Value, stated: Option<Rule>| {
            let offer = Offer::read(&Fields::root(&body).unwrap()).unwrap();
            ToolDialect::ALL.map(|tools| {
                let error = rule(stated.clone(), &offer, &dialects(tools), &Forms::default());
                error.expect_err("too large").body()["error"]["param"].clone()
            })
        };
        let large = json!({"tools": [tool(many(12_000))], "tool_choice": "required"});
        assert_eq!(named(large, None), [(); 5].map(|()| json!("tools")));

        let small = json!({"tools": [tool(many(2))]});
        let large = json!({"type": "string", "description": "x".repeat(GRAMMAR_BYTES_MAX)});
        let deep = (0..70).fold(json!({}), |inner, _| json!([inner]));
        for source in [
            Source::Choice(vec![]),
            Source::Choice(vec!["a".into(); 1025]),
            Source::JsonSchema(large),
            Source::JsonSchema(json!({"enum": deep})),
        ] {
            let stated = Rule { source, param: "guided".into() };
            assert_eq!(named(small.clone(), Some(stated)), [(); 5].map(|()| json!("guided")));
        }
    }
}
