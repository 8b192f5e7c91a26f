//! The keys file: who may use the server, as which tenant, and up to which tier.
//!
//! The file holds hashes instead of keys, so a copy of it lets nobody in.

mod syntax;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use toml::value::Datetime;

/// Largest keys file, bytes.
const MAX_FILE_BYTES: u64 = 4 << 20;
/// Most keys in a keys file: each request is compared with all of them.
const MAX_KEYS: usize = 4096;
/// Largest limit of a key, per minute.
const MAX_LIMIT: u64 = 1_000_000_000_000;
/// Allowed weights of a tenant (field `share`).
const SHARES: RangeInclusive<f64> = 0.01..=100.0;
/// Weight of a tenant for which no key states one.
const SHARE: f64 = 1.0;
/// Longest name of a key or of a tenant, bytes.
const MAX_NAME_BYTES: usize = 64;
/// SHA-256 hash of the empty text. The command `printf %s "$KEY" | sha256sum` prints this hash if the variable `KEY` is
/// not set.
const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
words! {
    /// Tier, as the keys file names it. Earlier variants are higher.
    #[derive(PartialOrd, Ord)]
    KeyTier {
        /// The highest tier.
        Premium = "premium",
        /// The tier between.
        Standard = "standard",
        /// The lowest tier.
        Background = "background",
    }
}

words! {
    /// What happens to a request for a higher tier than its key allows.
    AboveHighest {
        /// The request is served at the highest tier of its key.
        Cap = "cap",
        /// The request is answered with 403.
        Refuse = "refuse",
    }
}

words! {
    /// What a key may do on the control API. Later variants may do all that earlier ones may.
    #[derive(PartialOrd, Ord)]
    Role {
        /// The key may see requests and the engine's state.
        Viewer = "viewer",
        /// The key may also change requests, and drain the server.
        Operator = "operator",
    }
}

/// An API key: the hash of its secret, and the rights of the clients that send the secret.
#[derive(Debug, Clone, PartialEq)]
pub struct ApiKey {
    /// Name of the key in logs, unique in its file.
    pub name: String,
    /// SHA-256 hash of the secret.
    pub sha256: [u8; 32],
    /// Tenant that requests with the key belong to; several keys may name the same one.
    pub tenant: String,
    /// Highest tier that requests with the key are served in.
    pub highest_tier: KeyTier,
    /// Tier of requests that ask for none.
    pub default_tier: KeyTier,
    /// What happens to a request for a tier above the highest one.
    pub above_highest: AboveHighest,
    /// Time from which the key is refused, seconds since 1970; `None` if it does not expire.
    pub expires_unix_s: Option<i64>,
    /// What the key may do on the control API; `None` for nothing.
    pub role: Option<Role>,
    /// Most requests per minute; `None` for no limit.
    pub requests_per_min: Option<u64>,
    /// Most tokens per minute, of prompts and outputs; `None` for no limit.
    pub tokens_per_min: Option<u64>,
    /// Most live choices; `None` for no limit.
    pub max_live: Option<u32>,
    /// Weight of the key's tenant in the fair queues, 0.01 to 100. All keys of a tenant have the same.
    pub share: f64,
    /// Whether requests with the key may state tighter targets than those of their tier; `None` for what
    /// `slo.requests_may_tighten` says.
    pub may_tighten_targets: Option<bool>,
}

/// Reason for which a keys file cannot be used. The message is one line.
#[derive(Debug, thiserror::Error)]
pub enum KeysError {
    /// The keys file cannot be read.
    #[error("cannot read the keys file {} (--keys-file): {why}", path.display())]
    Unreadable {
        /// Path of the keys file.
        path: PathBuf,
        /// Reason for which the keys file cannot be read.
        why: String,
    },
    /// The keys file is not TOML of the expected form.
    #[error("{}: {why}", path.display())]
    Syntax {
        /// Path of the keys file.
        path: PathBuf,
        /// What is wrong, with the line.
        why: String,
    },
    /// A field of a key cannot be used.
    #[error("{}: key {key}: {field} {why}", path.display())]
    Field {
        /// Path of the keys file.
        path: PathBuf,
        /// Name of the key, or its number if the name cannot be used.
        key: String,
        /// Field of the key.
        field: &'static str,
        /// What the field must be.
        why: String,
    },
}

