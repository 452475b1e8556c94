//! What a user is told: a line on the process's standard error.

use std::io::Write as _;
use std::os::unix::fs::MetadataExt;

/// Standard error, as it was when the device was opened. A program may close it later, and what
/// has its number then is not for our words.
#[derive(Debug)]
pub struct Notices {
    /// Device and inode; none if there was nothing that could be recognised.
    at_first: Option<(u64, u64)>,
}

impl Notices {
    /// To whoever reads it now.
    pub fn to_standard_error() -> Self {
        Self {
            at_first: standard_error(),
        }
    }

    /// Says it, if standard error is what it was. Whether it is.
    pub fn say(&self, text: &str) -> bool {
        let same = self.at_first.is_some() && standard_error() == self.at_first;
        if same {
            // Whoever does not read it does not want it.
            let _ = writeln!(std::io::stderr(), "sluice: {text}");
        }
        same
    }
}

fn standard_error() -> Option<(u64, u64)> {
    let metadata = std::fs::metadata("/proc/self/fd/2").ok()?;
    Some((metadata.dev(), metadata.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches: a line in the middle of somebody's file or connection.
    #[test]
    fn nothing_is_said_to_what_was_not_there_at_first() {
        assert!(Notices::to_standard_error().say("a test says this"));
        let (device, inode) = standard_error().unwrap();
        let other = Notices {
            at_first: Some((device, inode ^ 1)),
        };
        let none = Notices { at_first: None };
        assert!(!other.say("nobody reads this") && !none.say("nor this"));
    }
}
