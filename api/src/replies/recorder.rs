//! Records the answers of a running server in a file. A mock device can read its replies from this file. A separate
//! thread writes the file. While [`MAX_WAITING`] answers wait for the thread, further answers are left out, so that no
//! client waits for the file.

use super::file::{Finish, MAX_FILE_BYTES, MAX_MATCH_BYTES, MAX_REPLIES, MAX_TEXT_BYTES};
use super::question::Question;
use serde::Serialize;
use std::collections::HashSet;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

/// Most answers that wait to be written.
const MAX_WAITING: usize = 64;
/// First line of a recording.
const HEAD: &str =
    "# Answers of a server, for `tiercel serve --device mock:tiny --replies FILE`.\n";

/// Reason why answers cannot be recorded. The message is one line and names the fault.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The file could not be created.
    #[error(
        "cannot create the file {path} for recorded answers: {source}; --record names a new file"
    )]
    Create {
        /// Path of the file for recorded answers.
        path: PathBuf,
        /// I/O error from creating the file for recorded answers.
        source: std::io::Error,
    },
    /// The operating system refused to start the thread that writes the file.
    #[error("cannot start the thread that records answers: {0}")]
    Thread(std::io::Error),
}

/// Recorder of a server's answers. Dropping the recorder waits until the thread has written all waiting answers.
#[derive(Debug)]
pub(crate) struct Recorder {
    /// Queue of answers for the thread; `None` while the recorder is being dropped.
    answers: Option<SyncSender<Answer>>,
    thread: Option<JoinHandle<()>>,
    left_out: AtomicU64,
}

/// A complete answer, in the form of the file with replies.
#[derive(Debug, Serialize)]
struct Answer {
    exact: String,
    turn: u32,
    text: String,
    finish: Finish,
}

/// Listener that collects the text of one answer while the answer is generated.
#[derive(Debug)]
pub(crate) struct Listener {
    recorder: Arc<Recorder>,
    question: Question,
    /// Text of the answer so far. The text can exceed the longest recorded text by at most one piece.
    text: String,
}

impl Recorder {
    /// Creates the file and starts the thread that writes the file.
    ///
    /// # Errors
    /// [`RecordError`] if the file exists or cannot be created, or if the thread cannot be started.
    pub(crate) fn create(path: &Path) -> Result<Recorder, RecordError> {
        let failed = |source| RecordError::Create { path: path.to_owned(), source };
        let mut file = File::create_new(path).map_err(failed)?;
        file.write_all(HEAD.as_bytes()).map_err(failed)?;
        let (answers, queue) = sync_channel(MAX_WAITING);
        let bytes = HEAD.len() as u64;
        let writer = Writer { path: path.to_owned(), file, bytes, written: HashSet::new() };
        let thread = std::thread::Builder::new()
            .name("tiercel-record".into())
            .spawn(move || writer.run(&queue))
            .map_err(RecordError::Thread)?;
        tracing::info!(path = %path.display(), "recording answers with the texts of users");
        Ok(Recorder { answers: Some(answers), thread: Some(thread), left_out: AtomicU64::new(0) })
    }

    /// Begins to listen to the answer to a question.
    pub(crate) fn listen(self: &Arc<Self>, question: Question) -> Listener {
        Listener { recorder: self.clone(), question, text: String::new() }
    }

    fn send(&self, answer: Answer) {
        let fits = answer.exact.len() <= MAX_MATCH_BYTES && answer.text.len() <= MAX_TEXT_BYTES;
        let sent =
            fits && self.answers.as_ref().is_some_and(|answers| answers.try_send(answer).is_ok());
        if !sent && self.left_out.fetch_add(1, Ordering::Relaxed) == 0 {
            tracing::warn!(
                "an answer is not recorded, because it is too long or answers end faster than they are written, or the \
                 recording has ended; further ones are only counted"
            );
        }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        drop(self.answers.take());
        // A panic of the thread has been printed already.
        let _ = self.thread.take().map(JoinHandle::join);
        let left_out = self.left_out.load(Ordering::Relaxed);
        if left_out > 0 {
            tracing::warn!(left_out, "answers were not recorded");
        }
    }
}

impl Listener {
    /// Appends a piece of text to the answer.
    pub(crate) fn push(&mut self, text: &str) {
        // A text beyond the limit shows that the answer is too long, so the rest of the answer is not needed.
        if self.text.len() <= MAX_TEXT_BYTES {
            self.text.push_str(text);
        }
    }

    /// Records the answer, which is complete.
    pub(crate) fn finish(self, finish: Finish) {
        let Listener { recorder, question: Question { user, turn }, text } = self;
        recorder.send(Answer { exact: user, turn, text, finish });
    }
}

