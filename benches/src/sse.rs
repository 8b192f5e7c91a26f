//! Parser of server-sent events that accepts the byte stream in pieces of any size.

/// Maximum size of a server-sent event, bytes.
pub(crate) const MAX_EVENT_BYTES: usize = 256 << 10;

/// Incremental parser that splits a byte stream into the `data` of its server-sent events. Comments and other fields
/// are skipped.
#[derive(Debug, Default)]
pub(crate) struct SseReader {
    line: Vec<u8>,
    data: Vec<u8>,
    has_data: bool,
    after_cr: bool,
}

/// Error: a server-sent event or a line of it is longer than [`MAX_EVENT_BYTES`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the server sent an event of more than {MAX_EVENT_BYTES} bytes")]
pub(crate) struct EventTooLong;

impl SseReader {
    /// Parses the next bytes of a stream and calls `on_event` with the data of each server-sent event that is complete.
    /// `on_event` returns whether to parse the remaining bytes.
    pub(crate) fn push(
        &mut self,
        bytes: &[u8],
        mut on_event: impl FnMut(&[u8]) -> bool,
    ) -> Result<(), EventTooLong> {
        for &byte in bytes {
            // Lines of a server-sent event end with LF, CR or CR LF. The CR and the LF of one line end may arrive in
            // different pieces, so an LF right after a CR is skipped.
            if std::mem::take(&mut self.after_cr) && byte == b'\n' {
                continue;
            }
            match byte {
                b'\n' | b'\r' => {
                    self.after_cr = byte == b'\r';
                    if !self.end_line(&mut on_event)? {
                        return Ok(());
                    }
                }
                _ if self.line.len() == MAX_EVENT_BYTES => return Err(EventTooLong),
                _ => self.line.push(byte),
            }
        }
        Ok(())
    }

    fn end_line(&mut self, on_event: &mut impl FnMut(&[u8]) -> bool) -> Result<bool, EventTooLong> {
        if self.line.is_empty() {
            let go_on = !std::mem::take(&mut self.has_data) || on_event(&self.data);
            self.data.clear();
            return Ok(go_on);
        }
        if let Some(value) = self.line.strip_prefix(b"data:") {
            let value = value.strip_prefix(b" ").unwrap_or(value);
            if self.data.len() + value.len() + 1 > MAX_EVENT_BYTES {
                return Err(EventTooLong);
            }
            if std::mem::replace(&mut self.has_data, true) {
                self.data.push(b'\n');
            }
            self.data.extend_from_slice(value);
        }
        self.line.clear();
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pieces: &[&[u8]]) -> Vec<String> {
        let mut reader = SseReader::default();
        let mut events = Vec::new();
        for piece in pieces {
            reader
                .push(piece, |data| {
                    events.push(String::from_utf8(data.to_vec()).unwrap());
                    true
                })
                .unwrap();
        }
        events
    }

    #[test]
    fn events_do_not_depend_on_the_pieces() {
        let stream = b": hello\r\n\r\ndata: {\"a\":1}\r\n\r\nevent: x\ndata:two\ndata:  lines\n\n\
                       id: 7\n\ndata: cr\r\ndata: lf\r\n\r\ndata\n\rdata: \xc3\xa9\r\rdata: [DONE]\n\ndata: cut off";
        let whole = read(&[stream]);
        assert_eq!(whole, ["{\"a\":1}", "two\n lines", "cr\nlf", "é", "[DONE]"]);
        for size in 1..stream.len() {
            let pieces: Vec<&[u8]> = stream.chunks(size).collect();
            assert_eq!(read(&pieces), whole, "pieces of {size}");
        }
    }

    #[test]
    fn reading_stops_when_told() {
        let mut seen = 0;
        let mut reader = SseReader::default();
        reader
            .push(b"data: 1\n\ndata: 2\n\n", |_| {
                seen += 1;
                false
            })
            .unwrap();
        assert_eq!(seen, 1);
    }

    #[test]
    fn length_is_bounded_in_one_line_and_over_many() {
        let line = [b"data:".as_slice(), &vec![b'x'; MAX_EVENT_BYTES]].concat();
        assert_eq!(SseReader::default().push(&line, |_| true), Err(EventTooLong));
        let lines = b"data: 0123456789\n".repeat(MAX_EVENT_BYTES / 10);
        assert_eq!(SseReader::default().push(&lines, |_| true), Err(EventTooLong));
    }
}
