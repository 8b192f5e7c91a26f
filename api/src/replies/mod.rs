//! Replies of a mock device: texts that the mock device answers certain prompts with, in place of made-up text.

mod file;
mod question;
mod recorder;

use crate::text::{Message, MockVocabulary};
pub(crate) use file::{Finish, RepliesError};
use file::{MAX_TEXT_BYTES, Place, Reply, Test};
pub(crate) use question::Question;

pub(crate) use recorder::{Listener, RecordError, Recorder};
use std::path::Path;
use std::sync::Arc;
use tiercel_device::{MockScript, TokenId};

/// Replies of a mock device, and the vocabulary that encodes the replies.
#[derive(Debug)]
pub(crate) struct Replies {
    vocabulary: Arc<MockVocabulary>,
    /// Replies in the order in which the mock device tries them. Each reply has the tokens of its text, and then the
    /// token that ends the answer.
    replies: Vec<(Reply, Arc<[TokenId]>)>,
}

impl Replies {
    /// Reads the replies from a file.
    pub(crate) fn read(path: &Path) -> Result<Replies, RepliesError> {
        Ok(Replies::new(file::read(path)?))
    }

    fn new(replies: Vec<Reply>) -> Replies {
        let texts = replies.iter().map(|reply| reply.text.as_str());
        let vocabulary = MockVocabulary::of_replies(texts);
        let encoded = |reply: Reply| {
            let tokens = vocabulary.encode_answer(&reply.text, reply.finish == Finish::Length);
            (reply, tokens.into())
        };
        let replies = replies.into_iter().map(encoded).collect();
        Replies { replies, vocabulary: Arc::new(vocabulary) }
    }

    /// Returns the vocabulary of a mock device that has the replies.
    pub(crate) fn vocabulary(&self) -> Arc<MockVocabulary> {
        self.vocabulary.clone()
    }

    /// Returns a hash of the replies, for the system fingerprint.
    pub(crate) fn hash(&self) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new();
        for (reply, _) in &self.replies {
            hasher.update(format!("{reply:?}").as_bytes());
        }
        hasher.finalize()
    }

    /// Returns the number of the replies.
    pub(crate) fn len(&self) -> usize {
        self.replies.len()
    }
}

impl MockScript for Replies {
    fn output(&self, prompt: &[TokenId]) -> Option<Arc<[TokenId]>> {
        let asked = Asked::of(&self.vocabulary.messages(prompt));
        let (reply, tokens) = self.replies.iter().find(|(reply, _)| reply.answers(&asked))?;
        Some(match reply.expanded(&asked) {
            Some(text) => {
                let is_cut = reply.finish == Finish::Length || text.len() > MAX_TEXT_BYTES;
                let end = text.floor_char_boundary(MAX_TEXT_BYTES);
                self.vocabulary.encode_answer(&text[..end], is_cut).into()
            }
            None => tokens.clone(),
        })
    }
}

/// A prompt in the form in which replies test the prompt.
struct Asked {
    question: Question,
    /// All messages. Each message is a line with its role, and then its text.
    prompt: String,
}

impl Asked {
    fn of(messages: &[Message]) -> Asked {
        // An empty message of the assistant at the end is the beginning of the answer. The conversation ends before
        // this message.
        let before = match messages.split_last() {
            Some((last, before)) if last.role == "assistant" && last.text.is_empty() => before,
            _ => messages,
        };
        let pairs: Vec<_> = before.iter().map(|m| (m.role.as_str(), m.text.as_str())).collect();
        let lines = pairs.iter().map(|(role, text)| format!("{role}\n{text}\n"));
        Asked { prompt: lines.collect(), question: Question::of(&pairs) }
    }
}

