//! Command lines: made of words of mixed types, and written as a shell wants them.

use std::path::Path;

/// `words!["redis-server", "--port", port]`: a command line of mixed types.
macro_rules! words {
    ($($word:expr),* $(,)?) => { vec![$($word.to_string()),*] };
}
pub(crate) use words;

/// A path as text. Scratch and build folders are ours; a byte that is not UTF-8 would make the
/// program's start fail visibly.
pub fn path_text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// A word in quotes, if a shell needs them.
pub fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+$".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_as_a_shell_wants_them() {
        assert_eq!(quoted("--port=1"), "--port=1");
        assert_eq!(quoted(""), "''");
        assert_eq!(quoted("Connection: close"), "'Connection: close'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
    }
}
