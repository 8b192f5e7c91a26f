//! Python programs as clients, with pinned packages that touch nothing outside `target/`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

/// Why a package may be missing.
const NEEDS: &str = "needs python3 with pip, and a package index";

/// Runs `script` of `tests/clients` with these arguments.
///
/// # Panics
/// If Python or its packages cannot be had, or the script fails; shows what it printed. Tests that need
/// a client never pass without it.
pub fn run_script(script: &str, args: &[&str]) {
    let clients = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients");
    let packages = packages(&clients.join("requirements.txt"));
    let mut command = Command::new("python3");
    command.arg(clients.join(script)).args(args).env("PYTHONPATH", packages);
    succeed(&mut command, "the script failed");
}

/// A directory that holds these packages; made on first use.
fn packages(requirements: &Path) -> PathBuf {
    static MAKING: Mutex<()> = Mutex::new(());
    // A test that failed while making it leaves nothing behind that others would trust.
    let _one_at_a_time = MAKING.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let pins = std::fs::read_to_string(requirements).unwrap();
    // Packages with compiled parts serve one version of Python.
    let version = succeed(Command::new("python3").arg("--version"), NEEDS);
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target");
    std::fs::create_dir_all(&target).unwrap();
    let home = target.join(format!("clients-{:016x}", fingerprint(&format!("{version}{pins}"))));
    let complete = home.join("complete");
    if !complete.exists() {
        if home.exists() {
            std::fs::remove_dir_all(&home).unwrap();
        }
        let mut install = Command::new("python3");
        install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
        install.arg("--target").arg(&home).arg("--requirement").arg(requirements);
        succeed(&mut install, NEEDS);
        std::fs::write(complete, pins).unwrap();
    }
    home
}

/// What it printed.
fn succeed(command: &mut Command, why: &str) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{why}: {command:?}: {error}"));
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{why}: {command:?}\n{out}\n{err}");
    out.into_owned()
}

/// FNV-1a: other pins are another directory.
fn fingerprint(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
