//! Reads the tools that a chat request offers to the model: `tools`, `tool_choice` and `parallel_tool_calls`.

use crate::http::ApiError;
use crate::openai::fields::{Fields, wrong};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use tiercel_dialect::{Tool, Tools};

/// Most tools of one request.
pub(crate) const MAX_TOOLS: usize = 128;
/// Longest name of a function, bytes.
pub(crate) const MAX_NAME_BYTES: usize = 128;
/// Most bytes of JSON in all tools of a request.
const MAX_BYTES: usize = 256 << 10;
/// Deepest nesting of objects and arrays in the schema of a function's parameters.
const MAX_DEPTH: usize = 32;

/// Calls that a request demands in the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Demand {
    /// The model decides whether it calls functions.
    #[default]
    Auto,
    /// The answer consists of one or more calls of any callable functions.
    Required,
    /// The answer is one call of the one callable function.
    Named,
}

/// The tools that a request offers to the model.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Offer {
    /// Tools for the chat template, in the form of OpenAI's API: all tools of the request. The prompt of a request that
    /// forbids calls has the tools too, as in vLLM, so that the prompts of a conversation share their beginning.
    pub(crate) listed: Vec<Value>,
    /// Functions that the model may call: some or all of the functions in `listed`; none if the request forbids calls.
    pub(crate) callable: Tools,
    /// Names of the functions with `strict: true`. Calls of these functions follow their schemas even with
    /// [`Demand::Auto`], if the dialect allows such a grammar.
    pub(crate) strict: BTreeSet<String>,
    pub(crate) demand: Demand,
    /// Whether an answer may have several calls.
    pub(crate) parallel: bool,
}

impl Offer {
    /// Reads the tools of a chat request.
    pub(crate) fn read(body: &Fields<'_>) -> Result<Offer, ApiError> {
        refuse_functions(body)?;
        let tools = body.array("tools")?.map_or(&[][..], Vec::as_slice);
        if tools.len() > MAX_TOOLS {
            let message = format!("'tools' has {} tools, more than {MAX_TOOLS}", tools.len());
            return Err(ApiError::param("tools", message));
        }
        let mut bytes = 0;
        let mut listed = Vec::with_capacity(tools.len());
        let mut functions: Vec<Tool> = Vec::with_capacity(tools.len());
        let mut strict = BTreeSet::new();
        for (index, value) in tools.iter().enumerate() {
            let (tool, function) = tool(value, index)?;
            bytes += tool.to_string().len();
            if bytes > MAX_BYTES {
                let message = format!("'tools' has more than {MAX_BYTES} bytes of JSON");
                return Err(ApiError::param("tools", message));
            }
            if functions.iter().any(|other| other.name == function.name) {
                let message = format!("'tools' has two functions named {:?}", function.name);
                return Err(ApiError::param(format!("tools[{index}].function.name"), message));
            }
            if tools[index]["function"]["strict"] == true {
                strict.insert(function.name.clone());
            }
            listed.push(tool);
            functions.push(function);
        }
        let parallel =
            body.get("parallel_tool_calls").is_none() || body.boolean("parallel_tool_calls")?;
        let (demand, functions) = choice(body, functions)?;
        Ok(Offer { listed, callable: Tools::new(functions), strict, demand, parallel })
    }

    /// Whether the model may call only some of the functions that it is shown.
    pub(crate) fn is_restricted(&self) -> bool {
        self.callable.iter().count() < self.listed.len()
    }

    /// Whether the model may call functions.
    pub(crate) fn is_open(&self) -> bool {
        !self.callable.is_empty()
    }
}

/// Refuses the fields `functions` and `function_call`, which are older than the field `tools`.
fn refuse_functions(body: &Fields<'_>) -> Result<(), ApiError> {
    let given = body.array("functions")?.is_some_and(|functions| !functions.is_empty());
    let forbidden = body.get("function_call").and_then(Value::as_str) == Some("none");
    match given && !forbidden {
        true => Err(ApiError::unsupported(
            "functions",
            "'functions' are not supported; use 'tools', or send function_call \"none\"",
        )),
        false => Ok(()),
    }
}

