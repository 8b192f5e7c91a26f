//! Reads the replies of a mock device from a TOML file, which has one table `[[reply]]` for each reply.

use regex::{Regex, RegexBuilder};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};
use toml::Spanned;

/// Largest file with replies, bytes.
pub(crate) const MAX_FILE_BYTES: u64 = 16 << 20;
/// Most replies in a file.
pub(crate) const MAX_REPLIES: usize = 4096;
/// Longest text of a reply, bytes.
pub(crate) const MAX_TEXT_BYTES: usize = 256 << 10;
/// Longest text that a reply looks for with `exact` or `contains`, bytes.
pub(crate) const MAX_MATCH_BYTES: usize = 64 << 10;
/// Longest regular expression, bytes.
const MAX_REGEX_BYTES: usize = 4096;
/// Most characters `$` in the text of a reply with `expand`. This limit bounds the length of the answer.
const MAX_MARKS: usize = 16;
/// Most memory that a compiled regular expression takes, bytes.
const MAX_COMPILED_BYTES: usize = 256 << 10;

/// A reply of a mock device, and the condition that a prompt must meet to get the reply.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(super) test: Test,
    pub(super) place: Place,
    /// Number of the assistant's answer since the user's last message, from 1 on; `None` for any number.
    pub(super) turn: Option<u32>,
    pub(super) text: String,
    /// Whether `$1`, `${name}` and so on in the text stand for the texts that groups of the regular expression matched.
    pub(super) expand: bool,
    pub(super) finish: Finish,
}

/// Text or pattern that a reply looks for in a prompt.
#[derive(Debug)]
pub(super) enum Test {
    Any,
    Exact(String),
    Contains(String),
    Regex(Regex),
}

/// Part of a prompt in which a reply looks for its text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Place {
    /// The user's last message.
    #[default]
    User,
    /// All messages.
    Prompt,
}

/// Finish reason of a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Finish {
    #[default]
    Stop,
    Length,
}

/// Reason why a file with replies cannot be used. The message is one line and names the fault.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RepliesError {
    #[error("cannot read the replies file {path}: {source}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("the replies file {path} has more than {MAX_FILE_BYTES} bytes")]
    TooLarge { path: PathBuf },
    #[error("{path}, line {line}: {problem}")]
    Line { path: PathBuf, line: usize, problem: String },
    #[error("the replies file {path} has no [[reply]]")]
    Empty { path: PathBuf },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    #[serde(default)]
    reply: Vec<Spanned<Entry>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    exact: Option<Spanned<String>>,
    contains: Option<Spanned<String>>,
    regex: Option<Spanned<String>>,
    #[serde(default, rename = "in")]
    place: Place,
    turn: Option<Spanned<u32>>,
    text: Spanned<String>,
    #[serde(default)]
    expand: bool,
    #[serde(default)]
    finish: Finish,
}

/// A problem in a file: the range of the problem in the text of the file, bytes, and a message.
type Problem = (Range<usize>, String);

/// Reads a file with replies. The mock device tries the replies in the order of the file.
pub(crate) fn read(path: &Path) -> Result<Vec<Reply>, RepliesError> {
    let failed = |source| RepliesError::Read { path: path.to_owned(), source };
    let file = File::open(path).map_err(failed)?;
    let mut text = String::new();
    file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text).map_err(failed)?;
    if text.len() as u64 > MAX_FILE_BYTES {
        return Err(RepliesError::TooLarge { path: path.to_owned() });
    }
    let replies = parse(&text).map_err(|(at, problem)| {
        let before = text.get(..at.start).unwrap_or(&text);
        let line = before.matches('\n').count() + 1;
        RepliesError::Line { path: path.to_owned(), line, problem }
    })?;
    if replies.is_empty() {
        return Err(RepliesError::Empty { path: path.to_owned() });
    }
    Ok(replies)
}