impl KeysError {
    /// Returns the error for a field of the key `key` in the keys file `path`.
    pub fn field(path: &Path, key: &str, field: &'static str, why: String) -> KeysError {
        KeysError::Field { path: path.to_owned(), key: key.to_owned(), field, why }
    }
}

/// A keys file as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    key: Vec<Entry>,
}

/// A key as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    sha256: String,
    tenant: Option<String>,
    highest_tier: Option<KeyTier>,
    default_tier: Option<KeyTier>,
    above_highest: Option<AboveHighest>,
    expires: Option<Datetime>,
    role: Option<Role>,
    requests_per_min: Option<u64>,
    tokens_per_min: Option<u64>,
    max_live: Option<u32>,
    share: Option<f64>,
    may_tighten_targets: Option<bool>,
}

/// Reads a keys file.
///
/// # Errors
/// If the file cannot be read, is no TOML of the expected form, or if a field cannot be used; the error names it.
pub fn read_keys(path: &Path) -> Result<Vec<ApiKey>, KeysError> {
    let unreadable = |why: String| KeysError::Unreadable { path: path.to_owned(), why };
    let failed = |error: std::io::Error| unreadable(error.to_string());
    // A pipe or a device could block or never end.
    if !std::fs::metadata(path).map_err(failed)?.is_file() {
        return Err(unreadable("it is no regular file".into()));
    }
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(failed)?;
    file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text).map_err(failed)?;
    if text.len() as u64 > MAX_FILE_BYTES {
        return Err(unreadable(format!("it has more than {MAX_FILE_BYTES} bytes")));
    }
    parse_keys(&text, path)
}

/// Parses the text of a keys file; `path` is for error messages.
fn parse_keys(text: &str, path: &Path) -> Result<Vec<ApiKey>, KeysError> {
    let syntax = |why: String| KeysError::Syntax { path: path.to_owned(), why };
    let file: File =
        toml::from_str(text).map_err(|error| syntax(syntax::one_line(&error, text)))?;
    if file.key.is_empty() {
        return Err(syntax("it has no [[key]]".into()));
    }
    if file.key.len() > MAX_KEYS {
        return Err(syntax(format!("it has {} keys; at most {MAX_KEYS} fit", file.key.len())));
    }
    let (mut names, mut hashes) = (BTreeSet::new(), BTreeSet::new());
    let mut shares = Shares::default();
    let mut keys = Vec::with_capacity(file.key.len());
    for (index, entry) in file.key.into_iter().enumerate() {
        let named = is_name(&entry.name);
        let label = if named { entry.name.clone() } else { format!("number {}", index + 1) };
        let wrong = |(field, why)| KeysError::field(path, &label, field, why);
        let stated = entry.share;
        let key = check(entry).map_err(wrong)?;
        shares.state(&key, stated).map_err(wrong)?;
        if !names.insert(key.name.clone()) {
            return Err(wrong(("name", "is the name of two keys".into())));
        }
        if !hashes.insert(key.sha256) {
            return Err(wrong(("sha256", "is the hash of two keys".into())));
        }
        keys.push(key);
    }
    for key in &mut keys {
        key.share = shares.of(&key.tenant);
    }
    Ok(keys)
}

/// Weights that the keys of a file state, by tenant, each with the name of the first key that states it.
#[derive(Default)]
struct Shares(BTreeMap<String, (f64, String)>);

impl Shares {
    /// Takes over the weight that a key states, if any. Fails if another key states another weight for the same tenant.
    fn state(&mut self, key: &ApiKey, stated: Option<f64>) -> Result<(), Wrong> {
        let Some(share) = stated else { return Ok(()) };
        if !SHARES.contains(&share) {
            let (low, high) = (SHARES.start(), SHARES.end());
            return Err(("share", format!("must be a number from {low} to {high}")));
        }
        let (of_tenant, first) =
            self.0.entry(key.tenant.clone()).or_insert_with(|| (share, key.name.clone()));
        if *of_tenant == share {
            return Ok(());
        }
        let tenant = &key.tenant;
        Err((
            "share",
            format!(
                "is {share}, but key {first} states {of_tenant} for the same tenant, {tenant}; a tenant has one share"
            ),
        ))
    }