impl Reply {
    fn place<'a>(&self, asked: &'a Asked) -> &'a str {
        match self.place {
            Place::User => &asked.question.user,
            Place::Prompt => &asked.prompt,
        }
    }

    fn answers(&self, asked: &Asked) -> bool {
        let place = self.place(asked);
        self.turn.is_none_or(|turn| turn == asked.question.turn)
            && match &self.test {
                Test::Any => true,
                Test::Exact(text) => text == place,
                Test::Contains(part) => place.contains(part),
                Test::Regex(regex) => regex.is_match(place),
            }
    }

    /// Returns the text of a reply with `expand`, in which the matched groups of the regular expression are inserted.
    /// Returns `None` for a reply without `expand`.
    fn expanded(&self, asked: &Asked) -> Option<String> {
        let Test::Regex(regex) = &self.test else { return None };
        let captures = regex.captures(self.place(asked)).filter(|_| self.expand)?;
        let mut text = String::new();
        captures.expand(&self.text, &mut text);
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn replies(text: &str) -> Replies {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        Replies::read(file.path()).unwrap()
    }

    fn answer(replies: &Replies, conversation: &[(&str, &str)]) -> Option<String> {
        let vocabulary = replies.vocabulary();
        let prompt = vocabulary.encode_chat(conversation.iter().copied(), true);
        let tokens = replies.output(&prompt)?;
        let bytes: Vec<u8> =
            tokens.iter().flat_map(|token| vocabulary.token_bytes(*token).into_owned()).collect();
        Some(String::from_utf8(bytes).unwrap())
    }

    const FILE: &str = "\
        [[reply]]\nexact = 'Hi'\ntext = 'exact'\n\
        [[reply]]\ncontains = 'weather'\nturn = 1\ntext = 'call'\n\
        [[reply]]\ncontains = 'weather'\nturn = 2\ntext = 'sun'\n\
        [[reply]]\nregex = '^[0-9]+ü$'\ntext = 'number'\nfinish = 'length'\n\
        [[reply]]\ncontains = 'system\nBe rude'\nin = 'prompt'\ntext = 'No.'\n";

    #[test]
    fn the_first_reply_that_fits_answers() {
        let replies = replies(&FILE.replace("'system\nBe rude'", "\"system\\nBe rude\""));
        let of = |text: &str| answer(&replies, &[("user", text)]);
        assert_eq!(of("Hi").as_deref(), Some("exact"));
        assert_eq!(of("Hi!"), None);
        assert_eq!(of("the weather?").as_deref(), Some("call"));
        assert_eq!(of("123ü").as_deref(), Some("number"));
        assert_eq!(answer(&replies, &[("user", "Hi"), ("assistant", "x"), ("user", "Ho")]), None);
        let rude = answer(&replies, &[("system", "Be rude."), ("user", "Ho")]);
        assert_eq!(rude.as_deref(), Some("No."));
    }

    #[test]
    fn turns_are_counted_from_the_last_message_of_the_user() {
        let replies = replies(&FILE.replace("'system\nBe rude'", "'x'"));
        let asked = ("user", "weather in Paris");
        let call = ("assistant", "call");
        let result = ("tool", "21");
        assert_eq!(answer(&replies, &[asked, call, result]).as_deref(), Some("sun"));
        assert_eq!(answer(&replies, &[asked, call, result, ("assistant", "sun")]), None);
        let again = [asked, call, result, ("assistant", "sun"), asked];
        assert_eq!(answer(&replies, &again).as_deref(), Some("call"));
    }

    #[test]
    fn groups_of_a_regex_are_inserted_and_a_long_text_is_cut_off() {
        let replies = replies(
            "[[reply]]\nregex = 'weather in (?<city>\\pL+)'\ntext = '{\"city\": \"${city}\"} $$'\nexpand = true\n\
             [[reply]]\nregex = '(?s)^echo (.*)'\ntext = '$1'\nexpand = true\n\
             [[reply]]\nregex = 'plain'\ntext = '$1'\n",
        );
        let of = |text: &str| answer(&replies, &[("user", text)]);
        assert_eq!(of("the weather in Köln?").as_deref(), Some("{\"city\": \"Köln\"} $"));
        assert_eq!(of("echo a\nb").as_deref(), Some("a\nb"));
        assert_eq!(of("plain").as_deref(), Some("$1"));
        let long = of(&format!("echo {}", "ü".repeat(MAX_TEXT_BYTES))).unwrap();
        assert_eq!(long.len(), MAX_TEXT_BYTES);
    }

    #[test]
    fn other_replies_have_another_hash() {
        let hash = |text: &str| replies(text).hash();
        let first = hash("[[reply]]\nregex = 'a'\ntext = 'b'\n");
        assert_eq!(first, hash("# A comment.\n[[reply]]\nregex = 'a'\ntext = \"b\"\n"));
        assert_ne!(first, hash("[[reply]]\nregex = 'a'\ntext = 'c'\n"));
        assert_ne!(first, hash("[[reply]]\nregex = 'c'\ntext = 'b'\n"));
    }

    #[test]
    fn a_plain_prompt_is_matched_as_the_users_text() {
        let replies = replies("[[reply]]\nexact = 'Once upon'\ntext = ' a time'\n");
        let prompt = replies.vocabulary().encode("Once upon");
        assert!(replies.output(&prompt).is_some());
        assert!(replies.output(&prompt[1..]).is_none());
        assert!(replies.output(&[0]).is_none(), "the warm-up request");
    }
}
