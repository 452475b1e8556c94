//! The arrows between the modules of a crate: which module's code names another's items, and which
//! of them do so in a circle.
//!
//! Arrows are between modules of one folder, the deeper ones counted with the one they are in:
//! `a::b` naming `crate::c::d` is an arrow from `a` to `c`. What a module's parent takes in with
//! `use` is followed to where it comes from. A module and the one it stands in are not compared, and
//! tests do not count.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use quote::ToTokens;
use syn::{Attribute, Item, UseTree};

/// The names of modules, from the crate's root on.
type Name = Vec<String>;
/// Which modules of a folder each of them names.
pub type Arrows = BTreeMap<String, BTreeSet<String>>;

#[derive(Default)]
struct Crate {
    /// Each module with the paths that its own code names, absolute but not yet followed.
    named: BTreeMap<Name, BTreeSet<Name>>,
    /// What a module takes in from elsewhere under a name of its own.
    taken_in: BTreeMap<Name, Name>,
    /// Modules that a module takes in whole.
    globs: BTreeMap<Name, BTreeSet<Name>>,
    /// The items of a module that have a name.
    defined: BTreeSet<Name>,
}

/// The circles among the modules of a crate: of each folder the sets of modules that reach one
/// another, as `folder: one, other`.
pub fn circles(root_file: &Path) -> Vec<String> {
    let mut modules = Crate::default();
    modules.read(root_file, &root_file.with_file_name(""), &Vec::new());
    modules.circles()
}

/// Whom the modules of a crate's root name, each of them.
pub fn arrows(root_file: &Path) -> Arrows {
    let mut modules = Crate::default();
    modules.read(root_file, &root_file.with_file_name(""), &Vec::new());
    modules.root_arrows()
}

/// The same of a crate that is written in one file.
#[cfg(test)]
pub fn arrows_of(text: &str) -> Arrows {
    Crate::of(text).root_arrows()
}

#[cfg(test)]
fn circles_of(text: &str) -> Vec<String> {
    Crate::of(text).circles()
}

impl Crate {
    #[cfg(test)]
    fn of(text: &str) -> Self {
        let mut modules = Self::default();
        let file = syn::parse_file(text).expect("the text is Rust");
        modules.items(&file.items, (Path::new(""), Path::new("")), &Vec::new());
        modules
    }

    fn read(&mut self, file: &Path, folder: &Path, module: &Name) {
        let text = fs::read_to_string(file).unwrap_or_else(|error| {
            panic!("{}: {error}", file.display());
        });
        let parsed = syn::parse_file(&text).unwrap_or_else(|error| {
            panic!("{}: {error}", file.display());
        });
        let beside = file.with_file_name("");
        self.items(&parsed.items, (folder, &beside), module);
    }

    /// Notes the items of a module whose own modules are in `folder`; `path` attributes are seen from `beside`.
    fn items(&mut self, items: &[Item], (folder, beside): (&Path, &Path), module: &Name) {
        self.named.entry(module.clone()).or_default();
        for item in items {
            match item {
                Item::Mod(inner) if for_tests(&inner.attrs) => {}
                Item::Mod(inner) => {
                    let ident = inner.ident.to_string();
                    let mut name = module.clone();
                    name.push(ident.clone());
                    let below = folder.join(&ident);
                    match &inner.content {
                        Some((_, items)) => self.items(items, (&below, &below), &name),
                        None => {
                            let file = file_of(&inner.attrs, (folder, beside), &ident);
                            self.read(&file, &below, &name);
                        }
                    }
                }
                Item::Use(item) if !for_tests(&item.attrs) => {
                    self.take_in(&item.tree, Vec::new(), module);
                }
                other if !attributes(other).is_some_and(for_tests) => {
                    if let Some(ident) = ident(other) {
                        let mut name = module.clone();
                        name.push(ident.to_string());
                        self.defined.insert(name);
                    }
                    let mut found = Vec::new();
                    paths(other.to_token_stream(), &mut found);
                    for path in found {
                        self.name(&path, module);
                    }
                }
                _ => {}
            }
        }
    }

    /// Notes that the code of a module names a path, if it is one of this crate.
    fn name(&mut self, path: &[String], module: &Name) {
        if let Some(path) = absolute(path, module) {
            self.named.entry(module.clone()).or_default().insert(path);
        }
    }

