//! Python programs as clients, in a virtual environment with pinned packages.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

/// Runs `script` of `tests/clients` with these arguments.
///
/// # Panics
/// If Python or its packages cannot be had, or the script fails; shows what it printed. Tests that need
/// a client never pass without it.
pub fn run_script(script: &str, args: &[&str]) {
    let clients = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients");
    let mut command = Command::new(python(&clients.join("requirements.txt")));
    command.arg(clients.join(script)).args(args);
    succeed(&mut command, "the script failed");
}

/// The interpreter of an environment that holds exactly these packages; made on first use.
fn python(requirements: &Path) -> PathBuf {
    static MAKING: Mutex<()> = Mutex::new(());
    // A test that failed while making it leaves nothing behind that others would trust.
    let _one_at_a_time = MAKING.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let pins = std::fs::read_to_string(requirements).unwrap();
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target");
    std::fs::create_dir_all(&target).unwrap();
    let home = target.join(format!("clients-{:016x}", fingerprint(&pins)));
    let interpreter = home.join("bin/python");
    let complete = home.join("complete");
    if !complete.exists() {
        let why = "needs python3 with venv and pip, and a package index";
        succeed(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&home), why);
        let mut install = Command::new(&interpreter);
        install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
        succeed(install.arg("--requirement").arg(requirements), why);
        std::fs::write(complete, pins).unwrap();
    }
    interpreter
}

fn succeed(command: &mut Command, why: &str) {
    let output = command.output().unwrap_or_else(|error| panic!("{why}: {command:?}: {error}"));
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{why}: {command:?}\n{out}\n{err}");
}

/// FNV-1a: other pins are another directory.
fn fingerprint(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
