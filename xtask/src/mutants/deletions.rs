//! Deleted statements: mutants that cargo-mutants does not generate.
//!
//! Each statement that calls or assigns is removed from the engine's source, one at a time. Tests
//! (also in files named `tests.rs`), `soft/` and assertions are left alone. So are statements that
//! return, bind or branch, because cargo-mutants changes conditions and functions.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, BinOp, Expr, ItemFn, ItemImpl, ItemMod, ItemTrait, Meta, Stmt};

use crate::command::Failure;

/// The engine's source.
const SOURCE: &str = "crates/shootdown/src";
/// The part of it that is for tests.
const SOFT: &str = "crates/shootdown/src/soft";
/// Name of a module of tests that has a file of its own.
const TESTS: &str = "tests.rs";
/// Maximum number of characters of a statement in its name.
const SHOWN_MAX: usize = 80;

/// A statement that can be deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Deletion {
    /// Place, change and function, in the format of cargo-mutants.
    pub(super) name: String,
    /// Path relative to the root of the repository.
    pub(super) file: PathBuf,
    /// Byte range in the file.
    range: Range<usize>,
}

impl Deletion {
    /// The file's text without the statement. Lines keep their numbers.
    pub(super) fn apply(&self, text: &str) -> String {
        let lines = text[self.range.clone()].matches('\n').count();
        let (before, after) = (&text[..self.range.start], &text[self.range.end..]);
        [before, &"\n".repeat(lines), after].concat()
    }
}

/// Returns all deletions of the engine, file by file.
pub(super) fn all(root: &Path) -> Result<Vec<Deletion>, Failure> {
    let mut files = Vec::new();
    find_sources(root, Path::new(SOURCE), &mut files).map_err(|error| {
        Failure::new(format!("{SOURCE}: {error}"), format!("git checkout {SOURCE}"))
    })?;
    files.sort();
    let mut deletions = Vec::new();
    for file in files {
        let read = fs::read_to_string(root.join(&file)).map_err(|error| error.to_string());
        let found =
            read.and_then(|text| deletions_of(&file, &text).map_err(|error| error.to_string()));
        deletions.extend(found.map_err(|error| {
            Failure::new(format!("{}: {error}", file.display()), "cargo check -p shootdown")
        })?);
    }
    Ok(deletions)
}

