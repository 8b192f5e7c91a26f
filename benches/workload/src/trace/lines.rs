//! Reads a file of recorded traffic line by line.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

/// Maximum size of a trace file, bytes. One week of Azure's recorded traffic of 2024 takes 1.1 GB.
pub(super) const MAX_TRACE_BYTES: u64 = 2 << 30;
/// Maximum length of a line in a file of recorded traffic, bytes: enough for the `hash_ids` (one per prompt block) of
/// the longest possible prompt.
const MAX_LINE_BYTES: u64 = 64 << 10;

/// Reader of the lines of a text file, without their line ends (LF or CR LF).
pub(crate) struct Lines<R> {
    reader: BufReader<R>,
    bytes: Vec<u8>,
    number: u32,
    /// Maximum length of a line, bytes.
    most: u64,
}

/// Reason why the next line of a file of recorded traffic cannot be returned.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The file of recorded traffic cannot be read.
    Read(io::Error),
    /// A line of the file is too long, is no UTF-8, or is refused: the number of the line, and what is wrong with it.
    Line(u32, String),
}

/// Opens a file of recorded traffic for reading line by line.
pub(crate) fn open(path: &Path) -> io::Result<Lines<File>> {
    let file = File::open(path)?;
    let about = file.metadata()?;
    if !about.is_file() {
        return Err(io::Error::other("not a file"));
    }
    if about.len() > MAX_TRACE_BYTES {
        let problem = format!("larger than {MAX_TRACE_BYTES} bytes; cut out the part that is used");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, problem));
    }
    Ok(Lines::of(file))
}

impl<R: Read> Lines<R> {
    pub(crate) fn of(reader: R) -> Lines<R> {
        Lines { reader: BufReader::new(reader), bytes: Vec::new(), number: 0, most: MAX_LINE_BYTES }
    }

    /// Allows lines of up to `most` bytes.
    pub(crate) fn up_to(mut self, most: u64) -> Lines<R> {
        self.most = most;
        self
    }

    /// Returns the next line of the file and its number, counted from 1; `None` at the end of the file.
    pub(crate) fn next(&mut self) -> Result<Option<(u32, &str)>, Fault> {
        self.bytes.clear();
        let most = self.most;
        let mut limited = self.reader.by_ref().take(most + 1);
        limited.read_until(b'\n', &mut self.bytes).map_err(Fault::Read)?;
        if self.bytes.is_empty() {
            return Ok(None);
        }
        self.number += 1;
        if self.bytes.len() as u64 > most {
            return Err(Fault::Line(self.number, format!("has more than {most} bytes")));
        }
        let text = std::str::from_utf8(&self.bytes)
            .map_err(|_| Fault::Line(self.number, "is not UTF-8 text".into()))?;
        // Skip the Unicode byte order mark that spreadsheets put before the first line of a CSV file.
        let text = if self.number == 1 { text.trim_start_matches('\u{feff}') } else { text };
        Ok(Some((self.number, text.trim_end_matches(['\r', '\n']))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &[u8]) -> Result<Vec<(u32, String)>, Fault> {
        let mut lines = Lines::of(text);
        let mut found = Vec::new();
        while let Some((number, line)) = lines.next()? {
            found.push((number, line.to_owned()));
        }
        Ok(found)
    }

    #[test]
    fn lines_of_both_kinds_are_read_without_their_ends() {
        let found = all("\u{feff}a,b\r\n\n c\nd".as_bytes()).unwrap();
        let expected = [(1, "a,b"), (2, ""), (3, " c"), (4, "d")];
        assert_eq!(found, expected.map(|(number, text)| (number, text.to_owned())));
        assert_eq!(all(b"").unwrap(), []);
    }

    #[test]
    fn a_line_that_is_too_long_or_no_text_is_named() {
        let longest = vec![b'x'; MAX_LINE_BYTES as usize];
        assert_eq!(all(&longest).unwrap().len(), 1);
        let mut longer = b"a\n".to_vec();
        longer.extend([longest, vec![b'x']].concat());
        for (bytes, says) in [(longer, "more than 65536 bytes"), (b"a\n\xff\n".to_vec(), "UTF-8")] {
            let Err(Fault::Line(2, problem)) = all(&bytes) else { panic!("{says}") };
            assert!(problem.contains(says), "{problem}");
        }
    }
}
