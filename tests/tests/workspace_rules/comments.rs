//! That a SAFETY comment says in its own words what its block relies on.

use std::fs;

use super::{root, tracked_files};

/// The wings of `crates/` that are held to it.
const WINGS: [&str; 5] = ["base", "hosts", "lab", "sockets", "verbs"];
/// How a comment begins that leaves it to another one.
const BORROWED: [&str; 5] = ["as ", "ditto", "likewise", "see ", "the same"];
/// And what stands in one that does so in the middle.
const BORROWED_WITHIN: [&str; 2] = ["as above", "see above"];

/// The SAFETY comments of a file, each on one line, behind the number of its first line.
fn safety_comments(text: &str) -> Vec<(usize, String)> {
    let mut found: Vec<(usize, String)> = Vec::new();
    let mut is_within = false;
    for (number, line) in text.lines().enumerate() {
        let Some(comment) = line.trim_start().strip_prefix("//") else {
            is_within = false;
            continue;
        };
        let comment = comment.trim();
        if let Some(reason) = comment.strip_prefix("SAFETY") {
            let (_, reason) = reason.split_once(':').unwrap_or(("", reason));
            found.push((number + 1, reason.trim().to_lowercase()));
            is_within = true;
        } else if is_within && let Some((_, reason)) = found.last_mut() {
            reason.push(' ');
            reason.push_str(&comment.to_lowercase());
        }
    }
    found
}

fn is_borrowed(reason: &str) -> bool {
    BORROWED.iter().any(|begin| reason.starts_with(begin))
        || BORROWED_WITHIN.iter().any(|part| reason.contains(part))
}

#[test]
fn safety_comments_say_what_they_rely_on() {
    let (mut wrong, mut seen) = (Vec::new(), 0);
    for path in tracked_files() {
        let is_held = WINGS
            .iter()
            .any(|wing| path.starts_with(root().join("crates").join(wing)));
        if !is_held || path.extension().is_none_or(|extension| extension != "rs") {
            continue;
        }
        // A file that is listed and gone was deleted and not yet committed.
        let Ok(text) = fs::read_to_string(&path) else {
            continue;
        };
        for (line, reason) in safety_comments(&text) {
            seen += 1;
            if is_borrowed(&reason) {
                wrong.push(format!("{}:{line}: {reason}", path.display()));
            }
        }
    }
    assert!(seen > 500, "only {seen} SAFETY comments are seen");
    assert!(
        wrong.is_empty(),
        "these leave to another comment what they rely on: {wrong:#?}"
    );
}

#[test]
fn a_safety_comment_that_leaves_it_to_another_is_found() {
    let wrong = |comment: &str| {
        let comments = safety_comments(&format!("{comment}\nunsafe {{ f() }};\n"));
        assert_eq!(comments.len(), 1, "{comment}");
        is_borrowed(&comments[0].1)
    };
    for comment in [
        "// SAFETY: as above.",
        "    // SAFETY: As in `read`.",
        "// SAFETY: the same contract under another name.",
        "// SAFETY: see above.",
        "// SAFETY: likewise,\n// for writing.",
        "// SAFETY: the list ends with a null pointer; otherwise\n// as above.",
        "// SAFETY (of all three): as above.",
    ] {
        assert!(wrong(comment), "{comment}");
    }
    assert!(!wrong(
        "// SAFETY: takes integers. A word such as this one\n// above all."
    ));
}
