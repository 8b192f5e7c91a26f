//! Tests of the code's structure: no import cycle among the files of a crate, no struct with more than 20 fields, no
//! function with more than 60 lines. Code under `#[cfg(test)]` is exempt.
#![allow(clippy::unwrap_used, reason = "tests state what must hold")]

mod crate_files;
mod cycles;
mod imports;
mod sizes;

use crate_files::Crate;
use std::path::Path;

/// Source folders of the crates whose structure is checked.
const CRATES: [&str; 4] = ["actors/policy/src", "actors/src", "api/src", "model/dialect/src"];

fn load(root: &str) -> Crate {
    Crate::load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(root))
}

#[test]
fn no_files_import_each_other_in_a_circle() {
    let circles = CRATES.map(|root| (root, cycles::cycles(&imports::edges(&load(root)))));
    let circles: Vec<_> = circles.iter().filter(|(_, circles)| !circles.is_empty()).collect();
    assert!(circles.is_empty(), "{circles:#?}");
}

#[test]
fn no_struct_has_more_than_20_fields_and_no_function_more_than_60_lines() {
    let too_large: Vec<String> =
        CRATES.iter().flat_map(|root| sizes::too_large(&load(root))).collect();
    assert!(too_large.is_empty(), "{}", too_large.join("\n"));
}

/// Makes a small crate in which `a.rs` imports an item of `b.rs`. `import` is code added to `b.rs`; if it names an item
/// of `a.rs`, the two files form an import cycle.
fn sample(import: &str) -> Crate {
    let b = format!("{import}\npub struct B;");
    Crate::parse([
        ("lib.rs", "mod a;\nmod b;\nmod c;\npub use b::B;"),
        ("a.rs", "use crate::B;\npub fn a(_: B) {}"),
        ("b.rs", &b),
        ("c/mod.rs", "mod d;\nuse crate::a::a;\n#[cfg(test)]\nmod tests { use crate::c::d::D; }"),
        ("c/d.rs", "pub struct D(crate::a::Missing);"),
    ])
}

#[test]
fn a_planted_circle_is_found() {
    let circles = |import| cycles::cycles(&imports::edges(&sample(import)));
    assert!(circles("").is_empty());
    let expected = [vec!["a.rs".to_owned(), "b.rs".to_owned()]];
    for import in ["use crate::a::a;", "use super::a::*;", "fn b() { crate::a::a(B) }"] {
        assert_eq!(circles(import), expected, "{import}");
    }
    assert!(circles("#[cfg(test)]\nuse crate::a::a;").is_empty());
}

#[test]
fn large_items_are_found() {
    let fields: String = (0..21).map(|at| format!("f{at}: u8,")).collect();
    let lines = "\n".repeat(60);
    let source = format!("struct Large {{ {fields} }}\nimpl Large {{ fn long() {{{lines}}} }}");
    let found = sizes::too_large(&Crate::parse([("lib.rs", source.as_str())]));
    assert_eq!(found, ["lib.rs: struct Large has 21 fields", "lib.rs: fn long has 61 lines"]);
}
