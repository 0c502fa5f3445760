//! The modules of a crate, and the cycles among them.
//!
//! Module A uses module B if a path in A that begins with `crate`, `super` or `self` leads into B:
//! in a `use`, an expression or a macro. A path through a re-export leads to the module that has
//! the item. Three things are not uses: a re-export; a path in test code; and a path that begins
//! with the name of A's own child, because a folder and its `mod.rs` are one part.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};

use super::source::without_tests;

/// The modules of one crate. The first is the root.
#[derive(Debug, Default)]
pub(super) struct Modules {
    modules: Vec<Module>,
}

/// A module, with the paths that its own tokens name.
#[derive(Debug)]
struct Module {
    parent: usize,
    name: String,
    children: BTreeMap<String, usize>,
    /// Paths of `pub use`, by the name that each gives to its item.
    exports: BTreeMap<String, Vec<String>>,
    paths: Vec<Vec<String>>,
}

impl Modules {
    /// Reads the crate whose root is the file `root`. `read` returns a file's text, if it exists.
    pub(super) fn read(root: &Path, read: &impl Fn(&Path) -> Option<String>) -> Self {
        let mut modules = Self::default();
        if let Some(text) = read(root) {
            let folder = root.parent().unwrap_or(root);
            modules.add(0, String::new(), &tokens_of(&text), folder, read);
        }
        modules
    }

    pub(super) fn count(&self) -> usize {
        self.modules.len()
    }

    /// Adds a module and its children. The files of the children are in `folder`.
    fn add(
        &mut self,
        parent: usize,
        name: String,
        tokens: &TokenStream,
        folder: &Path,
        read: &impl Fn(&Path) -> Option<String>,
    ) -> usize {
        let index = self.modules.len();
        let (children, exports) = (BTreeMap::new(), BTreeMap::new());
        self.modules.push(Module { parent, name, children, exports, paths: Vec::new() });
        for (name, body) in children_in(tokens) {
            let folder = folder.join(&name);
            let text = body.map(|body| (body, folder.clone())).or_else(|| {
                let files: [PathBuf; 2] = [folder.with_extension("rs"), folder.join("mod.rs")];
                files.iter().find_map(|file| Some((tokens_of(&read(file)?), folder.clone())))
            });
            if let Some((tokens, folder)) = text {
                let child = self.add(index, name.clone(), &tokens, &folder, read);
                self.modules[index].children.insert(name, child);
            }
        }
        self.modules[index].scan(tokens);
        index
    }

    /// Returns the modules that each module uses.
    fn uses(&self) -> Vec<BTreeSet<usize>> {
        let of_module = |(index, module): (usize, &Module)| {
            let used = module.paths.iter().filter_map(|path| self.resolve(index, path, 0));
            used.filter(|&used| used != index).collect()
        };
        self.modules.iter().enumerate().map(of_module).collect()
    }

    /// Returns the module to which a path in the module `from` leads; `None` if that is in another
    /// crate.
    fn resolve(&self, from: usize, path: &[String], depth: usize) -> Option<usize> {
        /// A chain of re-exports is shorter than this, unless globs form a ring.
        const DEPTH_MAX: usize = 8;
        let (first, mut rest) = path.split_first()?;
        let mut module = match first.as_str() {
            "crate" => 0,
            "self" => from,
            "super" => self.modules[from].parent,
            // Only a re-export may name its own child without `self`.
            name if depth > 0 => *self.modules[from].children.get(name)?,
            _ => return None,
        };
        while let Some((name, after)) = rest.split_first() {
            let pin = &self.modules[module];
            module = match (name.as_str(), pin.children.get(name), pin.exports.get(name)) {
                ("super", ..) => pin.parent,
                (_, Some(&child), _) => child,
                (_, None, Some(export)) if depth < DEPTH_MAX => {
                    let export = [export.as_slice(), after].concat();
                    return self.resolve(module, &export, depth + 1).or(Some(module));
                }
                _ => break,
            };
            rest = after;
        }
        Some(module)
    }

