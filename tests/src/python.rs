//! Runs Python programs as clients of a server under test, with packages of pinned versions that are installed only
//! below `target/`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

/// Explanation in the error message when Python or a Python package cannot be had.
const NEEDS: &str = "needs python3 with pip, and a package index";

/// Runs the Python program `script` of `tests/clients` with the given arguments. `requirements` is the file there that
/// pins the packages of the program. Prints and returns what the program writes.
///
/// # Panics
/// If Python or its packages cannot be had, or if the program fails; the panic shows the program's output. So a test
/// that needs a Python client never passes without it.
pub fn run_script(script: &str, requirements: &str, args: &[&str]) -> String {
    let clients = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients");
    let packages = packages(&clients.join(requirements));
    let mut command = Command::new("python3");
    command.arg(clients.join(script)).args(args).env("PYTHONPATH", packages);
    let output = succeed(&mut command, "the script failed");
    print!("{output}");
    output
}

/// Returns a directory that holds the required Python packages; installs them if the directory is not complete.
fn packages(requirements: &Path) -> PathBuf {
    static MAKING: Mutex<()> = Mutex::new(());
    // Ignore that the mutex is poisoned, which means that another test failed while it installed the packages: a
    // directory without the file `complete` is installed again.
    let _one_at_a_time = MAKING.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let pins = std::fs::read_to_string(requirements).unwrap();
    // Python packages with compiled parts work with one version of Python only, so the version is hashed into the
    // directory's name.
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

/// Runs a command and returns its output; panics with the reason `why` if the command fails.
fn succeed(command: &mut Command, why: &str) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{why}: {command:?}: {error}"));
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{why}: {command:?}\n{out}\n{err}");
    out.into_owned()
}

/// Returns the FNV-1a hash of a text. The directory of Python packages is named by the hash of Python's version and of
/// the pinned versions, so that other versions get another directory.
fn fingerprint(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
