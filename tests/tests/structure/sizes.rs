//! Finds structs with too many fields and functions with too many lines.

use crate::crate_files::{Crate, is_test};
use syn::spanned::Spanned;
use syn::visit::Visit;
use syn::{Item, Signature};

/// Maximum number of fields of a struct.
const FIELDS_MAX: usize = 20;
/// Maximum length of a function, lines from its signature to its closing brace.
const LINES_MAX: usize = 60;

/// Returns a line of text for each struct and function of a crate that is too large.
pub(crate) fn too_large(of: &Crate) -> Vec<String> {
    let mut found = Vec::new();
    for module in of.modules.values() {
        let mut sizes = Sizes { file: &module.file, found: &mut found };
        module.items.iter().for_each(|item| sizes.visit_item(item));
    }
    found
}

struct Sizes<'a> {
    file: &'a str,
    found: &'a mut Vec<String>,
}

impl Sizes<'_> {
    fn function(&mut self, signature: &Signature, body: &syn::Block) {
        let lines = body.span().end().line - signature.span().start().line + 1;
        if lines > LINES_MAX {
            self.found.push(format!("{}: fn {} has {lines} lines", self.file, signature.ident));
        }
    }
}

impl<'ast> Visit<'ast> for Sizes<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        // Skip submodules of the module: each module is visited separately.
        if !matches!(item, Item::Mod(_)) {
            syn::visit::visit_item(self, item);
        }
    }

    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        let fields = item.fields.len();
        if fields > FIELDS_MAX {
            self.found.push(format!("{}: struct {} has {fields} fields", self.file, item.ident));
        }
    }

    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        self.function(&function.sig, &function.block);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        if !is_test(&function.attrs) {
            self.function(&function.sig, &function.block);
        }
    }
}