    /// Returns the names of the largest set of modules that all use each other, directly or
    /// indirectly. A module that is in no cycle is a set of one.
    pub(super) fn largest_cycle(&self) -> Vec<String> {
        let uses = self.uses();
        let reached: Vec<BTreeSet<usize>> = (0..uses.len())
            .map(|start| {
                let (mut reached, mut left) = (BTreeSet::new(), vec![start]);
                while let Some(next) = left.pop() {
                    left.extend(uses[next].iter().filter(|&&used| reached.insert(used)));
                }
                reached
            })
            .collect();
        let cycle_of = |module: usize| -> Vec<usize> {
            let is_in = |&other: &usize| {
                other == module
                    || reached[module].contains(&other) && reached[other].contains(&module)
            };
            (0..uses.len()).filter(is_in).collect()
        };
        // Take the first of the largest sets, so that the result is deterministic.
        let largest = (0..uses.len()).rev().map(cycle_of).max_by_key(Vec::len).unwrap_or_default();
        largest.into_iter().map(|module| self.name(module)).collect()
    }

    fn name(&self, module: usize) -> String {
        match &self.modules[module] {
            _ if module == 0 => "crate".to_owned(),
            Module { parent: 0, name, .. } => name.clone(),
            Module { parent, name, .. } => format!("{}::{name}", self.name(*parent)),
        }
    }
}

impl Module {
    /// Collects the paths in these tokens.
    fn scan(&mut self, tokens: &TokenStream) {
        use TokenTree::{Group, Ident, Punct};
        let tokens: Vec<TokenTree> = tokens.clone().into_iter().collect();
        let mut rest = tokens.as_slice();
        while let [first, after @ ..] = rest {
            rest = match rest {
                // The braces contain the other module.
                [Ident(word), _, Group(_), after @ ..] if word == "mod" => after,
                [Ident(public), Ident(word), after @ ..]
                | [Ident(public), Group(_), Ident(word), after @ ..]
                    if public == "pub" && word == "use" =>
                {
                    let (paths, after) = use_tree(after);
                    self.exports.extend(paths.into_iter().map(|(path, name)| (name, path)));
                    after
                }
                [Ident(word), after @ ..] if word == "use" => {
                    let (paths, after) = use_tree(after);
                    self.paths.extend(paths.into_iter().map(|(path, _)| path));
                    after
                }
                [Ident(word), after @ ..] => {
                    let (mut path, mut after) = (vec![word.to_string()], after);
                    while let [Punct(one), Punct(two), Ident(name), further @ ..] = after
                        && (one.as_char(), two.as_char()) == (':', ':')
                    {
                        path.push(name.to_string());
                        after = further;
                    }
                    if matches!(path[0].as_str(), "crate" | "self" | "super") && path.len() > 1 {
                        self.paths.push(path);
                    }
                    after
                }
                _ => {
                    if let Group(group) = first {
                        self.scan(&group.stream());
                    }
                    after
                }
            };
        }
    }
}

/// Returns the paths of a `use` up to its semicolon, each with the name that it gives, and the
/// tokens after the semicolon.
fn use_tree(mut tokens: &[TokenTree]) -> (Vec<(Vec<String>, String)>, &[TokenTree]) {
    let (mut paths, mut path, mut name) = (Vec::new(), Vec::new(), None);
    while let [token, after @ ..] = tokens {
        tokens = after;
        match token {
            TokenTree::Punct(mark) if matches!(mark.as_char(), ',' | ';') => {
                paths.extend(named(std::mem::take(&mut path), name.take()));
                if mark.as_char() == ';' {
                    break;
                }
            }
            TokenTree::Ident(word) if word == "as" => name = Some(String::new()),
            TokenTree::Ident(word) if name.is_some() => name = Some(word.to_string()),
            TokenTree::Ident(word) => path.push(word.to_string()),
            TokenTree::Group(group) => {
                let inner: Vec<TokenTree> = group.stream().into_iter().collect();
                let prefix = std::mem::take(&mut path);
                for (mut inner, mut name) in use_tree(&inner).0 {
                    if inner == ["self"] {
                        name = prefix.last().cloned().filter(|_| name == "self").unwrap_or(name);
                        inner.clear();
                    }
                    paths.push(([prefix.as_slice(), &inner].concat(), name));
                }
            }
            _ => {}
        }
    }
    paths.extend(named(path, name));
    (paths, tokens)
}

