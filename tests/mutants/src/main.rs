//! `tiercel-mutants LIST TREE [EXCLUDED]` writes the mutants that `cargo mutants --list --json` printed to LIST into
//! the source files of TREE, a copy of the repository. `tests/mutants/run` calls it, builds the copy and runs the
//! tests.
//!
//! The environment variable `TIERCEL_MUTANT` selects the mutant that a run of the build has: its number, counted from 1
//! in the order of LIST; without the variable the code behaves as before. Mutants whose numbers stand in the file
//! EXCLUDED, a line each, are left out, because they do not compile. Prints the numbers of the mutants written.

mod rewrite;

use rewrite::{Mutant, Rewrite};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::{env, fs, process};

/// Module that each mutated crate gets: which mutant is active, and, for `TIERCEL_MUTANT_LOG`, which mutated places a
/// run reached.
const SELECTOR: &str = include_str!("selector.rs");

fn main() {
    let args: Vec<String> = env::args().skip(1).collect();
    let [list, tree, excluded @ ..] = args.as_slice() else {
        eprintln!("usage: tiercel-mutants LIST TREE [EXCLUDED]");
        process::exit(2);
    };
    if let Err(why) = write_mutants(list, Path::new(tree), excluded.first()) {
        eprintln!("tiercel-mutants: {why}");
        process::exit(1);
    }
}

fn write_mutants(list: &str, tree: &Path, excluded: Option<&String>) -> Result<(), String> {
    let read = |path: &Path| {
        fs::read_to_string(path).map_err(|why| format!("cannot read {}: {why}", path.display()))
    };
    let excluded = excluded.map_or(Ok(String::new()), |path| read(Path::new(path)))?;
    let excluded: BTreeSet<u32> = excluded.lines().filter_map(|line| line.parse().ok()).collect();
    let listed: Vec<Mutant> = serde_json::from_str(&read(Path::new(list))?)
        .map_err(|why| format!("{list} is not the output of cargo mutants --list --json: {why}"))?;
    let mut files: BTreeMap<String, Vec<(u32, Mutant)>> = BTreeMap::new();
    for (number, mutant) in (1..).zip(listed).filter(|(number, _)| !excluded.contains(number)) {
        files.entry(mutant.file.clone()).or_default().push((number, mutant));
    }
    let mut crates = BTreeSet::new();
    for (file, mutants) in files {
        let path = tree.join(&file);
        let mut source = syn::parse_file(&read(&path)?)
            .map_err(|why| format!("cannot parse {}: {why}", path.display()))?;
        let written = Rewrite::new(&mutants).apply(&mut source);
        written.iter().for_each(|number| println!("{number}"));
        write(&path, &quote::ToTokens::to_token_stream(&source).to_string())?;
        if let Some((of_crate, _)) = file.split_once("/src/") {
            crates.insert(of_crate.to_owned());
        }
    }
    for of_crate in crates {
        let library = tree.join(&of_crate).join("src/lib.rs");
        write(&library, &format!("{}\nmod mutants {{ {SELECTOR} }}\n", read(&library)?))?;
    }
    Ok(())
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|why| format!("cannot write {}: {why}", path.display()))
}
