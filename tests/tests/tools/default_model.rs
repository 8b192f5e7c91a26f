//! Tests that the default model, whose chat template knows no tools, calls functions when the request requires calls.

use crate::{ask, calls, question, tools};
use serde_json::json;
use tiercel_config::ServerSettings;
use tiercel_tests::TestServer;

#[test]
fn it_calls_what_a_request_demands() {
    let mut settings = ServerSettings::default();
    settings.kv.cache_mib = 256;
    let server = TestServer::start(settings);
    let weather = json!([tools()[0]]);
    let extra = json!({"tools": weather, "tool_choice": "required", "parallel_tool_calls": false, "temperature": 0});
    let (required, _) = ask(&server, &question("What is the weather in Paris?", &extra));
    assert_eq!(required["finish_reason"], "tool_calls", "{required}");
    let paris = ("get_weather".to_owned(), json!({"city": "Paris"}));
    assert_eq!(calls(&required), [paris], "{required}");
    let named = json!({"type": "function", "function": {"name": "book_table"}});
    let extra = json!({"tool_choice": named, "temperature": 0, "max_tokens": 300});
    let (named, _) = ask(&server, &question("A table for 4 guests, please.", &extra));
    let (name, arguments) = &calls(&named)[0];
    assert_eq!(name, "book_table", "{named}");
    assert!(arguments["guests"].is_null() || arguments["guests"].is_i64(), "{named}");
    server.finish();
}
