//! The functions that a request offers to the model.

use serde_json::Value;
use std::sync::Arc;

/// A function that the model may call.
#[derive(Debug, Clone, PartialEq)]
pub struct Tool {
    /// Name of the function.
    pub name: String,
    /// JSON schema of the function's arguments; `None` if the request has none, so that any object is allowed.
    pub parameters: Option<Value>,
}

/// The functions of one request, in the order in which the request lists them. A copy costs no memory.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Tools(Arc<[Tool]>);

impl Tools {
    /// Returns the functions of a request. Names should be different; of two functions with the same name, the first
    /// one counts.
    pub fn new(tools: Vec<Tool>) -> Tools {
        Tools(tools.into())
    }

    /// Returns the function with this name.
    pub fn get(&self, name: &str) -> Option<&Tool> {
        self.0.iter().find(|tool| tool.name == name)
    }

    /// Returns the functions in the order of the request.
    pub fn iter(&self) -> impl Iterator<Item = &Tool> {
        self.0.iter()
    }

    /// Whether the request has no functions.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Tool {
    /// Returns the schema of one argument of the function; `None` if the function's schema does not describe it.
    pub(crate) fn argument(&self, name: &str) -> Option<&Value> {
        self.parameters.as_ref()?.get("properties")?.get(name)
    }
}
