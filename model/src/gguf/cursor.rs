//! A bounds-checked little-endian reader of a byte slice. A length that the file states is checked against the
//! remaining bytes before anything of that length is allocated.

use super::GgufError;
use std::ops::Range;

pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    pos: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Cursor<'a> {
        Cursor { bytes, pos: 0 }
    }

    pub(super) fn pos(&self) -> usize {
        self.pos
    }

    pub(super) fn remaining(&self) -> usize {
        self.bytes.len() - self.pos
    }

    /// Skips the next `len` bytes and returns their byte range in the slice that the cursor reads.
    pub(super) fn skip(&mut self, len: u64, what: &'static str) -> Result<Range<usize>, GgufError> {
        if len > self.remaining() as u64 {
            return Err(GgufError::Truncated { what });
        }
        let start = self.pos;
        self.pos += len as usize;
        Ok(start..self.pos)
    }

    fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], GgufError> {
        let range = self.skip(N as u64, what)?;
        Ok(self.bytes[range].try_into().expect("the range has N bytes"))
    }

    pub(super) fn u32(&mut self, what: &'static str) -> Result<u32, GgufError> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    pub(super) fn u64(&mut self, what: &'static str) -> Result<u64, GgufError> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    /// Reads a count of items (such as array elements) of at least `min_bytes` bytes each. Refuses a count above
    /// `limit`, and a count whose items do not fit in the remaining bytes.
    pub(super) fn count(
        &mut self,
        what: &'static str,
        min_bytes: usize,
        limit: u64,
    ) -> Result<usize, GgufError> {
        let count = self.u64(what)?;
        let limit = limit.min((self.remaining() / min_bytes) as u64);
        if count > limit {
            return Err(GgufError::TooMany { what, count, limit });
        }
        Ok(count as usize)
    }

    /// Reads a length-prefixed UTF-8 string of at most `limit` bytes and returns its byte range in the slice that the
    /// cursor reads.
    pub(super) fn string(
        &mut self,
        what: &'static str,
        limit: u64,
    ) -> Result<Range<usize>, GgufError> {
        let len = self.u64(what)?;
        if len > limit {
            return Err(GgufError::TooMany { what, count: len, limit });
        }
        let range = self.skip(len, what)?;
        std::str::from_utf8(&self.bytes[range.clone()]).map_err(|_| GgufError::Utf8 { what })?;
        Ok(range)
    }

    /// Reads a length-prefixed UTF-8 string of at most `limit` bytes and returns an owned copy.
    pub(super) fn owned(&mut self, what: &'static str, limit: u64) -> Result<String, GgufError> {
        let range = self.string(what, limit)?;
        String::from_utf8(self.bytes[range].to_vec()).map_err(|_| GgufError::Utf8 { what })
    }
}
