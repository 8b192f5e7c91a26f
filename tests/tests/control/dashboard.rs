//! The files of the live page, and who may use the control API from a browser. `tests/dashboard.rs` uses the page in
//! Chromium.

use serde_json::json;
use tiercel_tests::{Response, TestServer};

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

fn get(server: &TestServer, path: &str, headers: &[(&str, &str)]) -> Response {
    server.control().request("GET", path, headers, b"")
}

/// Returns the files that a text of the page names, as paths on the server.
fn named(text: &str, before: &str) -> Vec<String> {
    let parts = text.split(before).skip(1);
    parts.map(|part| format!("/dashboard/{}", part.split('"').next().unwrap())).collect()
}

#[test]
fn the_page_and_its_files_need_no_key_and_may_run_nothing_else() {
    let server = TestServer::mock(|settings| settings.http.api_keys = vec!["secret".into()]);
    let page = get(&server, "/dashboard", &[]);
    let mut files = named(&page.text(), "=\"dashboard/");
    assert_eq!(files.len(), 3, "style sheet, icon and script: {files:?}");
    let mut seen = 0;
    while let Some(path) = files.get(seen).cloned() {
        seen += 1;
        let file = get(&server, &path, &[]);
        assert_eq!(file.status, 200, "{path}");
        for more in named(&file.text(), "from \"./") {
            if !files.contains(&more) {
                files.push(more);
            }
        }
        let kind = file.header("content-type").unwrap();
        let expected = match path.rsplit('.').next().unwrap() {
            "js" => "text/javascript; charset=utf-8",
            "css" => "text/css; charset=utf-8",
            _ => "image/svg+xml",
        };
        assert_eq!(kind, expected, "{path}");
    }
    assert!(seen > 10, "scripts import each other: {files:?}");
    for path in files.iter().map(String::as_str).chain(["/dashboard"]) {
        let file = get(&server, path, &[]);
        let header = |name: &str| file.header(name).unwrap_or_default().to_owned();
        assert_eq!(header("content-security-policy"), POLICY, "{path}");
        assert_eq!(header("x-content-type-options"), "nosniff", "{path}");
        assert_eq!(header("x-frame-options"), "DENY", "{path}");
        assert_eq!(header("referrer-policy"), "no-referrer", "{path}");
        assert_eq!(header("cache-control"), "no-cache", "{path}");
        let text = file.text();
        assert!(!text.contains("secret"), "{path}");
        // The address of a namespace in the icon is no address that a browser asks.
        let text = text.replace("http://www.w3.org/2000/svg", "");
        assert!(!text.contains("http://") && !text.contains("https://"), "{path}");
        assert!(!text.contains(" style=\"") && !text.contains(" onclick"), "{path}");
    }
    server.finish();
}

#[test]
fn a_browser_that_has_a_file_is_told_so() {
    let server = TestServer::mock(|_| ());
    for path in ["/dashboard", "/dashboard/main.js"] {
        let tag = get(&server, path, &[]).header("etag").unwrap().to_owned();
        let known = get(&server, path, &[("if-none-match", &tag)]);
        assert_eq!((known.status, known.body.len()), (304, 0), "{path}");
        assert_eq!(known.header("content-security-policy"), Some(POLICY));
        assert_eq!(get(&server, path, &[("if-none-match", "\"other\"")]).status, 200);
    }
    let missing = get(&server, "/dashboard/none.js", &[]);
    assert_eq!((missing.status, &missing.error()["code"]), (404, &json!("unknown_url")));
    assert_eq!(server.get("/dashboard").status, 404, "the public listener has no page");
    server.finish();
}

#[test]
fn without_keys_the_own_page_may_use_the_control_api_and_other_pages_may_not() {
    let server = TestServer::mock(|_| ());
    let (own, public) = (server.control_address(), format!("http://{}", server.address()));
    let port = own.port();
    let post = |headers: &[(&str, &str)]| {
        let fields = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n"));
        let fields = fields.collect::<String>();
        let head = format!(
            "POST /control/v1/requests/1/pause HTTP/1.1\r\nhost: {own}\r\n{fields}content-length: 2\r\n\r\n{{}}"
        );
        let mut connection = server.control();
        connection.send(head.as_bytes());
        connection.response().unwrap().status
    };
    let own = format!("http://{own}");
    // There is no such request, which only those may know that may pause it.
    assert_eq!(post(&[]), 404);
    assert_eq!(post(&[("origin", &own), ("sec-fetch-site", "same-origin")]), 404);
    let same_host = format!("http://localhost:{port}");
    for origin in [public.as_str(), same_host.as_str(), "https://example.org", "null"] {
        assert_eq!(post(&[("origin", origin)]), 403, "{origin}");
    }
    assert_eq!(post(&[("sec-fetch-site", "cross-site")]), 403);
    assert_eq!(get(&server, "/control/v1/live", &[("sec-fetch-site", "same-site")]).status, 403);
    // A name that its owner points to this machine: for the browser, the page is of the same origin.
    let mut rebound = server.control();
    let head = format!(
        "GET /control/v1/live HTTP/1.1\r\nhost: example.org:{port}\r\norigin: http://example.org:{port}\r\n\
         sec-fetch-site: same-origin\r\n\r\n"
    );
    rebound.send(head.as_bytes());
    assert_eq!(rebound.response().unwrap().status, 403);
    server.finish();
}
