//! That the lengths in docs/protocols.md are those of the fields beside them. Kinds and lengths are compared with the
//! code by the crates' own tests.

use std::fs;

use super::root;

/// The bytes of `name 32, key 32 bytes`.
fn bytes_of(fields: &str) -> Option<u32> {
    let mut bits = 0;
    for field in fields.split(", ").filter(|field| !field.is_empty()) {
        let words: Vec<&str> = field.split(' ').collect();
        bits += match words.as_slice() {
            [.., width, "bytes"] => 8 * width.parse::<u32>().ok()?,
            [.., width] => width.parse::<u32>().ok()?,
            [] => return None,
        };
    }
    (bits % 8 == 0).then_some(bits / 8)
}

/// What is wrong in the tables with a length and fields, and how many rows they have.
fn check(text: &str) -> (Vec<String>, usize) {
    let (mut wrong, mut seen, mut header) = (Vec::new(), 0, None);
    for line in text.lines() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let ["", kind, _, length, fields, ""] = cells.as_slice() else {
            header = None;
            continue;
        };
        match (*kind, *fields) {
            ("kind", "behind the header") => header = Some(8),
            ("kind", "behind the kind") => header = Some(1),
            ("kind", _) => header = None,
            ("---", _) => {}
            _ => {
                let Some(header) = header else { continue };
                seen += 1;
                let sum = bytes_of(fields).map(|bytes| bytes + header);
                if sum.is_none() || sum != length.parse().ok() {
                    wrong.push(format!("{line}: {sum:?}"));
                }
            }
        }
    }
    (wrong, seen)
}

#[test]
fn lengths_of_messages_are_those_of_their_fields() {
    let text = fs::read_to_string(root().join("docs/protocols.md")).expect("it is there");
    let (wrong, seen) = check(&text);
    assert!(seen > 50, "only {seen} messages are seen");
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn a_length_that_is_wrong_is_found() {
    let table = |row: &str| {
        format!("| kind | to | bytes | behind the header |\n|---|---|---|---|\n{row}\n")
    };
    let wrong = |row: &str| check(&table(row)).0.len();
    assert_eq!(
        wrong("| 1 | hello | 48 | pid 32, flags 32, program 32 bytes |"),
        0
    );
    assert_eq!(
        wrong("| 1 | hello | 47 | pid 32, flags 32, program 32 bytes |"),
        1
    );
    assert_eq!(wrong("| 1 | hello | 12 | pid |"), 1);
    assert_eq!(wrong("| 1 | hello | 9 | pid 12 |"), 1);
}
