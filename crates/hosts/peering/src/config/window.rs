//! Windows: memory that this host shares with others, for direct lanes.

use std::path::PathBuf;

/// Windows in one file at most.
pub const WINDOWS_MAX: usize = 8;

/// Users of one window at most.
pub const USERS_MAX: usize = 256;

/// `[[window]]`: connections to hosts that share it may lie in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// Where `sluice window serve` gives its memory.
    pub path: PathBuf,
    /// Whose programs are given the memory, all of it. Nobody's: no lane lies there.
    pub users: Vec<u32>,
}

impl Window {
    /// Whether programs of that user are given the memory.
    pub fn is_for(&self, user: u32) -> bool {
        self.users.contains(&user)
    }
}

/// The number of a user: it is a number, or `/etc/passwd` has the name.
pub(super) fn user(text: &str, passwd: &str) -> Option<u32> {
    if let Ok(number) = text.parse() {
        return Some(number);
    }
    let fields = |line: &str| -> Option<(String, u32)> {
        let mut fields = line.split(':');
        let name = fields.next()?.to_owned();
        Some((name, fields.nth(1)?.parse().ok()?))
    };
    let mut all = passwd.lines().filter_map(fields);
    all.find(|(name, _)| name == text).map(|(_, number)| number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_numbers_or_names() {
        let passwd =
            "root:x:0:0:root:/root:/bin/sh\nbroken\nredis:x:104:107::/var/lib/redis:/bin/false\n";
        assert_eq!(user("1000", passwd), Some(1000));
        assert_eq!(user("redis", passwd), Some(104));
        assert_eq!(user("broken", passwd), None);
        assert_eq!(user("", passwd), None);
    }
}