    fn take_in(&mut self, tree: &UseTree, before: Vec<String>, module: &Name) {
        let with = |ident: &syn::Ident| {
            let mut path = before.clone();
            if ident != "self" || path.is_empty() {
                path.push(ident.to_string());
            }
            path
        };
        let (path, known_as) = match tree {
            UseTree::Path(path) => return self.take_in(&path.tree, with(&path.ident), module),
            UseTree::Group(group) => {
                for tree in &group.items {
                    self.take_in(tree, before.clone(), module);
                }
                return;
            }
            UseTree::Name(name) => {
                let path = with(&name.ident);
                let known_as = path.last().cloned();
                (path, known_as)
            }
            UseTree::Rename(rename) => (with(&rename.ident), Some(rename.rename.to_string())),
            UseTree::Glob(_) => (before, None),
        };
        // A path that starts with a module of this one, as "pub use qp::Qp" in the root.
        let path = match absolute(&path, module) {
            Some(path) => path,
            None => {
                let mut own = module.clone();
                own.extend(path);
                own
            }
        };
        self.named
            .entry(module.clone())
            .or_default()
            .insert(path.clone());
        match known_as {
            Some(known_as) => {
                let mut name = module.clone();
                name.push(known_as);
                if name != path {
                    self.taken_in.insert(name, path);
                }
            }
            None => {
                self.globs.entry(module.clone()).or_default().insert(path);
            }
        }
    }

    /// Where a path leads, through what modules take in from others.
    fn follow(&self, path: &Name) -> Name {
        let mut path = path.clone();
        // As many turns as names can be handed on; a circle of them is an error for the compiler.
        for _ in 0..16 {
            let taken = (1..=path.len()).find_map(|length| {
                let (head, tail) = path.split_at(length);
                let mut to = match self.taken_in.get(head) {
                    Some(to) => to.clone(),
                    None => self.through_glob(head)?,
                };
                to.extend_from_slice(tail);
                Some(to)
            });
            match taken {
                Some(to) => path = to,
                None => break,
            }
        }
        path
    }

    /// Where a name comes from that its module has by taking in another whole.
    fn through_glob(&self, name: &[String]) -> Option<Name> {
        let (last, module) = name.split_last()?;
        if self.defined.contains(name) || self.named.contains_key(name) {
            return None;
        }
        self.globs.get(module)?.iter().find_map(|glob| {
            let mut there = glob.clone();
            there.push(last.clone());
            let known = self.defined.contains(&there) || self.taken_in.contains_key(&there);
            known.then_some(there)
        })
    }

    /// The module that a path is in.
    fn module_of(&self, path: &Name) -> Name {
        let mut path = self.follow(path);
        while !self.named.contains_key(&path) {
            path.pop();
        }
        path
    }

    /// The arrows between the modules of each folder.
    fn arrows(&self) -> BTreeMap<Name, Arrows> {
        let mut arrows: BTreeMap<Name, Arrows> = BTreeMap::new();
        for (from, paths) in &self.named {
            for path in paths {
                let to = self.module_of(path);
                let common = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
                if let (Some(own), Some(other)) = (from.get(common), to.get(common)) {
                    arrows
                        .entry(from[..common].to_vec())
                        .or_default()
                        .entry(own.clone())
                        .or_default()
                        .insert(other.clone());
                }
            }
        }
        arrows
    }

    /// Those of the root, whose modules are all in it.
    fn root_arrows(&self) -> Arrows {
        let mut arrows = self.arrows().remove(&Name::new()).unwrap_or_default();
        for module in self.named.keys() {
            if let [name] = module.as_slice() {
                arrows.entry(name.clone()).or_default();
            }
        }
        arrows
    }

    fn circles(&self) -> Vec<String> {
        let mut circles = Vec::new();
        for (folder, arrows) in &self.arrows() {
            let folder = match folder.is_empty() {
                true => "crate".to_string(),
                false => folder.join("::"),
            };
            for circle in circles_among(arrows) {
                circles.push(format!("{folder}: {}", circle.join(", ")));
            }
        }
        circles
    }
}

/// The sets of more than one module that reach one another.
fn circles_among(arrows: &Arrows) -> Vec<Vec<String>> {
    let reach: BTreeMap<&String, BTreeSet<&String>> = arrows
        .keys()
        .map(|start| {
            let mut seen = BTreeSet::new();
            let mut next = vec![start];
            while let Some(at) = next.pop() {
                for to in arrows.get(at).into_iter().flatten() {
                    if seen.insert(to) {
                        next.push(to);
                    }
                }
            }
            (start, seen)
        })
        .collect();
    let mut circles = BTreeSet::new();
    for (start, seen) in &reach {
        let circle: Vec<String> = seen
            .iter()
            .filter(|other| reach.get(*other).is_some_and(|back| back.contains(start)))
            .map(|other| (*other).clone())
            .collect();
        if circle.len() > 1 {
            circles.insert(circle);
        }
    }
    circles.into_iter().collect()
}

