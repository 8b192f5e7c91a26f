//! Tests of models of the Hugging Face hub, served by a fake hub.

use super::*;

const COMMIT: &str = "0123456789012345678901234567890123456789";
const NEXT_COMMIT: &str = "abcdefabcdefabcdefabcdefabcdefabcdefabcd";

/// Content of the fake hub's repository: the hash of its commit, and the name and text of each file.
type Content = (&'static str, &'static [(&'static str, &'static str)]);

/// Fake Hugging Face hub with one repository, an HTTP server that runs until the test process ends.
struct FakeHub {
    endpoint: String,
    content: Arc<Mutex<Content>>,
    downloads: Arc<Mutex<Vec<String>>>,
}

impl FakeHub {
    fn start(content: Content) -> FakeHub {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let content = Arc::new(Mutex::new(content));
        let downloads = Arc::new(Mutex::new(Vec::new()));
        let hub = FakeHub { endpoint, content: content.clone(), downloads: downloads.clone() };
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { return };
                let mut request = Vec::new();
                let mut byte = [0];
                while !request.ends_with(b"\r\n\r\n") && stream.read(&mut byte).unwrap_or(0) == 1 {
                    request.push(byte[0]);
                }
                let request = String::from_utf8_lossy(&request).into_owned();
                let (path, whole, response) = answer(*content.lock().unwrap(), &request);
                if whole {
                    downloads.lock().unwrap().push(path);
                }
                let _ = stream.write_all(response.as_bytes());
            }
        });
        hub
    }

    /// Returns the names of the files that were downloaded from the fake hub since the last call.
    fn downloaded(&self) -> Vec<String> {
        let mut names: Vec<String> = self.downloads.lock().unwrap().drain(..).collect();
        names.sort();
        names.dedup();
        names
    }
}

/// Answers an HTTP request to the fake hub. Returns the name of the requested file, whether its content was requested,
/// and the response.
fn answer((commit, files): Content, request: &str) -> (String, bool, String) {
    let path = request.split_whitespace().nth(1).unwrap_or("");
    let path = path.split('?').next().unwrap_or("");
    let mut asked = String::new();
    let (status, body) = if !path.contains("org/name") {
        ("404 Not Found", r#"{"error":"Repository not found"}"#.to_owned())
    } else if let Some((_, file)) = path.split_once(&format!("/resolve/{commit}/")) {
        asked = file.to_owned();
        match files.iter().find(|(name, _)| *name == file) {
            Some((_, content)) => ("200 OK", (*content).to_owned()),
            None => ("404 Not Found", String::new()),
        }
    } else if path.contains("/resolve/") {
        ("404 Not Found", String::new())
    } else {
        let siblings = files.iter().map(|(name, _)| serde_json::json!({"rfilename": name}));
        let siblings = serde_json::Value::from_iter(siblings);
        ("200 OK", serde_json::json!({"sha": commit, "siblings": siblings}).to_string())
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nETag: \"{}\"\r\n\
         X-Repo-Commit: {commit}\r\nContent-Range: bytes 0-0/{}\r\nConnection: close\r\n\r\n",
        body.len(),
        sha256(body.as_bytes()),
        body.len(),
    );
    let probe = request.to_ascii_lowercase().contains("range: bytes=0-0\r\n");
    let whole = !asked.is_empty() && !probe;
    let response = if request.starts_with("HEAD") { head } else { head + &body };
    (asked, whole, response)
}

fn hub_resolver(endpoint: String, cache: &Path) -> Resolver {
    let mut resolver = Resolver::new("/nowhere".into());
    resolver.hub_endpoint = Some(endpoint);
    resolver.hub_cache = Some(cache.to_owned());
    resolver
}

#[test]
fn the_hub_serves_only_what_is_needed_and_its_cache_works_offline() {
    let cache = tempfile::tempdir().unwrap();
    let hub = FakeHub::start((
        COMMIT,
        &[
            ("config.json", "{}"),
            ("tokenizer.json", "{ }"),
            ("model.safetensors", "weights"),
            ("consolidated.safetensors", "again"),
            ("onnx/model.safetensors", "again"),
            ("pytorch_model.bin", "again"),
            ("README.md", "words"),
        ],
    ));
    let online = hub_resolver(hub.endpoint.clone(), cache.path());
    let resolved = online.resolve(Some("hf:org/name")).unwrap();
    assert_eq!(resolved.name, "org/name");
    let dir = resolved.files.path();
    assert_eq!(fs::read_to_string(dir.join("model.safetensors")).unwrap(), "weights");
    let mut names: Vec<String> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["config.json", "model.safetensors", "tokenizer.json"]);

    let offline = hub_resolver("http://127.0.0.1:1".into(), cache.path());
    assert_eq!(offline.resolve(Some("hf:org/name")).unwrap(), resolved);
    let message = offline.resolve(Some("hf:org/other")).unwrap_err().to_string();
    assert!(message.contains("check the network") && !message.contains('\n'), "{message}");
    let message = online.resolve(Some("hf:no/such")).unwrap_err().to_string();
    assert!(message.contains("check the name") && !message.contains('\n'), "{message}");
}

#[test]
fn a_new_commit_of_the_hub_is_fetched_whole_and_only_what_changed() {
    let cache = tempfile::tempdir().unwrap();
    let hub = FakeHub::start((
        COMMIT,
        &[("config.json", "{}"), ("tokenizer.json", "{ }"), ("model.safetensors", "weights")],
    ));
    let online = hub_resolver(hub.endpoint.clone(), cache.path());
    let first = online.resolve(Some("hf:org/name")).unwrap();
    assert_eq!(hub.downloaded(), ["config.json", "model.safetensors", "tokenizer.json"]);
    assert_eq!(online.resolve(Some("hf:org/name")).unwrap(), first);
    assert_eq!(hub.downloaded(), [""; 0]);

    *hub.content.lock().unwrap() = (
        NEXT_COMMIT,
        &[
            ("config.json", "{\"new\": 1}"),
            ("tokenizer.json", "{ }"),
            ("model.safetensors", "weights"),
        ],
    );
    let second = online.resolve(Some("hf:org/name")).unwrap();
    let read = |model: &ResolvedModel, file| fs::read_to_string(model.files.path().join(file));
    assert_eq!(read(&second, "config.json").unwrap(), "{\"new\": 1}");
    assert_eq!(read(&second, "model.safetensors").unwrap(), "weights");
    assert_eq!(read(&first, "config.json").unwrap(), "{}", "a commit never changes");
    assert_eq!(hub.downloaded(), ["config.json"]);
    let offline = hub_resolver("http://127.0.0.1:1".into(), cache.path());
    assert_eq!(offline.resolve(Some("hf:org/name")).unwrap(), second);
}
