//! Writing mutants into a syntax tree.

use proc_macro2::{LineColumn, Span, TokenStream};
use quote::{ToTokens, quote};
use serde::Deserialize;
use std::collections::BTreeMap;
use syn::spanned::Spanned;
use syn::visit_mut::{self, VisitMut};
use syn::{
    Arm, Block, Expr, ExprBinary, ExprUnary, File, ImplItemConst, ItemConst, ReturnType, Signature,
    parse_quote,
};

/// A mutant as `cargo mutants --list --json` prints it.
#[derive(Debug, Deserialize)]
pub(crate) struct Mutant {
    /// Path of the source file, from the root of the repository.
    pub(crate) file: String,
    /// Kind of the change, such as `BinaryOperator`.
    genre: String,
    /// Text that replaces the source text at `span`.
    replacement: String,
    /// Place of the source text that the mutant replaces.
    span: Place,
}

/// Place of a text in a source file.
#[derive(Debug, Deserialize)]
struct Place {
    start: Position,
}

/// Line and column in a source file, both counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
struct Position {
    line: usize,
    column: usize,
}

impl From<LineColumn> for Position {
    fn from(at: LineColumn) -> Position {
        Position { line: at.line, column: at.column + 1 }
    }
}

/// Rewrites one source file so that it holds all its mutants.
pub(crate) struct Rewrite<'a> {
    /// Number and replacement of each mutant, by kind and by the position where the replaced text starts.
    mutants: BTreeMap<(&'a str, Position), Vec<(u32, &'a str)>>,
    written: Vec<u32>,
}

impl<'a> Rewrite<'a> {
    pub(crate) fn new(mutants: &'a [(u32, Mutant)]) -> Rewrite<'a> {
        let mut of_place: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for (number, mutant) in mutants {
            let place = (mutant.genre.as_str(), mutant.span.start);
            of_place.entry(place).or_default().push((*number, mutant.replacement.as_str()));
        }
        Rewrite { mutants: of_place, written: Vec::new() }
    }

    /// Writes the mutants into the file, and returns the numbers of those whose places were found.
    pub(crate) fn apply(mut self, file: &mut File) -> Vec<u32> {
        self.visit_file_mut(file);
        self.written.sort_unstable();
        self.written
    }

    /// Removes and returns the mutants of a kind whose replaced text starts at `span`.
    fn take(&mut self, genre: &'static str, span: Span) -> Vec<(u32, &'a str)> {
        self.mutants.remove(&(genre, span.start().into())).unwrap_or_default()
    }

    /// Returns the arms of a `match` over the active mutant: for each mutant its replacement of the code. Replacements
    /// that cannot be written have no arm.
    fn arms(
        &mut self,
        mutants: &[(u32, &'a str)],
        replaced: impl Fn(&str) -> Option<TokenStream>,
    ) -> Vec<TokenStream> {
        let mut arms = Vec::new();
        for (number, text) in mutants {
            if let Some(code) = replaced(text) {
                self.written.push(*number);
                arms.push(quote!(#number => #code,));
            }
        }
        arms
    }

    /// Lets a function return a replacement before its first statement, which stood at `first`.
    fn enter(&mut self, first: Option<Span>, body: &mut Block) {
        let Some(first) = first else { return };
        let mutants = self.take("FnValue", first);
        let Some((place, _)) = mutants.first().copied() else { return };
        let arms = self.arms(&mutants, |text| {
            let value: Expr = syn::parse_str(text).ok()?;
            Some(quote!(return #value))
        });
        body.stmts.insert(0, parse_quote!(match crate::mutants::at(#place) { #(#arms)* _ => {} }));
    }

    fn binary(&mut self, original: &ExprBinary, rewritten: &mut Expr) {
        let mutants = self.take("BinaryOperator", original.op.span());
        let Some((place, _)) = mutants.first().copied() else { return };
        if is_let(&original.left) || is_let(&original.right) {
            return;
        }
        let arms = self.arms(&mutants, |text| {
            let op = syn::parse_str(text).ok()?;
            let changed = ExprBinary { op, ..original.clone() };
            Some(quote!((#changed)))
        });
        let usual = &*rewritten;
        *rewritten = parse_quote!((match crate::mutants::at(#place) { #(#arms)* _ => (#usual) }));
    }

    fn unary(&mut self, original: &ExprUnary, rewritten: &mut Expr) {
        let mutants = self.take("UnaryOperator", original.op.span());
        let Some((place, _)) = mutants.first().copied() else { return };
        let operand = &original.expr;
        let arms = self.arms(&mutants, |_| Some(quote!((#operand))));
        let usual = &*rewritten;
        *rewritten = parse_quote!((match crate::mutants::at(#place) { #(#arms)* _ => (#usual) }));
    }

    fn guard(&mut self, original: &Expr, rewritten: &mut Expr) {
        let mutants = self.take("MatchArmGuard", original.span());
        let Some((place, _)) = mutants.first().copied() else { return };
        let arms = self.arms(&mutants, |text| syn::parse_str(text).ok());
        let usual = &*rewritten;
        *rewritten = parse_quote!((match crate::mutants::at(#place) { #(#arms)* _ => (#usual) }));
    }
}

/// Returns where a function's first statement stands; `None` if the function is `const`, which cannot ask for the
/// active mutant, or returns an `impl` type, which would have to be one type for all mutants.
fn first_statement(signature: &Signature, body: &Block) -> Option<Span> {
    let one_type = match &signature.output {
        ReturnType::Type(_, output) => !output.to_token_stream().to_string().contains("impl "),
        ReturnType::Default => true,
    };
    let statement = body.stmts.first().filter(|_| one_type && signature.constness.is_none());
    statement.map(Spanned::span)
}

/// Whether an operand of `&&` is a `let` condition, or holds one.
fn is_let(operand: &Expr) -> bool {
    match operand {
        Expr::Let(_) => true,
        Expr::Binary(inner) => is_let(&inner.left) || is_let(&inner.right),
        _ => false,
    }
}

impl VisitMut for Rewrite<'_> {
    fn visit_item_fn_mut(&mut self, function: &mut syn::ItemFn) {
        let first = first_statement(&function.sig, &function.block);
        visit_mut::visit_item_fn_mut(self, function);
        self.enter(first, &mut function.block);
    }

    fn visit_impl_item_fn_mut(&mut self, function: &mut syn::ImplItemFn) {
        let first = first_statement(&function.sig, &function.block);
        visit_mut::visit_impl_item_fn_mut(self, function);
        self.enter(first, &mut function.block);
    }

    fn visit_arm_mut(&mut self, arm: &mut Arm) {
        let original = arm.guard.clone();
        visit_mut::visit_arm_mut(self, arm);
        if let (Some((_, original)), Some((_, rewritten))) = (&original, &mut arm.guard) {
            self.guard(original, rewritten);
        }
    }

    /// Leaves constants as they are, because they cannot ask for the active mutant.
    fn visit_item_const_mut(&mut self, _: &mut ItemConst) {}

    fn visit_impl_item_const_mut(&mut self, _: &mut ImplItemConst) {}

    fn visit_expr_mut(&mut self, expr: &mut Expr) {
        let original = expr.clone();
        visit_mut::visit_expr_mut(self, expr);
        match &original {
            Expr::Binary(binary) => self.binary(binary, expr),
            Expr::Unary(unary) => self.unary(unary, expr),
            _ => {}
        }
    }
}
