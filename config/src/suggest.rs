//! Suggestions for unknown names of settings: "Did you mean ...?"

use crate::FIELDS;

/// Maximum number of settings that an error message suggests for one unknown name.
const MOST: usize = 3;
/// Names that users may take for settings, because other inference servers or earlier versions of this server have
/// them. Each name stands with the setting of this server that corresponds to it.
const SYNONYMS: [(&str, &str); 13] = [
    ("max_wait_s", "patience.standard_s"),
    ("max_wait_s", "patience.background_s"),
    ("give_up_s", "patience.standard_s"),
    ("give_up_s", "patience.background_s"),
    ("host", "http.listen"),
    ("port", "http.listen"),
    ("address", "http.listen"),
    ("bind", "http.listen"),
    ("model", "model.source"),
    ("served_model_name", "model.served_name"),
    ("ctx_size", "model.max_model_len"),
    ("gpu_memory_utilization", "device.memory_percent"),
    ("kv_cache_dtype", "kv.type"),
];

/// Returns the settings that an unknown name most likely means, the likeliest first, at most [`MOST`].
pub(crate) fn paths(name: &str) -> Vec<&'static str> {
    let name = name.trim().to_lowercase().replace('-', "_");
    let name: String = name.chars().take(128).collect();
    let key = last(&name);
    let tail = format!(".{name}");
    let table = format!("{name}.");
    let rules: [&dyn Fn(&str) -> bool; 3] =
        [&|path| path.ends_with(&tail), &|path| SYNONYMS.contains(&(key, path)), &|path| {
            last(path) == key
        }];
    let all = || FIELDS.iter().map(|field| field.path.as_str());
    let found = rules.iter().map(|rule| all().filter(|path| rule(path)).collect::<Vec<_>>());
    let near = std::iter::once_with(|| nearest(&name, key));
    let parts = std::iter::once_with(|| {
        let has_words = |path: &&str| key.len() >= 3 && holds_words(last(path), key);
        all().filter(|path| path.starts_with(&table) || has_words(path)).collect()
    });
    let found = found.chain(near).chain(parts).find(|found| !found.is_empty());
    let mut found = found.unwrap_or_default();
    found.sort_by_key(|path| distance(&name, path));
    found.truncate(MOST);
    found
}

/// Returns the settings whose names have the smallest edit distance to a name, if any is small enough.
fn nearest(name: &str, key: &str) -> Vec<&'static str> {
    let near = |path: &'static str| {
        let (whole, of_key) = (distance(name, path), distance(key, last(path)));
        let most = key.len().min(last(path).len()) / 3;
        let whole = (whole <= path.len() / 5 + 1).then_some(whole);
        let of_key = (of_key <= most).then_some(of_key);
        Some((whole.into_iter().chain(of_key).min()?, path))
    };
    let near: Vec<_> = FIELDS.iter().filter_map(|field| near(&field.path)).collect();
    let best = near.iter().map(|(distance, _)| *distance).min();
    near.into_iter().filter(|(distance, _)| Some(*distance) == best).map(|(_, path)| path).collect()
}

/// Returns the last part of a setting's dotted name: `max_num_seqs` of `scheduler.max_num_seqs`.
fn last(path: &str) -> &str {
    path.rsplit('.').next().unwrap_or(path)
}

/// Whether the words of `part` appear side by side and in order among the words of the name `key`. `_` separates words.
fn holds_words(key: &str, part: &str) -> bool {
    format!("_{key}_").contains(&format!("_{part}_"))
}

/// Returns the Levenshtein (edit) distance between two texts, counted in characters.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, cb) in b.iter().enumerate() {
            let substitution = diagonal + usize::from(ca != *cb);
            diagonal = row[j + 1];
            row[j + 1] = substitution.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_spellings_and_misplaced_keys_are_recognised() {
        assert_eq!(paths("scheduler.max_num_seq"), ["scheduler.max_num_seqs"]);
        assert_eq!(paths("max-num-seqs"), ["scheduler.max_num_seqs"]);
        assert_eq!(paths("htpp.listen"), ["http.listen"]);
        assert_eq!(paths("http.api_key"), ["http.api_keys"]);
        assert_eq!(paths("KV_TYPE"), ["kv.type"]);
        assert_eq!(paths("slo.premium.ttft"), ["slo.premium.ttft_ms"]);
        assert_eq!(paths("standard.ttft_ms"), ["slo.standard.ttft_ms"]);
        assert!(paths("favourite_colour").is_empty());
        assert!(paths("").is_empty());
    }

    #[test]
    fn words_of_other_servers_and_parts_of_names_are_recognised() {
        assert_eq!(paths("port"), ["http.listen"]);
        assert_eq!(paths("server.host"), ["http.listen"]);
        assert_eq!(paths("gpu-memory-utilization"), ["device.memory_percent"]);
        let tiers = ["slo.premium.ttft_ms", "slo.standard.ttft_ms", "slo.background.ttft_ms"];
        assert_eq!(paths("ttft_ms"), tiers);
        assert_eq!(paths("slo.ttft_ms"), tiers);
        assert_eq!(paths("drain_grace"), ["http.drain_grace_ms"]);
        assert!(paths("shares").iter().all(|path| path.starts_with("shares.")));
    }

    #[test]
    fn distance_counts_edits() {
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("same", "same"), 0);
    }
}