fn parse(text: &str) -> Result<Vec<Reply>, Problem> {
    let document: Document = toml::from_str(text).map_err(|error| {
        // Join the lines of the TOML parser's message into one line.
        let problem = error.message().split_whitespace().collect::<Vec<_>>().join(" ");
        (error.span().unwrap_or_default(), problem)
    })?;
    let count = document.reply.len();
    if let Some(entry) = document.reply.get(MAX_REPLIES) {
        return Err((
            entry.span(),
            format!("there are {count} replies; allowed are {MAX_REPLIES}"),
        ));
    }
    let mut replies: Vec<Reply> = Vec::with_capacity(count);
    for entry in document.reply {
        let at = entry.span();
        let always = |reply: &Reply| matches!(reply.test, Test::Any) && reply.turn.is_none();
        if let Some(before) = replies.iter().position(always) {
            let problem = format!(
                "this reply is never reached, because reply {} answers every prompt; move that reply to the \
                 end of the file",
                before + 1
            );
            return Err((at, problem));
        }
        replies.push(entry.into_inner().checked(at)?);
    }
    Ok(replies)
}

impl Entry {
    fn checked(self, at: Range<usize>) -> Result<Reply, Problem> {
        let Entry { exact, contains, regex, place, turn, text, expand, finish } = self;
        let test = match (exact, contains, regex) {
            (None, None, None) => Test::Any,
            (Some(exact), None, None) => Test::Exact(sized("exact", exact, MAX_MATCH_BYTES)?),
            (None, Some(part), None) => Test::Contains(sized("contains", part, MAX_MATCH_BYTES)?),
            (None, None, Some(regex)) => {
                let at = regex.span();
                let pattern = sized("regex", regex, MAX_REGEX_BYTES)?;
                Test::Regex(compiled(&pattern).map_err(|problem| (at, problem))?)
            }
            _ => return Err((at, "a reply has one of exact, contains and regex".to_owned())),
        };
        if let Some(turn) = turn.as_ref().filter(|turn| *turn.get_ref() == 0) {
            return Err((turn.span(), "turn is 0; allowed: 1 and up".to_owned()));
        }
        let turn = turn.map(Spanned::into_inner);
        if expand && !matches!(test, Test::Regex(_)) {
            return Err((
                at,
                "expand needs a regex, whose groups it inserts into the text".to_owned(),
            ));
        }
        let marks = text.get_ref().matches('$').count();
        if expand && marks > MAX_MARKS {
            let problem =
                format!("text has {marks} times a $; allowed with expand are {MAX_MARKS}");
            return Err((text.span(), problem));
        }
        let text = sized("text", text, MAX_TEXT_BYTES)?;
        Ok(Reply { test, place, turn, text, expand, finish })
    }
}

fn sized(field: &str, text: Spanned<String>, most: usize) -> Result<String, Problem> {
    match text.get_ref().len() {
        len if len > most => {
            Err((text.span(), format!("{field} has {len} bytes; allowed are {most}")))
        }
        _ => Ok(text.into_inner()),
    }
}

