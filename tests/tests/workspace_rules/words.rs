//! Who writes the words of a direction (docs/handover.md).

use std::fs;
use std::path::Path;

use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens;

use super::modules::{attributes, for_tests};
use super::{root, tracked_files};

/// What of `sluice-shmem` may write words: where they are, and what makes a protocol of them.
const WRITERS: &[&str] = &["direction", "handover", "loom_models"];

/// Whether a text takes in what writes words, in other code than tests.
fn writes_words(text: &str) -> bool {
    let file = syn::parse_file(text).expect("the text is Rust");
    file.items
        .iter()
        .filter(|item| match item {
            syn::Item::Mod(inner) => !for_tests(&inner.attrs),
            other => !attributes(other).is_some_and(for_tests),
        })
        .any(|item| names_words(item.to_token_stream()))
}

/// `Words`, or all of its module.
fn names_words(tokens: TokenStream) -> bool {
    let mut before = [String::new(), String::new(), String::new()];
    tokens.into_iter().any(|token| {
        let word = match &token {
            TokenTree::Group(group) => {
                if names_words(group.stream()) {
                    return true;
                }
                String::new()
            }
            other => other.to_string(),
        };
        let is_glob = word == "*" && before == ["direction", ":", ":"];
        before.rotate_left(1);
        before[2].clone_from(&word);
        word == "Words" || is_glob
    })
}

fn may_write(path: &Path) -> bool {
    let source = root().join("crates/base/shmem/src");
    let Ok(below) = path.strip_prefix(source) else {
        return false;
    };
    let first = below.components().next().map(|it| it.as_os_str());
    let first = first.and_then(|it| it.to_str()).unwrap_or_default();
    WRITERS.contains(&first.trim_end_matches(".rs"))
}

#[test]
fn handover_alone_writes_the_words_of_a_direction() {
    let (mut wrong, mut seen) = (Vec::new(), 0);
    for path in tracked_files() {
        let is_product = path.components().any(|it| it.as_os_str() == "src")
            && path.starts_with(root().join("crates"))
            && path.extension().is_some_and(|extension| extension == "rs");
        let Some(text) = fs::read_to_string(&path).ok().filter(|_| is_product) else {
            continue;
        };
        let is_own = path.starts_with(root().join("crates/base/shmem"));
        if !(is_own || text.contains("sluice_shmem")) || !writes_words(&text) {
            continue;
        }
        if may_write(&path) {
            seen += 1;
        } else {
            wrong.push(path);
        }
    }
    assert!(seen >= 4, "the words are written in {seen} files");
    assert!(wrong.is_empty(), "these move words themselves: {wrong:#?}");
}

#[test]
fn who_takes_words_in_is_found() {
    for text in [
        "use sluice_shmem::direction::Words;",
        "use sluice_shmem::direction::{Direction, Words as Own};",
        "use sluice_shmem::direction::*;",
        "fn leave(out: &Direction) { sluice_shmem::direction::Words::end_write(out) }",
    ] {
        assert!(writes_words(text), "{text}");
    }
    for text in [
        "use sluice_shmem::direction::Direction;",
        "#[cfg(test)] mod tests { use sluice_shmem::direction::Words; }",
        "fn double(direction: u32) -> u32 { direction * 2 }",
    ] {
        assert!(!writes_words(text), "{text}");
    }
}
