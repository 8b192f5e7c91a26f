//! Functions that a request offers to the model.

use serde_json::{Map, Value, json};
use std::sync::Arc;

/// Function that the model may call.
#[derive(Debug, Clone, PartialEq)]
pub struct Tool {
    /// Name of the function.
    pub name: String,
    /// JSON schema of the function's arguments; `None` if the request states no schema, so that any object is allowed.
    pub parameters: Option<Value>,
}

/// Functions of one request, in the order of the request. Clones share their memory.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Tools(Arc<[Tool]>);

impl Tools {
    /// Creates the list of a request's functions. If several functions have the same name, the first one counts.
    pub fn new(tools: Vec<Tool>) -> Tools {
        Tools(tools.into())
    }

    /// Returns the function with this name; `None` if the request does not offer such a function.
    pub fn get(&self, name: &str) -> Option<&Tool> {
        self.0.iter().find(|tool| tool.name == name)
    }

    /// Returns the functions in the order of the request.
    pub fn iter(&self) -> impl Iterator<Item = &Tool> {
        self.0.iter()
    }

    /// Whether the request offers no functions.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Tool {
    /// Returns the schema of one argument of the function; `None` if the function's schema does not describe the
    /// argument.
    pub(crate) fn argument(&self, name: &str) -> Option<&Value> {
        self.parameters.as_ref()?.get("properties")?.get(name)
    }

    /// Returns the schema of the function's arguments, with the type `object` if the schema states no type.
    pub(crate) fn object_schema(&self) -> Map<String, Value> {
        let mut schema = match &self.parameters {
            Some(Value::Object(schema)) => schema.clone(),
            _ => Map::new(),
        };
        schema.entry("type").or_insert_with(|| json!("object"));
        schema
    }
}