fn find_sources(root: &Path, folder: &Path, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in fs::read_dir(root.join(folder))? {
        let entry = entry?;
        let path = folder.join(entry.file_name());
        if path == Path::new(SOFT) || path.ends_with(TESTS) {
            continue;
        }
        if entry.file_type()?.is_dir() {
            find_sources(root, &path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    Ok(())
}

/// Returns the deletions of one file, in order.
fn deletions_of(file: &Path, text: &str) -> syn::Result<Vec<Deletion>> {
    let syntax = syn::parse_file(text)?;
    let mut finder = Finder { file, text, within: Vec::new(), found: Vec::new() };
    if !is_for_tests(&syntax.attrs) {
        finder.visit_file(&syntax);
    }
    Ok(finder.found)
}

struct Finder<'a> {
    file: &'a Path,
    text: &'a str,
    /// The type and the functions that contain the current position.
    within: Vec<String>,
    found: Vec<Deletion>,
}

impl Finder<'_> {
    /// Returns a piece of the source on one line.
    fn squeezed(&self, range: Range<usize>) -> String {
        self.text[range].split_whitespace().collect::<Vec<_>>().join(" ")
    }

    fn within(&mut self, name: String, visit: impl FnOnce(&mut Self)) {
        self.within.push(name);
        visit(self);
        self.within.pop();
    }

    fn delete(&mut self, statement: &Stmt) {
        let span = statement.span();
        let (range, start) = (span.byte_range(), span.start());
        let mut shown = self.squeezed(range.clone());
        if let Some((end, _)) = shown.char_indices().nth(SHOWN_MAX) {
            shown.truncate(end);
            shown.push('…');
        }
        let name = format!(
            "{}:{}:{}: delete statement {shown} in {}",
            self.file.display(),
            start.line,
            start.column + 1,
            self.within.join("::")
        );
        self.found.push(Deletion { name, file: self.file.to_owned(), range });
    }
}

impl<'ast> Visit<'ast> for Finder<'_> {
    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        if !is_for_tests(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_fn(&mut self, item: &'ast ItemFn) {
        if !is_for_tests(&item.attrs) {
            self.within(item.sig.ident.to_string(), |this| visit::visit_item_fn(this, item));
        }
    }

    fn visit_item_impl(&mut self, item: &'ast ItemImpl) {
        if !is_for_tests(&item.attrs) {
            let name = self.squeezed(item.self_ty.span().byte_range());
            self.within(name, |this| visit::visit_item_impl(this, item));
        }
    }

    fn visit_item_trait(&mut self, item: &'ast ItemTrait) {
        if !is_for_tests(&item.attrs) {
            self.within(item.ident.to_string(), |this| visit::visit_item_trait(this, item));
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if !is_for_tests(&item.attrs) {
            self.within(item.sig.ident.to_string(), |this| visit::visit_impl_item_fn(this, item));
        }
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        self.within(item.sig.ident.to_string(), |this| visit::visit_trait_item_fn(this, item));
    }

    fn visit_stmt(&mut self, statement: &'ast Stmt) {
        if let Stmt::Expr(expression, Some(_)) = statement
            && is_deletable(expression)
        {
            self.delete(statement);
        }
        // Closures and blocks within the statement have statements of their own.
        visit::visit_stmt(self, statement);
    }
}

/// Returns `true` for a call or a store.
fn is_deletable(expression: &Expr) -> bool {
    match expression {
        Expr::Call(_) | Expr::MethodCall(_) | Expr::Assign(_) => true,
        Expr::Binary(binary) => is_assignment(&binary.op),
        Expr::Try(tried) => is_deletable(&tried.expr),
        Expr::Paren(inner) => is_deletable(&inner.expr),
        _ => false,
    }
}

/// Returns `true` if an operator stores its result.
const fn is_assignment(operator: &BinOp) -> bool {
    matches!(
        operator,
        BinOp::AddAssign(_)
            | BinOp::SubAssign(_)
            | BinOp::MulAssign(_)
            | BinOp::DivAssign(_)
            | BinOp::RemAssign(_)
            | BinOp::BitXorAssign(_)
            | BinOp::BitAndAssign(_)
            | BinOp::BitOrAssign(_)
            | BinOp::ShlAssign(_)
            | BinOp::ShrAssign(_)
    )
}

/// Returns `true` for `#[test]`, and for `#[cfg(…)]` with a condition that contains `test` and is
/// not `not(…)`.
fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::Path(path) => path.is_ident("test"),
        Meta::List(list) if list.path.is_ident("cfg") => {
            let condition = list.tokens.to_string();
            let mut words = condition.split(|letter: char| !letter.is_alphanumeric());
            words.any(|word| word == "test") && !condition.starts_with("not")
        }
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Vec<Deletion> {
        deletions_of(Path::new("a.rs"), text).expect("the text is valid Rust")
    }

    /// Returns the statements of a function's body that are deleted.
    fn deleted(body: &str) -> Vec<String> {
        let prefix = "a.rs:2:1: delete statement ";
        let text = format!("fn f() {{\n{body}\n}}");
        of(&text)
            .into_iter()
            .map(|deletion| deletion.name.replace(prefix, "").replace(" in f", ""))
            .collect()
    }

    #[test]
    fn calls_and_stores_are_deleted() {
        for statement in
            ["g(1);", "self.a.b(2);", "a = 1;", "self.a.b = g();", "*a |= 2;", "a.b()?;", "(g)(x);"]
        {
            assert_eq!(deleted(statement), [statement]);
        }
    }

    #[test]
    fn other_statements_are_left_alone() {
        for statement in [
            "let a = g();",
            "return;",
            "if a {}",
            "debug_assert!(g());",
            "a < b;",
            "g()",
            "loop { break; }",
            "use a::b;",
            "a;",
        ] {
            assert_eq!(deleted(statement), [""; 0], "{statement}");
        }
    }

    #[test]
    fn nested_statement_is_deleted_alone() {
        let text = "fn f() {\n    if a {\n        g();\n    }\n    \
                    a.each(|b| {\n        h(b);\n    });\n}\n";
        let deletions = of(text);
        let names: Vec<_> = deletions.iter().map(|deletion| &*deletion.name).collect();
        assert_eq!(
            names,
            [
                "a.rs:3:9: delete statement g(); in f",
                "a.rs:5:5: delete statement a.each(|b| { h(b); }); in f",
                "a.rs:6:9: delete statement h(b); in f",
            ]
        );
        let without: Vec<_> = deletions.iter().map(|deletion| deletion.apply(text)).collect();
        assert_eq!(without[0], text.replace("g();", ""));
        // Later lines keep their numbers.
        assert_eq!(without[1].lines().count(), text.lines().count());
        assert_eq!(without[1].lines().nth(7), Some("}"));
        assert_eq!(without[2], text.replace("h(b);", ""));
    }

    #[test]
    fn multibyte_letters_do_not_shift_statements() {
        let text = "/// „Ä“.\nfn f() {\n    g(\"…\"); h();\n}\n";
        let deletions = of(text);
        assert_eq!(deletions[1].apply(text), text.replace("h();", ""));
        assert_eq!(deletions[0].apply(text), text.replace("g(\"…\");", ""));
    }

    #[test]
    fn functions_are_named_with_their_type() {
        let text =
            "impl<'e, M: A> B<'e, M> {\n    fn f(&self) { g(); }\n}\ntrait C { fn h() { i(); } }";
        let names: Vec<_> = of(text).into_iter().map(|deletion| deletion.name).collect();
        assert_eq!(
            names,
            [
                "a.rs:2:19: delete statement g(); in B<'e, M>::f",
                "a.rs:4:20: delete statement i(); in C::h",
            ]
        );
    }

    #[test]
    fn test_code_is_left_alone() {
        for text in [
            "#[cfg(test)] mod tests { fn f() { g(); } }",
            "#[cfg(all(test, feature = \"soft\"))] mod tests { fn f() { g(); } }",
            "#[test] fn f() { g(); }",
            "#![cfg(test)] fn f() { g(); }",
            "impl A { #[cfg(test)] fn f() { g(); } }",
        ] {
            assert_eq!(of(text), [], "{text}");
        }
        assert_eq!(of("#[cfg(not(test))] fn f() { g(); }").len(), 1);
        assert_eq!(of("#[cfg(feature = \"soft\")] fn f() { g(); }").len(), 1);
    }

    #[test]
    fn long_statements_are_cut_in_names() {
        let argument = "ä".repeat(100);
        let names = deleted(&format!("g({argument});"));
        assert_eq!(names, [format!("g({}…", "ä".repeat(SHOWN_MAX - 2))]);
    }

    #[test]
    fn engine_has_statements_to_delete() {
        let deletions = all(crate::root()).expect("the source is there");
        assert!(deletions.len() > 200, "{}", deletions.len());
        assert!(deletions.iter().all(|deletion| !deletion.file.starts_with(SOFT)));
        assert!(deletions.iter().all(|deletion| !deletion.file.ends_with(TESTS)));
        assert!(deletions.iter().any(|deletion| deletion.name.contains("machine.publish();")));
    }
}
