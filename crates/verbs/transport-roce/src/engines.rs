//! How many engine threads the user wants.

use core::fmt;
use core::num::NonZeroU8;
use core::str::FromStr;

use crate::shard_set::SHARDS_MAX;

/// How many engine threads a transport has. Each has ports and a share of the queue pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Engines(NonZeroU8);

/// The environment's variable for it; `sluice verbs` sets it.
pub const ENGINES_VARIABLE: &str = "SLUICE_VERBS_ENGINES";

/// What was given is not a number of engine threads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotEngines(String);

impl fmt::Display for NotEngines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} is no number of engine threads; 1 to {SHARDS_MAX} are",
            self.0
        )
    }
}

impl std::error::Error for NotEngines {}

impl Default for Engines {
    /// One: more are for machines with processors to spare.
    fn default() -> Self {
        Self(NonZeroU8::MIN)
    }
}

impl FromStr for Engines {
    type Err = NotEngines;

    fn from_str(text: &str) -> Result<Self, NotEngines> {
        let number: Option<NonZeroU8> = text.trim().parse().ok();
        number
            .filter(|number| usize::from(number.get()) <= SHARDS_MAX)
            .map(Self)
            .ok_or_else(|| NotEngines(text.to_owned()))
    }
}

impl Engines {
    /// What [`ENGINES_VARIABLE`] says; the default where it is not set, or is empty.
    pub fn from_environment() -> Result<Self, NotEngines> {
        match std::env::var_os(ENGINES_VARIABLE) {
            Some(text) if !text.is_empty() => text.to_string_lossy().parse(),
            _ => Ok(Self::default()),
        }
    }

    /// From 1 to [`SHARDS_MAX`].
    pub fn count(self) -> usize {
        usize::from(self.0.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_engines_are_checked() {
        for (text, count) in [("1", 1), ("2", 2), (" 64 ", 64)] {
            assert_eq!(text.parse::<Engines>().unwrap().count(), count);
        }
        for text in ["", "0", "65", "256", "-1", "two", "1.5", "1 2"] {
            let error = text.parse::<Engines>().unwrap_err().to_string();
            assert!(error.contains("1 to 64"), "{error}");
        }
    }
}