/// Thread that writes answers to the file.
struct Writer {
    path: PathBuf,
    file: File,
    /// Length of the file, bytes.
    bytes: u64,
    /// Questions whose answers are in the file. Of several answers to a question, the first is recorded.
    written: HashSet<(String, u32)>,
}

impl Writer {
    fn run(mut self, answers: &Receiver<Answer>) {
        self.write_all(answers);
        if self.written.is_empty() {
            // Remove the file of a server that gave no answer, for example because the server could not start. Ignore
            // an error: the file then stays.
            let _ = std::fs::remove_file(&self.path);
        }
    }

    fn write_all(&mut self, answers: &Receiver<Answer>) {
        for answer in answers {
            match self.write(answer) {
                Ok(true) => {}
                Ok(false) => {
                    tracing::warn!("the recording of answers is full and has ended");
                    return;
                }
                Err(error) => {
                    tracing::error!("the recording of answers has ended: {error}");
                    return;
                }
            }
        }
    }

    /// Writes an answer, unless the file has an answer to the same question. Returns false if the file is full.
    fn write(&mut self, answer: Answer) -> std::io::Result<bool> {
        #[derive(Serialize)]
        struct Document {
            reply: [Answer; 1],
        }
        let question = (answer.exact.clone(), answer.turn);
        if self.written.contains(&question) {
            return Ok(true);
        }
        let document = toml::to_string_pretty(&Document { reply: [answer] });
        let text = format!("\n{}", document.map_err(std::io::Error::other)?);
        self.bytes += text.len() as u64;
        if self.bytes > MAX_FILE_BYTES || self.written.len() == MAX_REPLIES {
            return Ok(false);
        }
        self.written.insert(question);
        self.file.write_all(text.as_bytes())?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replies::file;

    fn record(answers: &[(&str, u32, &str, Finish)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let recorder = Arc::new(Recorder::create(&folder.path().join("replies.toml")).unwrap());
        for (user, turn, text, finish) in answers {
            let mut listener = recorder.listen(Question { user: (*user).into(), turn: *turn });
            text.chars().for_each(|c| listener.push(c.encode_utf8(&mut [0; 4])));
            listener.finish(*finish);
        }
        folder
    }

    #[test]
    fn what_is_recorded_is_read_as_replies() {
        let hard = "'''\n\"\"\" \\ \u{7f}\t<tool_call>\r\n{\"a\": \"ü🌦\"}\n";
        let folder = record(&[
            ("Hi", 1, "Hello!", Finish::Stop),
            ("Hi", 1, "another", Finish::Stop),
            ("Hi", 2, hard, Finish::Length),
            (hard, 1, "", Finish::Stop),
        ]);
        let replies = file::read(&folder.path().join("replies.toml")).unwrap();
        let texts: Vec<_> = replies.iter().map(|reply| (reply.turn, reply.text.as_str())).collect();
        assert_eq!(texts, [(Some(1), "Hello!"), (Some(2), hard), (Some(1), "")]);
        assert!(matches!(&replies[2].test, file::Test::Exact(text) if text == hard));
        assert_eq!(replies[1].finish, Finish::Length);
    }

    #[test]
    fn a_recorder_without_answers_leaves_no_file() {
        let folder = record(&[]);
        assert!(!folder.path().join("replies.toml").exists());
    }

    #[test]
    fn an_answer_that_is_too_long_is_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("replies.toml");
        let recorder = Arc::new(Recorder::create(&path).unwrap());
        for (user, piece) in
            [(1, MAX_TEXT_BYTES + 1), (MAX_MATCH_BYTES + 1, 1), (2, MAX_TEXT_BYTES)]
        {
            let mut listener = recorder.listen(Question { user: "a".repeat(user), turn: 1 });
            listener.push(&"b".repeat(piece));
            listener.push("");
            listener.finish(Finish::Stop);
        }
        assert_eq!(recorder.left_out.load(Ordering::Relaxed), 2);
        drop(recorder);
        let replies = file::read(&path).unwrap();
        assert_eq!((replies.len(), replies[0].text.len()), (1, MAX_TEXT_BYTES));
        let error = Recorder::create(&path).unwrap_err().to_string();
        assert!(error.contains("--record names a new file") && !error.contains('\n'), "{error}");
    }

    #[test]
    fn a_full_recording_ends_and_can_be_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("replies.toml");
        let file = File::create_new(&path).unwrap();
        let mut writer = Writer { path: path.clone(), file, bytes: 0, written: HashSet::new() };
        let answer = |i: usize| Answer {
            exact: i.to_string(),
            turn: 1,
            text: "b".repeat(MAX_TEXT_BYTES),
            finish: Finish::Stop,
        };
        let count = (0..).take_while(|i| writer.write(answer(*i)).unwrap()).count();
        assert_eq!(count, 63, "of 16 MiB");
        assert_eq!(file::read(&path).unwrap().len(), 63);
    }
}
