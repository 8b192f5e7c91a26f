//! Compiles the GPU kernels to machine code for the GPU's architecture. Compiled kernels are kept on disk, named by a
//! hash of their source, options and compiler version.
#![expect(unsafe_code, reason = "bindings to the runtime compiler")]

use super::calls::nvrtc::{Program, version};
use crate::cuda::{CudaError, Unit};
use cudarc::nvrtc::sys;
use sha2::{Digest, Sha256};
use std::fs;
use std::path::PathBuf;

/// Machine code of a source file of kernels, and the compiler's log.
#[derive(Debug, Clone)]
pub struct Compiled {
    /// Machine code of the kernels as a cubin (CUDA binary).
    pub code: Vec<u8>,
    /// Log of ptxas: registers, stack and spills of each kernel.
    pub log: String,
}

/// Compiles a source file of kernels for a GPU architecture such as `sm_90`. Needs libnvrtc, but no GPU.
///
/// # Errors
/// [`CudaError::Compile`] with the compiler's log, [`CudaError::Unavailable`] without a compiler.
pub fn compile(unit: &Unit, options: &[String], arch: &str) -> Result<Compiled, CudaError> {
    // SAFETY: the call only checks whether the library can be loaded.
    if !unsafe { sys::is_culib_present() } {
        return Err(CudaError::Unavailable("libnvrtc was not found".to_owned()));
    }
    let failed =
        |log: String| CudaError::Compile { unit: unit.name.to_owned(), arch: arch.to_owned(), log };
    let mut program =
        Program::new(unit.source, unit.name).map_err(|error| failed(error.words()))?;
    let outcome = program.compile(&all_options(options, arch));
    let log = program.log();
    match outcome.and_then(|()| program.machine_code()) {
        Ok(code) => Ok(Compiled { code, log }),
        Err(error) => Err(failed(format!("{}\n{log}", error.words()))),
    }
}

fn all_options(options: &[String], arch: &str) -> Vec<String> {
    let mut all = vec![
        format!("--gpu-architecture={arch}"),
        "--std=c++17".to_owned(),
        "--ptxas-options=-v".to_owned(),
        // Suppresses warning 177 (unused declaration): not every source file uses all names of the shared header.
        "--diag-suppress=177".to_owned(),
    ];
    all.extend(options.iter().cloned());
    all
}

/// Returns the version of the kernel compiler libnvrtc (major, minor); `None` without it.
pub(super) fn compiler_version() -> Option<(i32, i32)> {
    // SAFETY: the call only checks whether the library can be loaded.
    let present = unsafe { sys::is_culib_present() };
    present.then(version)?.ok()
}

/// Cache of compiled kernels on disk. A file that cannot be read or written is no error: its kernels are compiled
/// again.
#[derive(Debug, Clone)]
pub struct KernelCache {
    /// Folder of the cache of compiled kernels; `None` disables the cache.
    folder: Option<PathBuf>,
}

impl KernelCache {
    /// Makes a cache of compiled kernels in a folder. The folder is created when the first file is written.
    pub fn new(folder: Option<PathBuf>) -> KernelCache {
        KernelCache { folder }
    }

    /// Returns the machine code of a source file of kernels, and whether it came from the cache.
    ///
    /// # Errors
    /// The errors of [`compile`].
    pub fn get(
        &self,
        unit: &Unit,
        options: &[String],
        arch: &str,
    ) -> Result<(Vec<u8>, bool), CudaError> {
        let path = self.path(unit, options, arch);
        if let Some(code) = path.as_ref().and_then(|path| fs::read(path).ok())
            && is_machine_code(&code)
        {
            return Ok((code, true));
        }
        let compiled = compile(unit, options, arch)?;
        tracing::debug!(unit = unit.name, arch, log = compiled.log, "compiled CUDA kernels");
        if let Some(path) = path {
            keep(&path, &compiled.code);
        }
        Ok((compiled.code, false))
    }

