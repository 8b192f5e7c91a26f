//! Test that `docs/configuration.md` holds the tables of settings. `UPDATE_DOCS=1` writes the tables anew.

use crate::declare::variable;
use crate::renamed::RENAMED;
use crate::{FIELDS, Kind, ServerSettings};

/// Returns all settings as a Markdown table: name, flag, environment variable, default, allowed, meaning.
fn settings() -> String {
    let defaults = toml::Table::try_from(ServerSettings::default())
        .expect("plain data of strings, numbers and tables always serializes");
    let mut out = String::from(
        "| setting | flag | environment | default | allowed | meaning |\n|---|---|---|---|---|---|\n",
    );
    for field in FIELDS.iter() {
        let flag = field.flag.map_or("`--set`".to_owned(), |flag| format!("`--{flag}`"));
        let default =
            lookup(&defaults, &field.path).map_or("none".to_owned(), |value| format!("`{value}`"));
        let allowed = match field.kind {
            Kind::Choice(words) => {
                words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ")
            }
            _ => field.kind.allowed(),
        };
        let (path, env, help) = (&field.path, variable(&field.path), &field.help);
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

/// Returns the renamed settings as a Markdown table: old name, old environment variable, present name.
fn renamed() -> String {
    let row = |(old, new): &(&str, &str)| format!("| `{old}` | `{}` | `{new}` |\n", variable(old));
    let head = "| old name | old environment variable | name |\n|---|---|---|\n";
    std::iter::once(head.to_owned()).chain(RENAMED.iter().map(row)).collect()
}

#[test]
fn the_documentation_holds_the_tables_of_settings() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/configuration.md");
    let found = std::fs::read_to_string(path).expect("docs/configuration.md");
    let mut expected = found.clone();
    for (name, table) in [("renamed", renamed()), ("settings", settings())] {
        let (begin, end) = (format!("<!-- {name}: begin -->\n"), format!("<!-- {name}: end -->"));
        let start = expected.find(&begin).expect("the begin mark") + begin.len();
        let stop = expected.find(&end).expect("the end mark");
        expected.replace_range(start..stop, &table);
    }
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(path, expected).expect("write the documentation");
        return;
    }
    assert!(
        found == expected,
        "the tables differ; run `UPDATE_DOCS=1 cargo test -p tiercel-config` to write them anew"
    );
}