/// Reads a tool. Returns the tool in the form that the chat template gets, and the tool's function.
fn tool(value: &Value, index: usize) -> Result<(Value, Tool), ApiError> {
    let fields = Fields::at(value, format!("tools[{index}]"))?;
    match fields.string("type")? {
        Some("function") | None => {}
        Some(other) => {
            let short: String = other.chars().take(40).collect();
            let message = format!("only tools of type \"function\" are supported, not {short:?}");
            return Err(ApiError::unsupported(fields.path("type"), message));
        }
    }
    let function = fields.object("function")?.ok_or_else(|| missing(&fields.path("function")))?;
    let name = function_name(&function)?;
    function.string("description")?;
    function.boolean("strict")?;
    let parameters = function.get("parameters");
    if let Some(schema) = parameters {
        check_schema(schema, &function.path("parameters"))?;
    }
    // Leave out `strict`, which concerns the server and not the model. Give a function without a schema the empty
    // schema, because some templates read the schema without a check that the schema exists.
    let mut shown: Map<String, Value> = function
        .all()
        .filter(|(name, value)| *name != "strict" && !value.is_null())
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    if parameters.is_none() {
        shown.insert("parameters".into(), json!({"type": "object", "properties": {}}));
    }
    let tool = Tool { name: name.to_owned(), parameters: parameters.cloned() };
    Ok((json!({"type": "function", "function": shown}), tool))
}

fn function_name<'a>(function: &Fields<'a>) -> Result<&'a str, ApiError> {
    let path = function.path("name");
    let name = function.string("name")?.ok_or_else(|| missing(&path))?;
    let allowed = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    if name.is_empty() || name.len() > MAX_NAME_BYTES || !name.chars().all(allowed) {
        let message = format!(
            "'{path}' must have 1 to {MAX_NAME_BYTES} of the characters a-z, A-Z, 0-9, _, - and ."
        );
        return Err(ApiError::param(path, message));
    }
    Ok(name)
}

fn check_schema(schema: &Value, path: &str) -> Result<(), ApiError> {
    let Value::Object(fields) = schema else { return Err(wrong(path, "an object", schema)) };
    let is_object = |kind: &Value| kind.as_str() == Some("object");
    if fields.get("type").is_some_and(|kind| !is_object(kind)) {
        let message =
            format!("'{path}.type' must be \"object\": a function's arguments are an object");
        return Err(ApiError::param(format!("{path}.type"), message));
    }
    if depth(schema) > MAX_DEPTH {
        let message = format!("'{path}' is nested deeper than {MAX_DEPTH} levels");
        return Err(ApiError::param(path, message));
    }
    Ok(())
}

fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(fields) => 1 + fields.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

/// Reads the field `tool_choice`. Returns the demand for calls, and the functions that the model may call, out of `all`
/// functions of the request: no functions if the request forbids calls.
fn choice(body: &Fields<'_>, all: Vec<Tool>) -> Result<(Demand, Vec<Tool>), ApiError> {
    const FORMS: &str = "\"none\", \"auto\", \"required\", or an object that names functions";
    let Some(value) = body.get("tool_choice") else {
        return Ok((Demand::Auto, all));
    };
    let chosen = match value {
        Value::String(word) => match word.as_str() {
            "none" => return Ok((Demand::Auto, Vec::new())),
            "auto" => (Demand::Auto, all),
            "required" => (Demand::Required, all),
            _ => return Err(wrong("tool_choice", FORMS, value)),
        },
        Value::Object(_) => {
            let fields = Fields::at(value, "tool_choice".into())?;
            match fields.string("type")? {
                Some("function") => (Demand::Named, vec![named(&fields, &all)?]),
                Some("allowed_tools") => allowed(&fields, &all)?,
                _ => {
                    let message = "'tool_choice.type' must be \"function\" or \"allowed_tools\"";
                    return Err(ApiError::param("tool_choice.type", message));
                }
            }
        }
        other => return Err(wrong("tool_choice", FORMS, other)),
    };
    match chosen {
        // Without tools "auto" demands nothing.
        (Demand::Auto, tools) if tools.is_empty() && value == "auto" => Ok((Demand::Auto, tools)),
        (_, tools) if tools.is_empty() => {
            Err(ApiError::param("tool_choice", "'tool_choice' needs 'tools'"))
        }
        chosen => Ok(chosen),
    }
}

