//! Finds the imports between source files of a crate, as a graph: an edge leads from each file to the files that define
//! the items that it names.

use crate::crate_files::{Crate, ModulePath, is_test};
use std::collections::{BTreeMap, BTreeSet};
use syn::visit::Visit;
use syn::{Item, UseTree, Visibility};

/// Import graph of a crate: for each file, the files that it imports from.
pub(crate) type Edges = BTreeMap<String, BTreeSet<String>>;

/// Returns the import graph of a crate. A re-export (`pub use`) is not an import; an import of a re-exported name
/// counts for the file that defines the item.
pub(crate) fn edges(of: &Crate) -> Edges {
    let mut edges = Edges::new();
    for (path, module) in &of.modules {
        let mut paths = Paths { of, module: path, found: Vec::new() };
        module.items.iter().for_each(|item| paths.visit_item(item));
        let targets = edges.entry(module.file.clone()).or_default();
        for named in paths.found {
            targets.extend(defining(of, &named, 0).filter(|file| *file != module.file));
        }
    }
    edges
}

/// Visitor that collects the paths of at least two segments and the `use` paths of a module's code, resolved to paths
/// from the crate's root. Re-exports and code of tests are left out.
struct Paths<'a> {
    of: &'a Crate,
    module: &'a ModulePath,
    found: Vec<Vec<String>>,
}

impl Paths<'_> {
    fn add(&mut self, segments: &[String]) {
        self.found.extend(absolute(self.of, self.module, segments));
    }
}

impl<'ast> Visit<'ast> for Paths<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        // Skip inline and declared submodules of the module: each module is visited separately.
        if !matches!(item, Item::Mod(_)) {
            syn::visit::visit_item(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if matches!(item.vis, Visibility::Inherited) {
            for (segments, _) in flat(&item.tree) {
                self.add(&segments);
            }
        }
    }

    fn visit_visibility(&mut self, _: &'ast Visibility) {
        // Skip the paths of visibilities: `pub(in crate::cli)` imports nothing.
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        if !is_test(&function.attrs) {
            syn::visit::visit_impl_item_fn(self, function);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments: Vec<String> = path.segments.iter().map(|s| s.ident.to_string()).collect();
        if segments.len() > 1 {
            self.add(&segments);
        }
        syn::visit::visit_path(self, path);
    }
}

/// Resolves a path that a module names (with `crate`, `self`, `super` or a submodule) to a path from the crate's root;
/// `None` if it leads out of the crate or begins with an item.
fn absolute(of: &Crate, module: &[String], segments: &[String]) -> Option<Vec<String>> {
    let mut base = module.to_vec();
    let mut rest = segments;
    match rest.first()?.as_str() {
        "crate" => (base, rest) = (Vec::new(), &rest[1..]),
        "self" => rest = &rest[1..],
        "super" => {
            while rest.first().is_some_and(|segment| segment == "super") {
                base.pop()?;
                rest = &rest[1..];
            }
        }
        first => {
            base.push(first.to_owned());
            if !of.modules.contains_key(&base) {
                return None;
            }
            base.pop();
        }
    }
    base.extend(rest.iter().cloned());
    Some(base)
}

/// Returns the files that define the item to which a path from the crate's root leads, through re-exports: several if
/// several re-exports have the item's name. For a glob (`module::*`) it is the module's file.
fn defining(of: &Crate, path: &[String], depth: usize) -> std::vec::IntoIter<String> {
    let mut files = Vec::new();
    let mut at = Vec::new();
    for (position, segment) in path.iter().enumerate() {
        let child: ModulePath = at.iter().cloned().chain([segment.clone()]).collect();
        if of.modules.contains_key(&child) {
            at = child;
            continue;
        }
        let module = &of.modules[&at];
        if segment == "*" || module.items.iter().any(|item| defines(item, segment)) {
            files.push(module.file.clone());
        } else if depth < 8 {
            for target in re_exported(of, &at, segment) {
                let target: Vec<String> =
                    target.into_iter().chain(path[position + 1..].iter().cloned()).collect();
                files.extend(defining(of, &target, depth + 1));
            }
        }
        return files.into_iter();
    }
    // All segments were modules, so the path names a module: return the module's file.
    files.push(of.modules[&at].file.clone());
    files.into_iter()
}

/// Returns the paths for which a name stands in a module because of the module's `use` items.
fn re_exported(of: &Crate, module: &ModulePath, name: &str) -> Vec<Vec<String>> {
    let uses = of.modules[module].items.iter().filter_map(|item| match item {
        Item::Use(item) => Some(flat(&item.tree)),
        _ => None,
    });
    let named = uses.flatten().filter(|(_, as_name)| as_name == name);
    named.filter_map(|(segments, _)| absolute(of, module, &segments)).collect()
}

/// Whether a parsed item defines the given name.
fn defines(item: &Item, name: &str) -> bool {
    match item {
        Item::Const(item) => item.ident == name,
        Item::Enum(item) => item.ident == name,
        Item::Fn(item) => item.sig.ident == name,
        Item::Macro(item) => item.ident.as_ref().is_some_and(|ident| ident == name),
        Item::Static(item) => item.ident == name,
        Item::Struct(item) => item.ident == name,
        Item::Trait(item) => item.ident == name,
        Item::Type(item) => item.ident == name,
        _ => false,
    }
}

/// Splits a `use` tree into single imports: each path with the name under which it is imported.
fn flat(tree: &UseTree) -> Vec<(Vec<String>, String)> {
    let ends = |name: &syn::Ident| name.to_string();
    match tree {
        UseTree::Path(path) => {
            let first = path.ident.to_string();
            let after = |(rest, name): (Vec<String>, String)| {
                let name = if name == "self" { first.clone() } else { name };
                let rest = rest.into_iter().filter(|segment| segment != "self");
                (std::iter::once(first.clone()).chain(rest).collect(), name)
            };
            flat(&path.tree).into_iter().map(after).collect()
        }
        UseTree::Name(name) => vec![(vec![ends(&name.ident)], ends(&name.ident))],
        UseTree::Rename(rename) => vec![(vec![ends(&rename.ident)], ends(&rename.rename))],
        UseTree::Glob(_) => vec![(vec!["*".to_owned()], "*".to_owned())],
        UseTree::Group(group) => group.items.iter().flat_map(flat).collect(),
    }
}