    /// Removes the machine code of a source file of kernels from the cache.
    pub fn forget(&self, unit: &Unit, options: &[String], arch: &str) {
        if let Some(path) = self.path(unit, options, arch) {
            // Ignores an error of removing the cached file, because it may not exist.
            let _ = fs::remove_file(path);
        }
    }

    fn path(&self, unit: &Unit, options: &[String], arch: &str) -> Option<PathBuf> {
        let mut hash = Sha256::new();
        let (options, compiler) =
            (all_options(options, arch).join(" "), format!("{:?}", compiler_version()));
        for part in [unit.name, unit.source, &options, &compiler] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        let name: String =
            hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        let folder = self.folder.as_ref()?;
        Some(folder.join(format!("{}-{arch}-{name}.cubin", unit.name.trim_end_matches(".cu"))))
    }
}

/// Whether a cached file looks complete enough to give it to the GPU's driver, which checks the rest: longer than 64
/// bytes, with the magic number of ELF.
fn is_machine_code(code: &[u8]) -> bool {
    code.len() > 64 && code.starts_with(b"\x7fELF")
}

/// Writes compiled kernels to a cache file under a temporary name and renames it, so that no other process reads a
/// partial file.
fn keep(path: &std::path::Path, code: &[u8]) {
    let part = path.with_extension(format!("{}.part", std::process::id()));
    let kept = path
        .parent()
        .map_or(Ok(()), fs::create_dir_all)
        .and_then(|()| fs::write(&part, code))
        .and_then(|()| fs::rename(&part, path));
    if let Err(error) = kept {
        let _ = fs::remove_file(&part);
        tracing::warn!(path = %path.display(), %error, "compiled kernels could not be cached");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::{ATTENTION_ROWS, KernelShape, ROWS};

    #[test]
    fn what_was_made_of_something_else_has_another_name() {
        let cache = KernelCache::new(Some("/kernels".into()));
        let path = |unit, queries, arch| {
            let shape = KernelShape { head_dim: 64, queries, q8: false };
            cache.path(unit, &shape.options(unit), arch).unwrap()
        };
        let rows = path(&ROWS, 1, "sm_90");
        assert!(rows.to_str().unwrap().starts_with("/kernels/rows-sm_90-"), "{rows:?}");
        assert_eq!(rows, path(&ROWS, 2, "sm_90"), "it does not depend on the model");
        assert_ne!(rows, path(&ROWS, 1, "sm_80"));
        assert_ne!(path(&ATTENTION_ROWS, 1, "sm_90"), path(&ATTENTION_ROWS, 2, "sm_90"));
        let q8 = KernelShape { head_dim: 64, queries: 1, q8: true }.options(&ATTENTION_ROWS);
        let q8 = cache.path(&ATTENTION_ROWS, &q8, "sm_90");
        assert_ne!(q8, Some(path(&ATTENTION_ROWS, 1, "sm_90")));
        assert_eq!(KernelCache::new(None).path(&ROWS, &[], "sm_90"), None);
    }

    #[test]
    fn what_is_kept_is_read_without_a_compiler_and_what_is_broken_is_not_believed() {
        let folder = std::env::temp_dir().join(format!("tiercel-kernels-{}", std::process::id()));
        let cache = KernelCache::new(Some(folder.clone()));
        let unit = Unit { name: "broken.cu", source: "not C++", kernels: &[], shaped: false };
        let path = cache.path(&unit, &[], "sm_90").unwrap();
        let code = [&b"\x7fELF"[..], &[7; 100]].concat();
        keep(&path, &code);
        assert_eq!(cache.get(&unit, &[], "sm_90"), Ok((code, true)));
        fs::write(&path, b"half").unwrap();
        // Expects an error: the cached file is damaged, so the source, which is not C++, is compiled again; that fails
        // with or without a compiler.
        assert!(cache.get(&unit, &[], "sm_90").is_err());
        cache.forget(&unit, &[], "sm_90");
        assert!(!path.exists());
        fs::remove_dir_all(folder).unwrap();
    }
}