/// Reads the function that an object with a field `function` names.
fn named(fields: &Fields<'_>, all: &[Tool]) -> Result<Tool, ApiError> {
    let function = fields.object("function")?.ok_or_else(|| missing(&fields.path("function")))?;
    let path = function.path("name");
    let name = function.string("name")?.ok_or_else(|| missing(&path))?;
    all.iter().find(|tool| tool.name == name).cloned().ok_or_else(|| {
        let short: String = name.chars().take(MAX_NAME_BYTES).collect();
        ApiError::param(path, format!("'tools' has no function {short:?}"))
    })
}

/// Reads a `tool_choice` of type `allowed_tools`, which lets the model call some of the tools.
fn allowed(fields: &Fields<'_>, all: &[Tool]) -> Result<(Demand, Vec<Tool>), ApiError> {
    let allowed =
        fields.object("allowed_tools")?.ok_or_else(|| missing(&fields.path("allowed_tools")))?;
    let demand = match allowed.string("mode")? {
        Some("auto") => Demand::Auto,
        Some("required") => Demand::Required,
        _ => {
            let path = allowed.path("mode");
            return Err(ApiError::param(
                path.clone(),
                format!("'{path}' must be auto or required"),
            ));
        }
    };
    let path = allowed.path("tools");
    let tools = allowed.array("tools")?.ok_or_else(|| missing(&path))?;
    if tools.is_empty() || tools.len() > MAX_TOOLS {
        let message = format!("'{path}' must have 1 to {MAX_TOOLS} tools, not {}", tools.len());
        return Err(ApiError::param(path, message));
    }
    let read = |(index, tool)| named(&Fields::at(tool, format!("{path}[{index}]"))?, all);
    let tools: Vec<Tool> = tools.iter().enumerate().map(read).collect::<Result<_, _>>()?;
    Ok((demand, all.iter().filter(|tool| tools.contains(tool)).cloned().collect()))
}

