//! Question of a conversation: the user's last message, and the number of the answer that comes next.

/// Question of a conversation: the user's last message, and the number of the answer that comes next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Question {
    /// Text of the user's last message; empty if there is none.
    pub(crate) user: String,
    /// Number of the answer that comes next, counted from 1 on since the user's last message. Answers that call tools
    /// count too.
    pub(crate) turn: u32,
}

impl Question {
    /// Returns the question of a conversation, whose messages are pairs of role and text. A tool's result that is
    /// spelled out as a message of the user does not count as a message of the user.
    pub(crate) fn of(messages: &[(&str, &str)]) -> Question {
        let of_user = |message: &(&str, &str)| {
            message.0 == "user" && !message.1.starts_with("<tool_response>")
        };
        let last = messages.iter().rposition(of_user);
        let after = &messages[last.map_or(0, |last| last + 1)..];
        let answers = after.iter().filter(|(role, _)| *role == "assistant").count();
        Question {
            user: last.map_or_else(String::new, |last| messages[last].1.to_owned()),
            turn: answers as u32 + 1,
        }
    }

    /// Returns the question of a prompt that is a plain text.
    pub(crate) fn of_text(text: &str) -> Question {
        Question { user: text.to_owned(), turn: 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_count_from_the_users_last_message_on() {
        let of = |messages: &[(&str, &str)]| {
            let Question { user, turn } = Question::of(messages);
            (user, turn)
        };
        let (user, call, result) = (("user", "Hi"), ("assistant", ""), ("tool", "21"));
        assert_eq!(of(&[("system", "x"), user]), ("Hi".to_owned(), 1));
        assert_eq!(of(&[user, call, result]), ("Hi".to_owned(), 2));
        assert_eq!(of(&[user, call, result, call, result, result]), ("Hi".to_owned(), 3));
        assert_eq!(of(&[user, call, ("user", "Ho")]), ("Ho".to_owned(), 1));
        assert_eq!(of(&[call]), (String::new(), 2));
        let spelled = ("user", "<tool_response>\n21\n</tool_response>");
        assert_eq!(of(&[user, call, spelled]), ("Hi".to_owned(), 2));
    }
}