    fn of(&self, tenant: &str) -> f64 {
        self.0.get(tenant).map_or(SHARE, |(share, _)| *share)
    }
}

/// A field of a key that cannot be used, and what it must be.
type Wrong = (&'static str, String);

fn check(entry: Entry) -> Result<ApiKey, Wrong> {
    let name_rule = || format!("must have 1 to {MAX_NAME_BYTES} letters, digits, '.', '_' or '-'");
    if !is_name(&entry.name) {
        return Err(("name", name_rule()));
    }
    let tenant = entry.tenant.unwrap_or_else(|| entry.name.clone());
    if !is_name(&tenant) {
        return Err(("tenant", name_rule()));
    }
    let highest_tier = entry.highest_tier.unwrap_or(KeyTier::Standard);
    let default_tier = entry.default_tier.unwrap_or(KeyTier::Standard.max(highest_tier));
    if default_tier < highest_tier {
        return Err(("default_tier", "must not be above highest_tier".into()));
    }
    let hash_rule = || "must be 64 hexadecimal digits: printf %s \"$KEY\" | sha256sum".to_owned();
    let sha256 = parse_hash(&entry.sha256).ok_or_else(|| ("sha256", hash_rule()))?;
    if entry.sha256.eq_ignore_ascii_case(EMPTY) {
        return Err(("sha256", "is the hash of an empty key".into()));
    }
    Ok(ApiKey {
        name: entry.name,
        sha256,
        tenant,
        highest_tier,
        default_tier,
        above_highest: entry.above_highest.unwrap_or(AboveHighest::Cap),
        expires_unix_s: entry.expires.map(unix_s).transpose()?,
        role: entry.role,
        requests_per_min: limit("requests_per_min", entry.requests_per_min)?,
        tokens_per_min: limit("tokens_per_min", entry.tokens_per_min)?,
        max_live: limit("max_live", entry.max_live.map(u64::from))?.map(|limit| limit as u32),
        share: SHARE,
        may_tighten_targets: entry.may_tighten_targets,
    })
}

/// Checks a limit: a limit of 0 would refuse everything.
fn limit(field: &'static str, limit: Option<u64>) -> Result<Option<u64>, Wrong> {
    match limit {
        Some(limit) if !(1..=MAX_LIMIT).contains(&limit) => Err((
            field,
            format!("must be a number from 1 to {MAX_LIMIT}; leave it out for no limit"),
        )),
        limit => Ok(limit),
    }
}

fn is_name(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=MAX_NAME_BYTES).contains(&text.len()) && text.bytes().all(allowed)
}

fn parse_hash(text: &str) -> Option<[u8; 32]> {
    let digits: Vec<u8> = text
        .chars()
        .map(|digit| digit.to_digit(16).map(|value| value as u8))
        .collect::<Option<_>>()?;
    let bytes: Vec<u8> =
        digits.chunks(2).map(|pair| pair.iter().fold(0, |n, d| n * 16 + d)).collect();
    if digits.len() == 64 { bytes.try_into().ok() } else { None }
}

/// Returns a time as text in UTC, such as 2027-01-31T12:00:00Z; a keys file accepts this form. `unix_s` is in seconds
/// since 1970.
pub fn utc_text(unix_s: i64) -> String {
    Timestamp::from_second(unix_s).map_or_else(|_| "?".to_owned(), |at| at.to_string())
}

/// Returns the time of a TOML date, seconds since 1970. A date alone is its first second, and a time without an offset
/// is in UTC.
fn unix_s(date: Datetime) -> Result<i64, Wrong> {
    let wrong = || {
        let rule = "must be a date or a time before 9999-12-30, such as 2027-01-31 or 2027-01-31T12:00:00Z";
        ("expires", rule.to_owned())
    };
    if date.date.is_none() {
        return Err(wrong());
    }
    let text = date.to_string();
    let civil =
        |text: &str| text.parse::<jiff::civil::DateTime>().ok()?.to_zoned(TimeZone::UTC).ok();
    let at = text.parse::<Timestamp>().ok().or_else(|| civil(&text).map(|zoned| zoned.timestamp()));
    at.map(|at| at.as_second()).ok_or_else(wrong)
}

#[cfg(test)]
mod tests;
