//! Runs Python programs as clients, with pinned packages that are installed only below `target/`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

/// Explanation in an error message when a Python package is missing.
const NEEDS: &str = "needs python3 with pip, and a package index";

/// Runs the Python program `script` of `tests/clients` with arguments.
///
/// # Panics
/// If Python or its packages cannot be had, or if the program fails; the panic shows the program's output. So a test
/// that needs a Python client never passes without it.
pub fn run_script(script: &str, args: &[&str]) {
    let clients = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients");
    let packages = packages(&clients.join("requirements.txt"));
    let mut command = Command::new("python3");
    command.arg(clients.join(script)).args(args).env("PYTHONPATH", packages);
    succeed(&mut command, "the script failed");
}

/// Returns a directory that holds the required Python packages; the first call installs them.
fn packages(requirements: &Path) -> PathBuf {
    static MAKING: Mutex<()> = Mutex::new(());
    // A poisoned lock is harmless: a test that fails while installing the packages leaves no directory that other tests
    // would trust.
    let _one_at_a_time = MAKING.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let pins = std::fs::read_to_string(requirements).unwrap();
    // Packages with compiled parts work with one version of Python only, so the version is part of the directory's
    // name.
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

/// Runs a command that must succeed, and returns its output.
fn succeed(command: &mut Command, why: &str) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{why}: {command:?}: {error}"));
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{why}: {command:?}\n{out}\n{err}");
    out.into_owned()
}

/// Returns the FNV-1a hash of a text. It names the directory of Python packages, so that other pinned versions get
/// another directory.
fn fingerprint(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
