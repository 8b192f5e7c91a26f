//! OpenAPI schemas of the fields of tools and reasoning in requests, and of messages.

use crate::document::schema::{
    ANY_NUMBER, Property, any, any_of, array, flag, object, text, text_of, word,
};
use crate::openai::messages::ROLES;
use crate::openai::tools::MAX_CALLS;
use crate::openai::tools::offer::{MAX_NAME_BYTES, MAX_TOOLS};
use crate::openai::tools::variables::EFFORTS;
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{ObjectBuilder, Schema, Type};

/// Returns the fields of a conversation except its messages, with their schemas.
pub(crate) fn of_conversation() -> Vec<Property> {
    let variables = any_object("Variables of the chat template, at most 64 and 64 KiB of JSON.");
    vec![
        (
            "tools",
            array(
                tool(),
                0..=MAX_TOOLS,
                "Functions that the model may call, at most 256 KiB of JSON.",
            ),
        ),
        ("tool_choice", choice()),
        ("parallel_tool_calls", flag("Whether an answer may have several calls; true by default.")),
        ("chat_template_kwargs", variables),
        (
            "reasoning_effort",
            word(&EFFORTS, "Effort of reasoning, for chat templates with this variable."),
        ),
        (
            "enable_thinking",
            flag("Whether the model reasons, for chat templates with this variable."),
        ),
        (
            "add_generation_prompt",
            flag("Whether the prompt ends with the beginning of an answer; true by default."),
        ),
        (
            "continue_final_message",
            flag(
                "Whether the model continues the last message; needs `add_generation_prompt` to be false.",
            ),
        ),
        (
            "functions",
            array(
                any("Ignored."),
                0..=ANY_NUMBER,
                "Not supported: an empty array, or `function_call` must be `none`.",
            ),
        ),
        ("function_call", any("`none`, if `functions` is not empty.")),
    ]
}

/// Returns the schema of a message of a conversation.
pub(crate) fn message() -> RefOr<Schema> {
    let part = object(
        "Part of a text.",
        2,
        vec![("type", word(&["text"], "Text.")), ("text", text("The text."))],
    );
    let refusal = object(
        "Text with which the assistant refused.",
        2,
        vec![("type", word(&["refusal"], "Refusal.")), ("refusal", text("The text."))],
    );
    let parts =
        array(any_of([part, refusal], "Part of a text."), 0..=ANY_NUMBER, "Parts of a text.");
    let content = || any_of([text("A text."), parts.clone()], "The text, whole or in parts.");
    let name = || ("name", text("Name of the speaker, or of the function that gave the result."));
    let others: Vec<&str> =
        ROLES.into_iter().filter(|role| !["assistant", "tool"].contains(role)).collect();
    let said =
        vec![("role", word(&others, "Role of the speaker.")), ("content", content()), name()];
    let answered = vec![
        ("role", word(&["assistant"], "Role of the speaker.")),
        ("content", content()),
        name(),
        ("tool_calls", array(call(), 0..=MAX_CALLS, "Calls of functions.")),
        ("reasoning_content", text("Reasoning of the model.")),
        ("reasoning", text("The same text; overrides `reasoning_content`.")),
    ];
    let result = vec![
        ("role", word(&["tool"], "Role of the speaker.")),
        ("content", content()),
        name(),
        ("tool_call_id", text("Id of the call whose result the message is.")),
    ];
    any_of(
        [
            object("Message to the model.", 2, said),
            object("Answer of the model.", 1, answered),
            object("Result of a function.", 2, result),
        ],
        "A message of a conversation.",
    )
}

fn call() -> RefOr<Schema> {
    let arguments = any_of(
        [text("JSON of an object."), any_object("Arguments as an object.")],
        "Arguments of the call.",
    );
    let function = object(
        "Function that was called.",
        1,
        vec![("name", text("Name of the function.")), ("arguments", arguments)],
    );
    object(
        "Call of a function.",
        1,
        vec![
            ("function", function),
            ("id", text("Id of the call.")),
            ("type", word(&["function"], "Only functions are supported.")),
        ],
    )
}

fn tool() -> RefOr<Schema> {
    let function = object(
        "A function that the model may call.",
        1,
        vec![
            ("name", text_of(1..=MAX_NAME_BYTES, "Letters, digits, `_`, `-` and `.`.")),
            ("description", text("What the function does.")),
            ("parameters", any_object("JSON schema of the arguments, which are an object.")),
            (
                "strict",
                flag("Whether calls must follow `parameters` even with the `tool_choice` `auto`."),
            ),
        ],
    );
    object(
        "A tool.",
        1,
        vec![
            ("function", function),
            ("type", word(&["function"], "Only functions are supported.")),
        ],
    )
}

fn choice() -> RefOr<Schema> {
    let word_of = word(&["none", "auto", "required"], "Whether the model must call a function.");
    let named = |about| {
        let function = object("The function.", 1, vec![("name", text("Name of the function."))]);
        (about, function)
    };
    let (about, function) = named("The function that the model must call.");
    let one = object(
        about,
        2,
        vec![("type", word(&["function"], "One function.")), ("function", function)],
    );
    let (about, function) = named("A function that the model may call.");
    let tool = object(about, 1, vec![("function", function)]);
    let mode = word(&["auto", "required"], "Whether the model must call one of the functions.");
    let tools = array(tool, 1..=MAX_TOOLS, "Functions that the model may call.");
    let allowed = object("Some of the tools.", 2, vec![("mode", mode), ("tools", tools)]);
    let some = object(
        "Functions that the model may call.",
        2,
        vec![("type", word(&["allowed_tools"], "Some functions.")), ("allowed_tools", allowed)],
    );
    any_of([word_of, one, some], "Which functions the model may or must call.")
}

fn any_object(about: &str) -> RefOr<Schema> {
    ObjectBuilder::new().schema_type(Type::Object).description(Some(about)).into()
}
