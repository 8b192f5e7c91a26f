//! Reads the conversation that the chat template renders: messages, tools, variables, and the ending of the prompt.

use crate::http::ApiError;
use crate::openai::fields::Fields;
use crate::openai::messages;
use crate::openai::tools::Offer;
use crate::openai::tools::variables::variables;
use tiercel_model::template::{Conversation, Ending, Message};

/// Reads the conversation of a request that offers the tools in `offer`.
pub(crate) fn conversation(body: &Fields<'_>, offer: &Offer) -> Result<Conversation, ApiError> {
    let messages = messages::read(body)?;
    let ending = ending(body, messages.last())?;
    Ok(Conversation { messages, tools: offer.listed.clone(), variables: variables(body)?, ending })
}

/// Reads the fields `add_generation_prompt` and `continue_final_message`, of which only one may be true.
fn ending(body: &Fields<'_>, last: Option<&Message>) -> Result<Ending, ApiError> {
    let stated = body.get("add_generation_prompt").is_some();
    let open = body.boolean("add_generation_prompt")?;
    if !body.boolean("continue_final_message")? {
        return Ok(if open || !stated { Ending::Open } else { Ending::Closed });
    }
    let refuse = |message: &str| Err(ApiError::param("continue_final_message", message));
    if open || !stated {
        return refuse("'continue_final_message' needs 'add_generation_prompt' to be false");
    }
    let is_text = |last: &Message| last["role"] == "assistant" && !last.contains_key("tool_calls");
    match last.is_some_and(is_text) {
        true => Ok(Ending::Continued),
        false => {
            refuse("'continue_final_message' needs a text of the assistant as the last message")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn read(extra: Value) -> Result<Ending, ApiError> {
        let mut body = json!({"messages": [{"role": "assistant", "content": "Once"}]});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        conversation(&Fields::root(&body).unwrap(), &Offer::default()).map(|read| read.ending)
    }

    #[test]
    fn a_prompt_is_open_closed_or_continued() {
        assert_eq!(read(json!({})).unwrap(), Ending::Open);
        assert_eq!(read(json!({"add_generation_prompt": false})).unwrap(), Ending::Closed);
        let continued =
            |open: Value| json!({"add_generation_prompt": open, "continue_final_message": true});
        assert_eq!(read(continued(json!(false))).unwrap(), Ending::Continued);
        let of_user = json!([{"role": "user", "content": "Once"}]);
        let mut refused = continued(json!(false));
        refused["messages"] = of_user;
        for extra in [continued(json!(true)), continued(Value::Null), refused] {
            let error = read(extra).unwrap_err();
            assert_eq!(error.body()["error"]["param"], "continue_final_message");
        }
    }
}
