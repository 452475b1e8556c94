//! Which connections the user lets have a lane: `SLUICE_ONLY_PORTS` and `SLUICE_NOT_PORTS`.

use crate::{config, log};
use core::ffi::CStr;
use sluice_control::ports::Ports;
use std::sync::OnceLock;

static POLICY: OnceLock<Policy> = OnceLock::new();

/// What the user has said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Policy {
    /// No connection at all: what was said cannot be understood.
    is_closed: bool,
    /// A connection needs one of these ports, at either end.
    only: Option<Ports>,
    /// A connection with one of these ports, at either end, is excluded.
    not: Option<Ports>,
}

impl Policy {
    fn read(only: Option<&[u8]>, not: Option<&[u8]>) -> Self {
        let mut policy = Self::default();
        let mut ports = |text: Option<&[u8]>| {
            let text = text.filter(|text| !text.is_empty())?;
            let parsed = core::str::from_utf8(text).ok().map(Ports::parse);
            policy.is_closed |= !matches!(parsed, Some(Ok(_)));
            parsed?.ok()
        };
        (policy.only, policy.not) = (ports(only), ports(not));
        policy
    }

    fn allows(&self, ends: [u16; 2]) -> bool {
        let names = |ports: &Ports| ends.iter().any(|port| ports.contains(*port));
        !self.is_closed
            && self.only.as_ref().is_none_or(names)
            && !self.not.as_ref().is_some_and(names)
    }
}

/// Reads the settings, at start.
pub fn load() {
    let bytes = |name: &CStr| config::variable(name).map(CStr::to_bytes);
    let policy = Policy::read(bytes(c"SLUICE_ONLY_PORTS"), bytes(c"SLUICE_NOT_PORTS"));
    if policy.is_closed {
        log!(
            Warn,
            "SLUICE_ONLY_PORTS or SLUICE_NOT_PORTS is not a list of ports (443,8000-8080): no \
             connection gets a lane"
        );
    }
    if policy != Policy::default() {
        let _ = POLICY.set(policy);
    }
}

/// Whether a connection between these two ports may have a lane.
pub fn allows(ends: [u16; 2]) -> bool {
    POLICY.get().is_none_or(|policy| policy.allows(ends))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_of_either_end_decide() {
        let policy =
            |only: &str, not: &str| Policy::read(Some(only.as_bytes()), Some(not.as_bytes()));
        let all = Policy::read(None, None);
        assert_eq!(all, policy("", ""));
        assert!(all.allows([1, 2]));
        let only = policy("80,443", "");
        assert!(only.allows([80, 40_000]) && only.allows([40_000, 443]));
        assert!(!only.allows([40_000, 40_001]));
        let not = policy("", "5432");
        assert!(!not.allows([5432, 40_000]) && !not.allows([40_000, 5432]));
        assert!(not.allows([80, 40_000]));
        let both = policy("1-1000", "22");
        assert!(both.allows([80, 40_000]));
        assert!(!both.allows([22, 40_000]), "excluded wins");
    }

    #[test]
    fn nonsense_excludes_everything() {
        for policy in [
            Policy::read(Some(b"http"), None),
            Policy::read(None, Some(b"80;81")),
            Policy::read(Some(b"\xff"), None),
        ] {
            assert!(!policy.allows([80, 40_000]));
        }
    }
}
