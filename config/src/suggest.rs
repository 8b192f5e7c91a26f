//! "Did you mean ...?"

use crate::FIELDS;

/// The setting that `name` most likely meant: the same key in another table, or a near spelling.
pub(crate) fn path(name: &str) -> Option<&'static str> {
    let key = name.rsplit('.').next().unwrap_or(name).replace('-', "_");
    let same_key = |path: &&str| path.rsplit('.').next() == Some(key.as_str());
    let paths = || FIELDS.iter().map(|field| field.path);
    paths().find(same_key).or_else(|| {
        paths()
            .map(|path| (distance(name, path).min(key_distance(&key, path)), path))
            .min()
            .filter(|(distance, path)| *distance <= path.len() / 4)
            .map(|(_, path)| path)
    })
}

fn key_distance(key: &str, path: &str) -> usize {
    distance(key, path.rsplit('.').next().unwrap_or(path))
}

/// Levenshtein distance in characters.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().take(128).enumerate() {
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
        assert_eq!(path("scheduler.max_num_seq"), Some("scheduler.max_num_seqs"));
        assert_eq!(path("max-num-seqs"), Some("scheduler.max_num_seqs"));
        assert_eq!(path("htpp.listen"), Some("http.listen"));
        assert_eq!(path("favourite_colour"), None);
    }

    #[test]
    fn distance_counts_edits() {
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("same", "same"), 0);
    }
}