fn missing(path: &str) -> ApiError {
    ApiError::param(path, format!("'{path}' is required")).code("missing")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: Value) -> Result<Offer, ApiError> {
        Offer::read(&Fields::root(&body).unwrap())
    }

    fn tools(names: &[&str]) -> Value {
        names.iter().map(|name| json!({"type": "function", "function": {"name": name}})).collect()
    }

    fn names(offer: &Offer) -> Vec<&str> {
        offer.callable.iter().map(|tool| tool.name.as_str()).collect()
    }

    #[test]
    fn the_template_gets_tools_in_the_clients_order_without_strict() {
        let schema = json!({"type": "object", "properties": {"z": {"type": "integer"}, "a": {}}});
        let tool = json!({"type": "function", "function":
            {"name": "f.g-1", "strict": true, "parameters": schema, "description": "d", "x": null}});
        let offer = read(json!({"tools": [tool, tools(&["g"])[0]]})).unwrap();
        let shown = r#"{"name":"f.g-1","parameters":{"type":"object","properties":{"z":{"type":"integer"},"a":{}}},"description":"d"}"#;
        assert_eq!(offer.listed[0]["function"].to_string(), shown);
        let empty = r#"{"name":"g","parameters":{"type":"object","properties":{}}}"#;
        assert_eq!(offer.listed[1]["function"].to_string(), empty);
        assert_eq!(offer.callable.get("f.g-1").unwrap().parameters, Some(schema));
        assert_eq!(offer.callable.get("g").unwrap().parameters, None);
    }

    #[test]
    fn choices_say_which_functions_may_and_must_be_called() {
        let read = |choice: Value| {
            let offer =
                read(json!({"tools": tools(&["a", "b", "c"]), "tool_choice": choice})).unwrap();
            let names = names(&offer).join(" ");
            (offer.listed.len(), names, offer.demand)
        };
        let of = |listed, names: &str, demand| (listed, names.to_owned(), demand);
        assert_eq!(read(Value::Null), of(3, "a b c", Demand::Auto));
        assert_eq!(read(json!("auto")), of(3, "a b c", Demand::Auto));
        assert_eq!(read(json!("required")), of(3, "a b c", Demand::Required));
        assert_eq!(read(json!("none")), of(3, "", Demand::Auto));
        let named = json!({"type": "function", "function": {"name": "b"}});
        assert_eq!(read(named), of(3, "b", Demand::Named));
        let allowed = |mode: &str| json!({"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools(&["c", "a"])}});
        assert_eq!(read(allowed("auto")), of(3, "a c", Demand::Auto));
        assert_eq!(read(allowed("required")), of(3, "a c", Demand::Required));
    }

    #[test]
    fn several_calls_are_allowed_unless_the_request_forbids_them() {
        let parallel = |value: Value| {
            read(json!({"tools": tools(&["a"]), "parallel_tool_calls": value})).unwrap().parallel
        };
        assert!(parallel(Value::Null) && parallel(json!(true)) && !parallel(json!(false)));
    }

    #[test]
    fn requests_without_tools_offer_none() {
        for body in [
            json!({}),
            json!({"tools": []}),
            json!({"tools": null, "tool_choice": "none"}),
            json!({"functions": [], "function_call": "auto"}),
            json!({"functions": [{}], "function_call": "none"}),
        ] {
            assert!(!read(body.clone()).unwrap().is_open(), "{body}");
        }
    }

    #[test]
    fn errors_name_the_field() {
        let function =
            |function: Value| json!({"tools": [{"type": "function", "function": function}]});
        let schema = |schema: Value| function(json!({"name": "f", "parameters": schema}));
        let choice = |choice: Value| json!({"tools": tools(&["a"]), "tool_choice": choice});
        let nested = (0..MAX_DEPTH).fold(json!({}), |inner, _| json!({"x": inner}));
        let allowed =
            |value: Value| choice(json!({"type": "allowed_tools", "allowed_tools": value}));
        for (body, param) in [
            (json!({"tools": 1}), "tools"),
            (json!({"tools": [1]}), "tools[0]"),
            (json!({"tools": vec![tools(&["a"])[0].clone(); MAX_TOOLS + 1]}), "tools"),
            (json!({"tools": [{"type": "custom", "custom": {}}]}), "tools[0].type"),
            (json!({"tools": [{"type": "function"}]}), "tools[0].function"),
            (function(json!({})), "tools[0].function.name"),
            (function(json!({"name": "a b"})), "tools[0].function.name"),
            (function(json!({"name": "a".repeat(MAX_NAME_BYTES + 1)})), "tools[0].function.name"),
            (json!({"tools": tools(&["a", "a"])}), "tools[1].function.name"),
            (function(json!({"name": "f", "description": 1})), "tools[0].function.description"),
            (function(json!({"name": "f", "strict": "yes"})), "tools[0].function.strict"),
            (schema(json!([])), "tools[0].function.parameters"),
            (schema(json!({"type": "string"})), "tools[0].function.parameters.type"),
            (schema(nested), "tools[0].function.parameters"),
            (schema(json!({"x": "y".repeat(MAX_BYTES)})), "tools"),
            (json!({"functions": [{}]}), "functions"),
            (json!({"tool_choice": "required"}), "tool_choice"),
            (json!({"parallel_tool_calls": 1}), "parallel_tool_calls"),
            (choice(json!("any")), "tool_choice"),
            (choice(json!(1)), "tool_choice"),
            (choice(json!({"type": "custom"})), "tool_choice.type"),
            (choice(json!({"type": "function"})), "tool_choice.function"),
            (
                choice(json!({"type": "function", "function": {"name": "b"}})),
                "tool_choice.function.name",
            ),
            (allowed(Value::Null), "tool_choice.allowed_tools"),
            (allowed(json!({"mode": "none"})), "tool_choice.allowed_tools.mode"),
            (allowed(json!({"mode": "auto", "tools": []})), "tool_choice.allowed_tools.tools"),
            (
                allowed(json!({"mode": "auto", "tools": tools(&["b"])})),
                "tool_choice.allowed_tools.tools[0].function.name",
            ),
        ] {
            let error = read(body.clone()).expect_err(&body.to_string());
            assert_eq!(error.body()["error"]["param"], param, "{error}");
        }
    }
}
