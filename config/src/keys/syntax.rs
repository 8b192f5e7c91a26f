//! Describes the fault of a keys file that is not TOML of the expected form. The description shows no text of the file
//! that may be secret.

/// Fields of a key, each with the form of its values.
const FIELDS: [(&str, &str); 13] = [
    ("name", TEXT),
    ("sha256", TEXT),
    ("tenant", TEXT),
    ("highest_tier", TIER),
    ("default_tier", TIER),
    ("above_highest", "must be \"cap\" or \"refuse\""),
    ("expires", "must be a date or a time without quotes, such as 2027-01-31"),
    ("role", "must be \"viewer\" or \"operator\""),
    ("requests_per_min", COUNT),
    ("tokens_per_min", COUNT),
    ("max_live", COUNT),
    ("share", "must be a number"),
    ("may_tighten_targets", "must be true or false"),
];
const TEXT: &str = "must be a text in quotes";
const TIER: &str = "must be \"premium\", \"standard\" or \"background\"";
const COUNT: &str = "must be a whole number";

/// Words of a keys file, beside the names of fields, that messages of the TOML parser may repeat. Other text of the
/// file may be a secret.
const KNOWN: [&str; 13] = [
    "key",
    "viewer",
    "operator",
    "premium",
    "standard",
    "background",
    "cap",
    "refuse",
    "=",
    "]",
    "]]",
    ",",
    "\n",
];

/// Returns the message of a TOML error on one line, with the number of its line in the file. If the value of a field is
/// wrong, the message names the field. A message that repeats other text of the file than known words is replaced,
/// because the text may be a secret at a wrong place.
pub(super) fn one_line(error: &toml::de::Error, text: &str) -> String {
    let message = error.message().replace('\n', ", ");
    let mut repeated = message.split(['`', '"', '\'']).skip(1).step_by(2);
    let harmless = repeated.all(|word| KNOWN.contains(&word) || rule(word).is_some());
    let before = error.span().and_then(|span| text.get(..span.start));
    let message = match before.and_then(field_before) {
        Some((name, rule)) => format!("{name} {rule}"),
        None if harmless => message,
        None => "not of the expected form: tables [[key]] with name, sha256 and, where wanted, tenant, highest_tier, \
              default_tier, above_highest, expires, role, requests_per_min, tokens_per_min, max_live, share and \
              may_tighten_targets"
            .to_owned(),
    };
    let line = before.map(|before| before.matches('\n').count() + 1);
    line.map(|line| format!("line {line}: {message}")).unwrap_or(message)
}

/// Returns the field whose value begins at the end of `text`: the name of the field, and the form of its values.
fn field_before(text: &str) -> Option<(&'static str, &'static str)> {
    let (name, _) = text.rsplit('\n').next()?.split_once('=')?;
    rule(name.trim())
}

fn rule(name: &str) -> Option<(&'static str, &'static str)> {
    FIELDS.into_iter().find(|(field, _)| *field == name)
}
