//! From a peer's address to the way that packets take.

use sluice_packet::Path;
use sluice_verbs::{AhAttr, Error, Qp, Result};
use sluice_wire::udp::ENTROPY_PORTS;

/// Where packets go, and by which of a shard's ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    pub path: Path,
    /// Its place among the shard's ports.
    pub port: usize,
    /// The same for bulk, which may be better off elsewhere.
    pub bulk: usize,
}

/// The first port of a shard is its UDP socket, which reaches everybody.
pub const UDP_PORT: usize = 0;

/// Hops when the program names none.
const HOPS: u8 = 64;

/// A UDP source port that stays the same for a flow, and differs between flows (annex A17.3): from
/// the flow label if the program gave one, else from the two queue pairs.
fn source_port(flow_label: u32, qpn: u32, peer_qpn: u32) -> u16 {
    let mixed = match flow_label & 0xf_ffff {
        0 => {
            let product = u64::from(qpn & 0xff_ffff) * u64::from(peer_qpn & 0xff_ffff);
            (product ^ product >> 20 ^ product >> 40) as u32
        }
        label => label,
    };
    let folded = (mixed & 0x3fff) ^ (mixed >> 14 & 0x3f);
    ENTROPY_PORTS.start() | folded as u16
}

/// The path that an address vector describes, as far as the program says: the neighbour is still
/// to be found. On Ethernet it must be global (IBTA annex A17.4.2).
pub fn of(qp: &Qp, attr: &AhAttr, peer_qpn: u32) -> Result<Path> {
    if attr.is_global == 0 {
        return Err(Error::BadValue);
    }
    let own = qp.gid(1, u32::from(attr.grh.sgid_index))?;
    let (source, destination) = (own.gid.address(), attr.grh.dgid.address());
    if own.gid.is_zero() || source.is_ipv4() != destination.is_ipv4() {
        return Err(Error::BadValue);
    }
    Ok(Path {
        source,
        destination,
        interface: own.ndev_ifindex,
        ethernet: None,
        source_port: source_port(attr.grh.flow_label, qp.num(), peer_qpn),
        dscp: attr.grh.traffic_class & 0xfc,
        hop_limit: match attr.grh.hop_limit {
            0 => HOPS,
            hops => hops,
        },
        flow_label: attr.grh.flow_label & 0xf_ffff,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_have_ports_of_their_own_in_the_range() {
        let ports: std::collections::HashSet<u16> = (0x100..0x200)
            .map(|qpn| source_port(0, qpn, 0x4711))
            .collect();
        assert!(ports.len() > 200, "{}", ports.len());
        assert!(ports.iter().all(|port| ENTROPY_PORTS.contains(port)));
        assert_eq!(source_port(5, 1, 2), source_port(5, 3, 4));
    }
}
