//! That docs/glossary.md speaks of today's code, and the code its words.

use std::fs;

use super::{root, tracked_files};

/// The words of a text: identifiers count as the words that they are made of.
fn words(text: &str) -> Vec<String> {
    let mut found = vec![String::new()];
    let mut was_lower = false;
    for letter in text.chars() {
        if !letter.is_alphanumeric() || (was_lower && letter.is_uppercase()) {
            found.push(String::new());
        }
        if letter.is_alphanumeric() {
            found.last_mut().unwrap().extend(letter.to_lowercase());
        }
        was_lower = letter.is_lowercase();
    }
    found.retain(|word| !word.is_empty());
    found
}

/// Whether the words of `term` follow each other in the text, the last one perhaps in the plural.
fn has_term(text: &[String], term: &str) -> bool {
    let term = words(term);
    let (last, before) = term.split_last().expect("a term has a word");
    text.windows(term.len()).any(|found| {
        let (found_last, found_before) = found.split_last().expect("as many words");
        found_before == before
            && (found_last == last || found_last.strip_suffix('s') == Some(last.as_str()))
    })
}

/// Whether the words of `term` follow each other in the text, the last one in any of its forms.
fn has_any_form(text: &[String], term: &str) -> bool {
    let term = words(term);
    let (last, before) = term.split_last().expect("a term has a word");
    text.windows(term.len()).any(|found| {
        let (found_last, found_before) = found.split_last().expect("as many words");
        found_before == before
            && found_last
                .strip_prefix(last.as_str())
                .is_some_and(|rest| ["", "s", "ed", "ing"].contains(&rest))
    })
}

/// Words of before that are in places which they are gone from, and how many there are. `read` gives the texts of a
/// place with their names.
fn check_gone(text: &str, read: impl Fn(&str) -> Vec<(String, String)>) -> (Vec<String>, usize) {
    let (mut wrong, mut seen) = (Vec::new(), 0);
    let (_, table) = text.split_once("## Words of before").unwrap_or_default();
    for line in table.lines() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let ["", was, is, places, ""] = cells.as_slice() else {
            continue;
        };
        if matches!(*was, "was" | "---") {
            continue;
        }
        seen += 1;
        let term = was.split(" (").next().unwrap_or_default();
        let places: Vec<&str> = places.split('`').skip(1).step_by(2).collect();
        if is.is_empty() || places.is_empty() {
            wrong.push(format!("{was} lacks today's word, or where it was"));
        }
        for place in places {
            let texts = read(place);
            if texts.is_empty() {
                wrong.push(format!("{was}: there is nothing in {place}"));
            }
            for (name, text) in texts {
                if has_any_form(&words(&text), term) {
                    wrong.push(format!("{name} says {term}, which is {is}"));
                }
            }
        }
    }
    (wrong, seen)
}

/// What is wrong in the table, and how many lines it has. `read` gives a file's text.
fn check(text: &str, read: impl Fn(&str) -> Option<String>) -> (Vec<String>, usize) {
    let (mut wrong, mut seen, mut last) = (Vec::new(), 0, String::new());
    for line in text.lines() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let ["", entry, meaning, _, places, ""] = cells.as_slice() else {
            continue;
        };
        if matches!(*entry, "word" | "---") {
            continue;
        }
        seen += 1;
        // `link (window)` is one of several things that are called `link`.
        let name = entry.split(" (").next().unwrap_or_default().to_lowercase();
        if name < last {
            wrong.push(format!("{entry} stands behind {last}"));
        }
        let places: Vec<&str> = places.split('`').skip(1).step_by(2).collect();
        if meaning.is_empty() || places.is_empty() {
            wrong.push(format!("{entry} lacks a meaning or a file"));
        }
        for place in places {
            let Some(file) = read(place) else {
                wrong.push(format!("{entry}: there is no {place}"));
                continue;
            };
            let file = words(&file);
            for term in name.split(", ") {
                if !has_term(&file, term) {
                    wrong.push(format!("{term} is not in {place}"));
                }
            }
        }
        last = name;
    }
    (wrong, seen)
}

#[test]
fn words_of_the_glossary_are_in_the_files_beside_them() {
    let text = fs::read_to_string(root().join("docs/glossary.md")).expect("it is there");
    let (wrong, seen) = check(&text, |place| {
        let folder = match place.starts_with("docs/") {
            true => root(),
            false => root().join("crates"),
        };
        fs::read_to_string(folder.join(place)).ok()
    });
    assert!(seen > 50, "only {seen} lines are seen");
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn words_of_before_do_not_come_back() {
    let text = fs::read_to_string(root().join("docs/glossary.md")).expect("it is there");
    let files = tracked_files();
    let (wrong, seen) = check_gone(&text, |place| {
        let place = root().join("crates").join(place);
        let is_source = |path: &std::path::Path| {
            path.extension()
                .is_some_and(|it| it == "rs" || it == "c" || it == "h")
        };
        files
            .iter()
            .filter(|path| path.starts_with(&place) && is_source(path))
            .map(|path| {
                let text = fs::read_to_string(path).expect("a tracked file");
                (path.display().to_string(), text)
            })
            .collect()
    });
    assert!(seen > 10, "only {seen} lines are seen");
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn a_word_that_comes_back_is_found() {
    let wrong = |rows: &str, file: &str| {
        let read = |place: &str| match place {
            "a" => vec![("a/b.rs".to_owned(), file.to_owned())],
            _ => Vec::new(),
        };
        let text = format!("| board | today's | | `a` |\n## Words of before\n{rows}");
        check_gone(&text, read).0.len()
    };
    let board = "| board | parking table | `a` |";
    assert_eq!(wrong(board, "// a keyboard; fn parking_table()"), 0);
    for file in [
        "fn has_board_fd()",
        "struct OwnBoard;",
        "// boards",
        "// boarding",
    ] {
        assert_eq!(wrong(board, file), 1, "{file}");
    }
    let aside = "| put aside (of a receive) | suspended | `a` |";
    assert_eq!(wrong(aside, "fn put(aside: u32)"), 1);
    assert_eq!(wrong(aside, "fn aside_put()"), 0);
    assert_eq!(
        wrong("| board | parking table | `c` |", ""),
        1,
        "no such place"
    );
    assert_eq!(wrong("| board | | `a` |", ""), 1);
    assert_eq!(wrong("| board | parking table | |", ""), 1);
}

#[test]
fn a_word_that_the_code_has_no_more_is_found() {
    let file = "pub struct UnboundedRead; fn put_aside() {} // lanes, of bends";
    let wrong = |rows: &str| {
        let read = |place: &str| (place == "a/b.rs").then(|| file.to_owned());
        check(rows, read).0.len()
    };
    assert_eq!(
        wrong("| lane (one) | it | | `a/b.rs` |\n| unbounded read | it | | `a/b.rs` |"),
        0
    );
    assert_eq!(wrong("| put aside | it | | `a/b.rs` |"), 0);
    assert_eq!(wrong("| end | it | | `a/b.rs` |"), 1);
    assert_eq!(wrong("| unbounded aside | it | | `a/b.rs` |"), 1);
    assert_eq!(wrong("| read, end | it | | `a/b.rs` |"), 1);
    assert_eq!(wrong("| lane | it | | `a/c.rs` |"), 1);
    assert_eq!(wrong("| lane | it | | |"), 1);
    assert_eq!(wrong("| lane | | | `a/b.rs` |"), 1);
    assert_eq!(
        wrong("| read | it | | `a/b.rs` |\n| lane | it | | `a/b.rs` |"),
        1
    );
}