/// The path from the root, of one that starts with `crate`, `self` or `super`.
fn absolute(path: &[String], module: &Name) -> Option<Name> {
    let (first, mut rest) = path.split_first()?;
    let mut base = match first.as_str() {
        "crate" => Vec::new(),
        "self" => module.clone(),
        "super" => {
            let mut base = module.clone();
            base.pop();
            while let Some((next, further)) = rest.split_first()
                && next == "super"
            {
                base.pop();
                rest = further;
            }
            base
        }
        _ => return None,
    };
    base.extend_from_slice(rest);
    Some(base)
}

/// Every path in a piece of code, macros included. A list in braces behind a path is one path each.
fn paths(tokens: TokenStream, found: &mut Vec<Vec<String>>) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let mut at = 0;
    while at < tokens.len() {
        match &tokens[at] {
            TokenTree::Group(group) => {
                paths(group.stream(), found);
                at += 1;
            }
            TokenTree::Ident(ident) => {
                let mut path = vec![ident.to_string()];
                at += 1;
                while is_colon(tokens.get(at)) && is_colon(tokens.get(at + 1)) {
                    match tokens.get(at + 2) {
                        Some(TokenTree::Ident(next)) => path.push(next.to_string()),
                        Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => {
                            let mut inner = Vec::new();
                            paths(group.stream(), &mut inner);
                            for tail in inner {
                                let mut whole = path.clone();
                                whole.extend(tail);
                                found.push(whole);
                            }
                        }
                        _ => break,
                    }
                    at += 3;
                }
                if path.len() > 1 {
                    found.push(path);
                }
            }
            _ => at += 1,
        }
    }
}

fn is_colon(token: Option<&TokenTree>) -> bool {
    matches!(token, Some(TokenTree::Punct(punct)) if punct.as_char() == ':')
}

/// `#[cfg(test)]`, alone or within `all(…)`, and `#[test]`. What is left out of test builds counts.
pub(super) fn for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let text: String = attribute
            .to_token_stream()
            .to_string()
            .split_whitespace()
            .collect();
        text == "#[test]"
            || text.starts_with("#[cfg(test")
            || text.starts_with("#[cfg(all(test,")
            || text.starts_with("#[cfg(all(loom,test")
    })
}

pub(super) fn attributes(item: &Item) -> Option<&[Attribute]> {
    Some(match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        _ => return None,
    })
}

fn ident(item: &Item) -> Option<&syn::Ident> {
    Some(match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        _ => return None,
    })
}

fn file_of(attributes: &[Attribute], (folder, beside): (&Path, &Path), module: &str) -> PathBuf {
    for attribute in attributes {
        if attribute.path().is_ident("path")
            && let syn::Meta::NameValue(pair) = &attribute.meta
            && let syn::Expr::Lit(literal) = &pair.value
            && let syn::Lit::Str(path) = &literal.lit
        {
            return beside.join(path.value());
        }
    }
    let file = folder.join(format!("{module}.rs"));
    match file.exists() {
        true => file,
        false => folder.join(module).join("mod.rs"),
    }
}

#[test]
fn a_circle_is_found_and_a_chain_is_none() {
    let chain = "mod a { use crate::b::B; } mod b { use super::c; pub struct B; } mod c {}";
    assert_eq!(circles_of(chain), Vec::<String>::new());
    let circle = "mod a { use crate::b::B; } mod b { fn f() { crate::c::g() } } \
                  mod c { fn g() { m!(super::a::X) } }";
    assert_eq!(circles_of(circle), ["crate: a, b, c"]);
}

#[test]
fn a_circle_through_what_the_root_hands_on_is_found() {
    let text = "pub use a::A; mod a { use crate::b; pub struct A; } mod b { use crate::A; }";
    assert_eq!(circles_of(text), ["crate: a, b"]);
}

#[test]
fn a_circle_through_what_is_taken_in_whole_is_found() {
    let text = "pub use a::*; mod a { use crate::b; pub struct A; } mod b { use crate::A; }";
    assert_eq!(circles_of(text), ["crate: a, b"]);
}

#[test]
fn a_circle_further_in_is_found() {
    let text = "mod a { mod x { use super::y::Y; } mod y { use crate::a::x; } }";
    assert_eq!(circles_of(text), ["a: x, y"]);
}

#[test]
fn tests_do_not_count() {
    let text = "mod a { #[cfg(test)] mod tests { use crate::b; } #[test] fn t() { crate::b::f() } } \
                mod b { use crate::a; }";
    assert_eq!(circles_of(text), Vec::<String>::new());
}
