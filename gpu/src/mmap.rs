//! Read-only memory maps of files. Model weights reach a device through such a map, without a second copy of the file
//! in memory.
#![expect(unsafe_code, reason = "mapping a file is unsafe: its bytes belong to the file system")]

use memmap2::Mmap;
use std::fs::{self, File};
use std::io;
use std::path::Path;

/// Read-only memory map of a regular file. The file must not be changed while it is mapped. The server never writes a
/// model file in place: it replaces model files by rename, which leaves existing maps intact.
#[derive(Debug)]
pub struct MappedFile {
    map: Mmap,
}

impl MappedFile {
    /// Maps the whole file at `path` into memory.
    ///
    /// # Errors
    /// The file cannot be opened or mapped, or is not a regular file (a FIFO would block for ever).
    pub fn open(path: &Path) -> io::Result<MappedFile> {
        if !fs::metadata(path)?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        let file = File::open(path)?;
        // SAFETY: the map is read-only and lives as long as `MappedFile`, which hands out only `&[u8]` bound to its own
        // lifetime. Another process may still change the file. After an overwrite, readers see old or new bytes:
        // weights, never pointers, lengths or UTF-8 that were checked earlier and are trusted later without a check.
        // After a truncation, a read beyond the new end kills this process with SIGBUS. This process cannot prevent
        // such changes of a file that it does not own exclusively. They need write access to the model, and a program
        // with that access is as powerful as this process itself.
        let map = unsafe { Mmap::map(&file)? };
        Ok(MappedFile { map })
    }
}

impl AsRef<[u8]> for MappedFile {
    fn as_ref(&self) -> &[u8] {
        &self.map
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    #[test]
    fn maps_this_source_file_byte_for_byte() {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src/mmap.rs");
        let mapped = MappedFile::open(&path).expect("the source exists");
        assert_eq!(mapped.as_ref(), include_bytes!("mmap.rs"));
    }

    #[test]
    fn refuses_directories_and_missing_files() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR"));
        let error = MappedFile::open(dir).expect_err("a directory cannot be mapped");
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        let error = MappedFile::open(&dir.join("no such file")).expect_err("missing");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
