//! Prompts of a given length for the load client. Their text is new to the server's prefix cache, except where prompts
//! of one run share a prefix on purpose.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tiercel_workload::Planned;
use tiercel_workload::Random;

/// Whether the load client sends prompts as token ids or as text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PromptForm {
    /// Prompts are arrays of token ids, so lengths are exact.
    TokenIds,
    /// Prompts are text with one common word per token, so lengths are approximate. Used if the server has no
    /// `/tokenize` endpoint or the endpoint returns too few token ids.
    Words,
}

/// Set of tokens or words that prompts are drawn from.
#[derive(Debug, Clone)]
pub(crate) enum Vocabulary {
    /// Token ids of ordinary words, as the server's `/tokenize` endpoint returned them.
    Ids(Vec<u32>),
    /// English words of [`WORDS`], if the server does not return enough token ids.
    Words,
}

impl Vocabulary {
    pub(crate) fn form(&self) -> PromptForm {
        match self {
            Vocabulary::Ids(_) => PromptForm::TokenIds,
            Vocabulary::Words => PromptForm::Words,
        }
    }

    /// Returns the prompt of a request as JSON for `/v1/completions`. Prompts made with different values of `salt` are
    /// drawn at random independently of each other, so that two runs share no cached prefix.
    pub(crate) fn prompt(&self, seed: u64, salt: u64, planned: &Planned) -> Value {
        let length = planned.prompt_tokens as usize;
        let mut draws = Vec::with_capacity(length);
        for (text, tokens) in planned.shared_texts() {
            let [kind, name] = text.path();
            let mut shared = Random::stream(seed, &[salt, kind, name]);
            draws.extend((0..tokens).map(|_| shared.next_u64()));
        }
        let path = [salt, planned.class as u64, u64::from(planned.stream), planned.number];
        let mut own = Random::stream(seed, &path);
        draws.resize_with(length, || own.next_u64());
        let draws = draws.into_iter();
        match self {
            Vocabulary::Ids(ids) => draws.map(|draw| Value::from(pick(ids, draw))).collect(),
            Vocabulary::Words => {
                let words: Vec<&str> = WORDS.split_ascii_whitespace().collect();
                let text: Vec<&str> = draws.map(|draw| pick(&words, draw)).collect();
                Value::from(text.join(" "))
            }
        }
    }
}

fn pick<T: Copy>(from: &[T], draw: u64) -> T {
    from[(draw % from.len() as u64) as usize]
}

/// Common English words. Each word, with the space before it, is a single token in most vocabularies.
pub(crate) const WORDS: &str = "\
the and that have with this from they would there their what about which when make like time just \
know take people into year good some could them other than then look only come over think also back \
after work first well even want because these give most day great man world life hand part place case \
week company system program question government number night point home water room mother area money \
story fact month lot right study book eye job word business issue side kind head house service friend \
father power hour game line end member law car city community name president team minute idea kid body \
information school face level office door health person art war history party result change morning \
reason research girl guy moment air teacher force education foot boy age policy process music market \
sense nation plan college interest death experience effect use class control care field development \
role effort rate heart drug show leader light voice wife police mind price report decision son view \
relationship town road arm difference value building action season society tax director position \
player record paper space ground form event official matter center couple site project activity star \
table need court oil situation cost industry figure street image phone data picture practice piece land \
product doctor wall patient worker news test movie north love support technology step baby computer type \
attention film tree source organization hair window evidence truth culture stage chance brother energy \
period course summer plant opportunity term letter condition choice rule south bank answer board stock \
note bird east west river fire food bed blue green red black white";

#[cfg(test)]
mod tests {
    use super::*;

    fn planned(number: u64) -> Planned {
        Planned {
            class: 0,
            stream: 0,
            number,
            at_us: 0,
            prefix: None,
            blocks: None,
            recorded: None,
            prompt_tokens: 300,
            output_tokens: 1,
        }
    }

    #[test]
    fn prompts_have_their_length_and_are_never_the_same() {
        let ids = Vocabulary::Ids((100..400).collect());
        let prompt = ids.prompt(1, 2, &planned(0));
        assert_eq!(prompt.as_array().map(Vec::len), Some(300));
        assert_eq!(prompt, ids.prompt(1, 2, &planned(0)));
        for other in [ids.prompt(1, 2, &planned(1)), ids.prompt(1, 3, &planned(0))] {
            assert_ne!(prompt, other);
        }
        let words = Vocabulary::Words.prompt(1, 2, &planned(0));
        assert_eq!(words.as_str().map(|text| text.split(' ').count()), Some(300));
    }

    #[test]
    fn blocks_of_one_name_are_one_text_within_a_run() {
        let turn = |number, names: &[u64]| Planned {
            prompt_tokens: 1100,
            blocks: Some(names.to_vec().into()),
            class: number as usize,
            ..planned(number)
        };
        let (first, second) = (turn(0, &[7, 8, 9]), turn(1, &[7, 8, 4]));
        let ids = Vocabulary::Ids((100..400).collect());
        let tokens = |salt, planned| ids.prompt(1, salt, planned).as_array().cloned().unwrap();
        assert_eq!(tokens(2, &first)[..1024], tokens(2, &second)[..1024]);
        assert_ne!(tokens(2, &first)[1024..], tokens(2, &second)[1024..]);
        assert_ne!(tokens(2, &first)[..512], tokens(3, &first)[..512], "runs share nothing");
        let words = |planned| {
            let text = Vocabulary::Words.prompt(1, 2, planned).as_str().unwrap().to_owned();
            text.split(' ').map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(words(&first)[..1024], words(&second)[..1024]);
        assert_eq!(words(&first).len(), 1100);
    }

    #[test]
    fn there_are_enough_different_words() {
        let mut words: Vec<&str> = WORDS.split_ascii_whitespace().collect();
        let count = words.len();
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), count);
        assert!(count >= 256, "{count}");
    }
}