/// Returns a path with the name that it gives: its last part, unless `as` gives another.
fn named(path: Vec<String>, name: Option<String>) -> Option<(Vec<String>, String)> {
    let last = path.last()?.clone();
    Some((path, name.unwrap_or(last)))
}

/// Returns the modules that are declared among these tokens, with the bodies of those that have one
/// here.
fn children_in(tokens: &TokenStream) -> Vec<(String, Option<TokenStream>)> {
    let tokens: Vec<TokenTree> = tokens.clone().into_iter().collect();
    let child = |three: &[TokenTree]| match three {
        [TokenTree::Ident(word), TokenTree::Ident(name), body] if word == "mod" => {
            let body = match body {
                TokenTree::Group(group) => Some(group.stream()),
                _ => None,
            };
            Some((name.to_string(), body))
        }
        _ => None,
    };
    tokens.windows(3).filter_map(child).collect()
}

/// Returns the tokens of a file outside of tests. A file that does not parse has none; the compiler
/// reports it.
fn tokens_of(text: &str) -> TokenStream {
    without_tests(text).join("\n").parse().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the largest cycle of a crate of these files.
    fn cycle(files: &[(&str, &str)]) -> Vec<String> {
        let files: BTreeMap<&Path, &str> =
            files.iter().map(|(name, text)| (Path::new(*name), *text)).collect();
        let read = |file: &Path| files.get(file).map(|text| (*text).to_owned());
        Modules::read(Path::new("src/lib.rs"), &read).largest_cycle()
    }

    #[test]
    fn mutual_use_forms_a_cycle() {
        let root = ("src/lib.rs", "mod a;\nmod b;\nmod c;\npub use a::A;");
        let b = ("src/b/mod.rs", "pub(crate) mod d;\nuse super::c;");
        for (a, d, expected) in [
            ("use crate::b::d;", "fn f() { crate::a::g() }", &["a", "b::d"][..]),
            ("use crate::b::{d::D as Other};", "m! { $crate::A }", &["a", "b::d"]),
            ("use crate::{c, b::d::{self}};", "use super::super::a::{A};", &["a", "b::d"]),
            ("use crate::b;", "use crate::a;", &["crate"]),
            ("use crate::b::d;", "#[cfg(test)]\nmod tests {\n    use crate::a;\n}", &["crate"]),
            ("use crate::b::d;", "use std::a; fn f() { x.a(b::a::c, std::crate_) }", &["crate"]),
        ] {
            let files = [root, b, ("src/a.rs", a), ("src/c.rs", "fn g() {}"), ("src/b/d.rs", d)];
            assert_eq!(cycle(&files), expected, "{a} {d}");
        }
    }

    #[test]
    fn parent_that_calls_its_child_is_in_no_cycle() {
        let child = ("src/a.rs", "use super::Root;");
        assert_eq!(cycle(&[("src/lib.rs", "mod a; fn f() { a::g() }"), child]), ["crate"]);
        assert_eq!(
            cycle(&[("src/lib.rs", "mod a; fn f() { self::a::g() }"), child]),
            ["crate", "a"]
        );
        assert_eq!(
            cycle(&[("src/lib.rs", "mod a { use super::X; } use self::a::Y;")]),
            ["crate", "a"]
        );
    }
}
