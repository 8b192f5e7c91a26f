//! The table of settings in the documentation, made from [`FIELDS`].

use crate::{FIELDS, Kind, ServerSettings};

/// Returns all settings as a Markdown table: name, flag, environment variable, default, allowed, meaning.
pub fn table() -> String {
    let defaults = toml::Table::try_from(ServerSettings::default())
        .expect("plain data of strings, numbers and tables always serializes");
    let mut out = String::from(
        "| setting | flag | environment | default | allowed | meaning |\n|---|---|---|---|---|---|\n",
    );
    for field in FIELDS {
        let flag = field.flag.map_or("`--set`".to_owned(), |flag| format!("`--{flag}`"));
        let default =
            lookup(&defaults, field.path).map_or("none".to_owned(), |value| format!("`{value}`"));
        let allowed = match field.kind {
            Kind::Choice(words) => {
                words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ")
            }
            _ => field.allowed(),
        };
        let (path, env, help) = (field.path, field.env(), field.help);
        out += &format!("| `{path}` | {flag} | `{env}` | {default} | {allowed} | {help} |\n");
    }
    out
}

fn lookup<'a>(table: &'a toml::Table, path: &str) -> Option<&'a toml::Value> {
    match path.split_once('.') {
        Some((key, rest)) => lookup(table.get(key)?.as_table()?, rest),
        None => table.get(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documentation_holds_the_table_of_settings() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/configuration.md");
        let text = std::fs::read_to_string(path).expect("docs/configuration.md");
        let (begin, end) = ("<!-- settings: begin -->\n", "<!-- settings: end -->");
        let start = text.find(begin).expect("the begin mark") + begin.len();
        let stop = text.find(end).expect("the end mark");
        if std::env::var_os("UPDATE_DOCS").is_some() {
            let updated = format!("{}{}{}", &text[..start], table(), &text[stop..]);
            std::fs::write(path, updated).expect("write the documentation");
            return;
        }
        assert_eq!(
            &text[start..stop],
            table(),
            "run `UPDATE_DOCS=1 cargo test -p tiercel-config` to write the table anew"
        );
    }
}
