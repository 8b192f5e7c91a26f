//! Tests of rendering with short templates.

use super::*;
use serde_json::json;

fn template(source: &str) -> Result<ChatTemplate, TemplateError> {
    let special = SpecialTokens { bos: Some(1), eos: Some(2), ..SpecialTokens::default() };
    let sources = Sources { default: Some(source.into()), tool_use: None };
    ChatTemplate::new(sources, &special, &|token| format!("<{token}>"))
}

/// Renders a conversation of texts.
fn render(
    chat: &ChatTemplate,
    texts: &[(&str, &str)],
    ending: Ending,
) -> Result<String, TemplateError> {
    chat.render(&Conversation::of_texts(texts, ending))
}

#[test]
fn chatml_renders_as_it_was_trained() {
    let chat = template(CHATML).unwrap();
    let texts = [("system", "Be brief."), ("user", "Hi <b>\"you\"</b>")];
    let expected = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n\
                    Hi <b>\"you\"</b><|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(render(&chat, &texts, Ending::Open).unwrap(), expected);
    assert!(!render(&chat, &texts, Ending::Closed).unwrap().ends_with("assistant\n"));
}

/// Checks that a template gives the text that Jinja2 3.1 gives for it with `trim_blocks` and `lstrip_blocks`.
#[test]
fn python_methods_slices_namespaces_and_tokens_work() {
    let chat = template(
        "{{ bos_token }}{% set ns = namespace(n=0) %}\n\
         {% if messages[0]['role'] == 'system' %}\n    {{ messages[0].content.strip() }}\n\
         {% set messages = messages[1:] %}{% endif %}\n\
         {% for m in messages %}{% set ns.n = ns.n + 1 %}[{{ ns.n }}:{{ m.role.upper() }}]\
         {{ m['content'] | trim }}{{ {'a': ['<', 1]} | tojson }}{{ eos_token }}{% endfor %}",
    )
    .unwrap();
    let texts = [("system", "  S "), ("user", " U ")];
    let expected = "<1>    S\n[1:USER]U{\"a\": [\"<\", 1]}<2>";
    assert_eq!(render(&chat, &texts, Ending::Open).unwrap(), expected);
}

/// Checks that values give the JSON that Python's `json.dumps(ensure_ascii=False)` gives for them.
#[test]
fn json_is_written_as_python_writes_it() {
    let json = |options: &str| {
        let value = "{'b': [1, 2.0, true, none], 'a': {'é<': 'x\\n'}, 'c': [], 'd': {}}";
        let source = format!("{{{{ {value} | tojson{options} }}}}");
        render(&template(&source).unwrap(), &[], Ending::Open).unwrap()
    };
    let flat = r#"{"b": [1, 2.0, true, null], "a": {"é<": "x\n"}, "c": [], "d": {}}"#;
    assert_eq!(json(""), flat);
    assert_eq!(json("(ensure_ascii=false)"), flat);
    let indented = json("(indent=4)");
    assert!(indented.starts_with("{\n    \"b\": [\n        1,\n"), "{indented}");
    assert!(indented.ends_with("    \"c\": [],\n    \"d\": {}\n}"), "{indented}");
}

#[test]
fn a_template_that_raises_says_so_in_one_line() {
    let chat = template("{{ raise_exception('roles must\n alternate') }}").unwrap();
    let error = render(&chat, &[("user", "x")], Ending::Open).unwrap_err().to_string();
    assert!(error.ends_with("roles must alternate"), "{error}");
}

#[test]
fn a_template_cannot_run_for_ever() {
    let chat = template(
        "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}\
         {% endfor %}{% endfor %}{% endfor %}",
    )
    .unwrap();
    assert!(matches!(render(&chat, &[], Ending::Open), Err(TemplateError::Messages(_))));
}

#[test]
fn a_rendering_has_a_longest_length() {
    let chat = template("{{ messages[0].content }}").unwrap();
    let render = |bytes| render(&chat, &[("user", &"x".repeat(bytes))], Ending::Open);
    assert_eq!(render(TEXT_BYTES_MAX).unwrap().len(), TEXT_BYTES_MAX);
    let error = render(TEXT_BYTES_MAX + 1).unwrap_err().to_string();
    assert!(error.contains("longer than"), "{error}");
}

