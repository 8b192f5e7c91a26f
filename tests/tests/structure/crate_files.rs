//! Parses the source files of a crate into its modules, for the checks of the code's structure.

use std::collections::BTreeMap;
use std::path::Path;
use syn::{Attribute, Item};

/// Path of a Rust module from the crate's root, such as `["scheduler", "queue"]`.
pub(crate) type ModulePath = Vec<String>;

/// A parsed Rust module: the path of its file, and its items. For an inline module, it is the file in which the module
/// stands.
pub(crate) struct Module {
    pub(crate) file: String,
    pub(crate) items: Vec<Item>,
}

/// All parsed modules of a crate, except those under `#[cfg(test)]`.
pub(crate) struct Crate {
    pub(crate) modules: BTreeMap<ModulePath, Module>,
}

impl Crate {
    /// Reads and parses the crate whose `lib.rs` is in the folder `root`.
    pub(crate) fn load(root: &Path) -> Crate {
        let mut sources = BTreeMap::new();
        read(root, "", &mut sources);
        Crate::of(&sources)
    }

    /// Parses a made-up crate, given as the paths and texts of its files.
    pub(crate) fn parse<const N: usize>(files: [(&str, &str); N]) -> Crate {
        Crate::of(&files.map(|(path, text)| (path.to_owned(), text.to_owned())).into())
    }

    fn of(sources: &BTreeMap<String, String>) -> Crate {
        let mut found = Crate { modules: BTreeMap::new() };
        found.add(Vec::new(), "lib.rs", sources);
        found
    }

    /// Adds the module of a source file to the crate, and the modules that it declares.
    fn add(&mut self, path: ModulePath, file: &str, sources: &BTreeMap<String, String>) {
        let text = sources.get(file).unwrap_or_else(|| panic!("{file} is declared and missing"));
        let parsed = syn::parse_file(text).unwrap_or_else(|error| panic!("{file}: {error}"));
        self.add_items(path, file, parsed.items, sources);
    }

    fn add_items(
        &mut self,
        path: ModulePath,
        file: &str,
        items: Vec<Item>,
        sources: &BTreeMap<String, String>,
    ) {
        let items: Vec<Item> =
            items.into_iter().filter(|item| !is_test(attributes(item))).collect();
        for item in &items {
            let Item::Mod(module) = item else { continue };
            let child: ModulePath =
                path.iter().cloned().chain([module.ident.to_string()]).collect();
            match &module.content {
                Some((_, inner)) => self.add_items(child, file, inner.clone(), sources),
                None => {
                    let base = child.join("/");
                    let candidates = [format!("{base}.rs"), format!("{base}/mod.rs")];
                    let file = candidates.into_iter().find(|file| sources.contains_key(file));
                    self.add(child, &file.unwrap_or(base), sources);
                }
            }
        }
        self.modules.insert(path, Module { file: file.to_owned(), items });
    }
}

fn read(folder: &Path, prefix: &str, sources: &mut BTreeMap<String, String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let name = format!("{prefix}{}", entry.file_name().to_str().unwrap());
        if entry.file_type().unwrap().is_dir() {
            read(&entry.path(), &format!("{name}/"), sources);
        } else if name.ends_with(".rs") {
            sources.insert(name, std::fs::read_to_string(entry.path()).unwrap());
        }
    }
}

/// Whether an item's attributes contain `#[cfg(test)]` or `#[test]`, so that the checks skip the item.
pub(crate) fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let cfg_test = attribute.path().is_ident("cfg")
            && attribute.parse_args::<syn::Path>().is_ok_and(|path| path.is_ident("test"));
        cfg_test || attribute.path().is_ident("test")
    })
}

/// Returns the attributes of a parsed Rust item.
pub(crate) fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}
