//! Which peers get acknowledgements that are piggybacked ([`sluice_wire::piggyback`]).
//!
//! A flow is a peer's address and a UDP source port: the two ends of a connection use the same one,
//! which is made from both queue pairs' numbers. Another process of the peer's, which may have no
//! AF_XDP and never see a piggybacked acknowledgement, has flows of its own.

use std::net::IpAddr;

/// Flows that are known. They share places by chance: then one is forgotten, and its
/// acknowledgements have frames of their own until it is known again.
const PLACES: usize = 256;

/// So many acknowledgements ride alone before the peer must have said again that it gets them.
const TRUST: u8 = 16;

/// What is known of a flow.
#[derive(Clone, Copy, Debug, Default)]
pub struct Flow {
    peer: Option<(IpAddr, u16)>,
    /// Piggybacked acknowledgements have come from it.
    pub got: bool,
    /// Acknowledgements that may still ride alone.
    trust: u8,
}

impl Flow {
    /// A piggybacked acknowledgement came, with what it says of ours.
    pub fn came(&mut self, got: bool) {
        self.got = true;
        if got {
            self.trust = TRUST;
        }
    }

    /// Whether an acknowledgement that rides needs no frame of its own.
    pub fn relies(&mut self) -> bool {
        let relies = self.trust > 0;
        self.trust = self.trust.saturating_sub(1);
        relies
    }
}

/// The flows of a port.
#[derive(Debug)]
pub struct Flows(Box<[Flow; PLACES]>);

impl Default for Flows {
    fn default() -> Self {
        Self(Box::new([Flow::default(); PLACES]))
    }
}

impl Flows {
    /// That flow; another that had its place is forgotten.
    pub fn of(&mut self, peer: IpAddr, port: u16) -> &mut Flow {
        let flow = &mut self.0[usize::from(port) % PLACES];
        if flow.peer != Some((peer, port)) {
            *flow = Flow {
                peer: Some((peer, port)),
                ..Flow::default()
            };
        }
        flow
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_trusted_as_long_as_it_says_so() {
        let mut flows = Flows::default();
        let peer = IpAddr::from([192, 0, 2, 1]);
        assert!(!flows.of(peer, 0xc001).relies(), "unknown");
        flows.of(peer, 0xc001).came(false);
        assert!(flows.of(peer, 0xc001).got);
        assert!(!flows.of(peer, 0xc001).relies(), "it has not got ours");
        flows.of(peer, 0xc001).came(true);
        for _ in 0..TRUST {
            assert!(flows.of(peer, 0xc001).relies());
        }
        assert!(!flows.of(peer, 0xc001).relies(), "it has not said so again");
        flows.of(peer, 0xc001).came(true);
        assert!(flows.of(peer, 0xc001).relies());
    }

    #[test]
    fn flows_are_told_apart() {
        let mut flows = Flows::default();
        let (one, other) = (IpAddr::from([192, 0, 2, 1]), IpAddr::from([192, 0, 2, 2]));
        flows.of(one, 0xc001).came(true);
        assert!(!flows.of(one, 0xc002).relies());
        assert!(flows.of(one, 0xc001).relies());
        assert!(!flows.of(other, 0xc001).relies());
        assert!(!flows.of(one, 0xc001).got, "its place was taken");
    }
}