#[test]
fn a_broken_template_is_refused_at_the_start() {
    assert!(matches!(template("{% if %}"), Err(TemplateError::Template(_))));
    assert!(matches!(template(&" ".repeat(2 << 20)), Err(TemplateError::Template(_))));
}

#[test]
fn todays_date_has_the_format_asked_for() {
    let chat = template("{{ strftime_now('%d %b %Y') }}").unwrap();
    let date = render(&chat, &[], Ending::Open).unwrap();
    assert_eq!(date.len(), 11, "{date}");
    assert!(date.ends_with("20") || date[7..].parse::<u32>().unwrap() >= 2024, "{date}");
}

fn with_tools(texts: &[(&str, &str)]) -> Conversation {
    let tools = vec![
        json!({"type": "function", "function": {"name": "f", "parameters": {"b": 1, "a": 2}}}),
    ];
    Conversation { tools, ..Conversation::of_texts(texts, Ending::Open) }
}

#[test]
fn a_template_gets_tools_variables_and_no_documents() {
    let chat = template(
        "{{ tools is none }} {{ documents is none }} {{ thinking }} {{ messages | length }}\
         {% if tools %}{{ tools | tojson }}{% endif %}",
    )
    .unwrap();
    assert_eq!(render(&chat, &[], Ending::Open).unwrap(), "True True  0");
    let mut conversation = with_tools(&[("user", "go")]);
    conversation.variables.insert("thinking".into(), json!(false));
    conversation.variables.insert("messages".into(), json!([]));
    let expected = r#"False True False 1[{"type": "function", "function": {"name": "f", "parameters": {"b": 1, "a": 2}}}]"#;
    assert_eq!(chat.render(&conversation).unwrap(), expected);
}

#[test]
fn tools_are_spelled_out_for_a_template_that_knows_none() {
    let chat = template(CHATML).unwrap();
    assert_eq!(chat.tools_source(), None);
    let text = chat.render(&with_tools(&[("system", "S"), ("user", "go")])).unwrap();
    assert!(text.starts_with("<|im_start|>system\nS\n\n# Tools\n"), "{text}");
    let tool = r#"{"type": "function", "function": {"name": "f", "parameters": {"b": 1, "a": 2}}}"#;
    assert!(text.contains(&format!("<tools>\n{tool}\n</tools>")), "{text}");
}

#[test]
fn a_second_template_renders_conversations_with_tools() {
    let sources =
        Sources { default: Some("D".into()), tool_use: Some("T {{ tools | length }}".into()) };
    let chat = ChatTemplate::new(sources, &SpecialTokens::default(), &|_| String::new()).unwrap();
    assert_eq!(render(&chat, &[], Ending::Open).unwrap(), "D");
    assert_eq!(chat.render(&with_tools(&[])).unwrap(), "T 1");
    assert_eq!((chat.source(), chat.tools_source()), ("D", Some("T {{ tools | length }}")));
}

#[test]
fn developers_are_system_messages_where_the_template_does_not_know_them() {
    let roles = |more: &str| {
        let chat =
            template(&format!("{{% for m in messages %}}{{{{ m.role }}}} {{% endfor %}}{more}"));
        render(&chat.unwrap(), &[("developer", "x"), ("user", "y")], Ending::Open).unwrap()
    };
    assert_eq!(roles(""), "system user ");
    assert_eq!(roles("{% if 'developer' in 'x' %}{% endif %}"), "developer user ");
}

/// The expected texts come from transformers' `apply_chat_template` with `continue_final_message`.
#[test]
fn a_continued_message_ends_the_prompt() {
    let chat = template(CHATML).unwrap();
    let continued = |last: &str| {
        render(&chat, &[("user", "Once"), ("assistant", last)], Ending::Continued).unwrap()
    };
    let before = "<|im_start|>user\nOnce<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(continued("Once upon"), format!("{before}Once upon"));
    assert_eq!(continued("Once upon "), format!("{before}Once upon "));
    let trimming = template("{{ messages[-1].content | trim }}!").unwrap();
    let cut = render(&trimming, &[("assistant", " a time ")], Ending::Continued).unwrap();
    assert_eq!(cut, "a time");
    let silent = template("{{ messages | length }}").unwrap();
    let error = render(&silent, &[("assistant", "a")], Ending::Continued).unwrap_err();
    assert!(matches!(error, TemplateError::Messages(_)), "{error}");
}
