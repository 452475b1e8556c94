//! What standard output and standard error can show.

use std::io::{self, IsTerminal, Write};

use crate::error::{Failure, reason};

/// Columns that text is laid out for when there is no terminal to ask.
pub const COLUMNS_DEFAULT: usize = 100;

/// How to write text: with or without colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Style {
    colour: bool,
}

impl Style {
    /// No colour at all.
    #[cfg(any(test, feature = "top"))]
    pub const PLAIN: Self = Self { colour: false };

    /// Colour if `stream` is a terminal that has it, and the user has not said otherwise
    /// (<https://no-color.org>).
    pub fn for_stream(stream: &impl IsTerminal) -> Self {
        let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        Self {
            colour: stream.is_terminal() && !refused && !dumb,
        }
    }

    fn paint(self, code: &str, text: &str) -> String {
        if self.colour && !text.is_empty() {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }

    pub fn bold(self, text: &str) -> String {
        self.paint("1", text)
    }
    pub fn dim(self, text: &str) -> String {
        self.paint("2", text)
    }
    pub fn good(self, text: &str) -> String {
        self.paint("32", text)
    }
    pub fn note(self, text: &str) -> String {
        self.paint("33", text)
    }
    pub fn bad(self, text: &str) -> String {
        self.paint("31", text)
    }
}

/// The width of the terminal on standard output, or [`COLUMNS_DEFAULT`] if there is none.
pub fn columns() -> usize {
    rustix::termios::tcgetwinsize(io::stdout())
        .ok()
        .map(|size| usize::from(size.ws_col))
        .filter(|columns| *columns > 0)
        .unwrap_or(COLUMNS_DEFAULT)
}

/// Breaks text at blanks into lines of at most `width` characters. A longer word, such as a path,
/// stays whole on a line of its own: whoever copies it needs all of it.
pub fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let mut used = 0;
    for word in text.split_whitespace() {
        let length = word.chars().count();
        match lines.last_mut() {
            Some(line) if used + 1 + length <= width => {
                line.push(' ');
                line.push_str(word);
                used += 1 + length;
            }
            _ => {
                lines.push(word.to_owned());
                used = length;
            }
        }
    }
    lines
}

/// Text that came from another process, made harmless for a terminal: control characters,
/// escape sequences included, become '?'.
pub fn harmless(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { '?' } else { c })
        .collect()
}

/// Writes to standard output. A reader that went away is no error: `sluice status | head` has
/// got what it wanted. Returns false then.
pub fn print(text: &str) -> Result<bool, Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(unwritten(&error)),
    }
}

/// What a command says that could not write what it was asked for.
pub fn unwritten(error: &io::Error) -> Failure {
    Failure::new(
        format!("cannot write to standard output: {}", reason(error)),
        "check where it is redirected to",
    )
}

/// Writes a line to standard error with the program's name before it. Nobody can be told if
/// that fails.
pub fn complain(message: &str) {
    let _ = writeln!(io::stderr().lock(), "sluice: {message}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_text_has_no_escapes() {
        assert_eq!(Style::PLAIN.bold("x"), "x");
        let coloured = Style { colour: true };
        assert_eq!(coloured.good("x"), "\x1b[32mx\x1b[0m");
        assert_eq!(coloured.good(""), "");
    }

    #[test]
    fn long_text_is_broken_at_blanks() {
        assert_eq!(wrap("aa bb cc", 5), ["aa bb", "cc"]);
        assert_eq!(
            wrap("a /long/path/here b", 6),
            ["a", "/long/path/here", "b"]
        );
        assert_eq!(wrap("", 5), Vec::<String>::new());
        assert_eq!(wrap("größe ab", 8), ["größe ab"]);
    }

    #[test]
    fn names_of_strangers_cannot_steer_the_terminal() {
        assert_eq!(harmless("a\x1b[2Jb\n\u{9b}c"), "a?[2Jb??c");
        assert_eq!(harmless("größe"), "größe");
    }
}