fn compiled(pattern: &str) -> Result<Regex, String> {
    let built = RegexBuilder::new(pattern).size_limit(MAX_COMPILED_BYTES).build();
    built.map_err(|error| {
        // The last line of the message names the fault, and the lines before the last repeat the pattern.
        let error = error.to_string();
        let why = error.lines().last().unwrap_or_default();
        format!("regex: {}", why.trim().trim_start_matches("error: "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(text: &str) -> String {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        std::io::Write::write_all(&mut file, text.as_bytes()).unwrap();
        let error = read(file.path()).expect_err(text).to_string();
        assert!(!error.contains('\n'), "{error}");
        assert!(error.contains(file.path().to_str().unwrap()), "{error}");
        error
    }

    #[test]
    fn replies_are_read_in_their_order_with_texts_of_several_lines() {
        let text = "\
            [[reply]]\nexact = 'Hi'\nturn = 2\ntext = '''\n<think>\na\n</think>'''\n\
            [[reply]]\nregex = '(?i)weather in (\\w+)'\nin = 'prompt'\ntext = 'Sun'\nfinish = 'length'\n\
            [[reply]]\ntext = ''\n";
        let replies = parse(text).unwrap();
        assert!(matches!(&replies[0].test, Test::Exact(hi) if hi == "Hi"));
        assert_eq!((replies[0].turn, replies[0].place), (Some(2), Place::User));
        assert_eq!(replies[0].text, "<think>\na\n</think>");
        assert!(matches!(&replies[1].test, Test::Regex(_)));
        assert_eq!((replies[1].place, replies[1].finish), (Place::Prompt, Finish::Length));
        assert!(matches!(&replies[2].test, Test::Any));
        assert_eq!(replies.len(), 3);
    }

    #[test]
    fn an_error_has_the_line_and_the_field() {
        for (text, line, says) in [
            ("[[reply]]\ntext = 7", 2, "expected a string"),
            ("[[reply]]\nexact = 'a'", 1, "missing field `text`"),
            ("[[reply]]\ntext = ''\n\nexat = 'a'", 4, "unknown field `exat`"),
            ("[[reply]]\ntext = ''\nfinish = 'end'", 3, "unknown variant `end`"),
            ("[[reply]]\ntext = ''\nin = 'system'", 3, "unknown variant `system`"),
            ("[[reply]]\ntext = ''\nturn = 0", 3, "turn is 0; allowed: 1 and up"),
            (
                "\n[[reply]]\nexact = 'a'\nregex = 'b'\ntext = ''",
                2,
                "one of exact, contains and regex",
            ),
            ("[[reply]]\ntext = ''\nregex = '(a'", 3, "regex: unclosed group"),
            ("[[reply]]\ntext = ''\nregex = '(a{999}){999}'", 3, "regex: "),
            (
                "[[reply]]\ntext = ''\n[[reply]]\nexact = 'a'\ntext = ''",
                3,
                "reply 1 answers every prompt",
            ),
            ("[[reply]]\nexact = 'a'\ntext = '$1'\nexpand = true", 1, "expand needs a regex"),
            ("[[reply]\ntext = ''", 1, ""),
            ("[[replies]]\ntext = ''", 1, "unknown field `replies`"),
        ] {
            let error = problem(text);
            assert!(error.contains(&format!(", line {line}: ")) && error.contains(says), "{error}");
        }
        assert!(problem("").contains("has no [[reply]]"));
        let missing = read(Path::new("/nonexistent/replies.toml")).unwrap_err().to_string();
        assert!(missing.contains("/nonexistent/replies.toml"), "{missing}");
    }

    #[test]
    fn texts_and_numbers_have_limits() {
        let with = |field: &str, len: usize| {
            let text = if field == "text" { "" } else { "text = ''\n" };
            format!("[[reply]]\n{text}{field} = '{}'\n", "a".repeat(len))
        };
        for (field, most) in [
            ("text", MAX_TEXT_BYTES),
            ("exact", MAX_MATCH_BYTES),
            ("contains", MAX_MATCH_BYTES),
            ("regex", MAX_REGEX_BYTES),
        ] {
            assert!(parse(&with(field, most)).is_ok(), "{field}");
            let error = problem(&with(field, most + 1));
            let says = format!("{field} has {} bytes; allowed are {most}", most + 1);
            assert!(error.contains(&says), "{error}");
        }
        let many = |count: usize| "[[reply]]\nexact = 'a'\ntext = ''\n".repeat(count);
        assert!(parse(&many(MAX_REPLIES)).is_ok());
        let error = problem(&many(MAX_REPLIES + 1));
        assert!(error.contains("line 12289: there are 4097 replies; allowed are 4096"), "{error}");
        let expanded = |count: usize| {
            format!("[[reply]]\nregex = 'a'\nexpand = true\ntext = '{}'\n", "$0".repeat(count))
        };
        assert!(parse(&expanded(MAX_MARKS)).is_ok());
        let error = problem(&expanded(MAX_MARKS + 1));
        assert!(
            error.contains("line 4: text has 17 times a $; allowed with expand are 16"),
            "{error}"
        );
        let comment = "#".repeat(MAX_FILE_BYTES as usize + 1);
        assert!(problem(&comment).contains("more than 16777216 bytes"));
    }
}
