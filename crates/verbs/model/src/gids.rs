//! A port's GID table: which addresses are in it, and at which index.

use std::net::Ipv6Addr;

use crate::types::Gid;

/// One entry of a GID table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GidEntry {
    pub gid: Gid,
    /// `ibv_gid_type`: 2 is RoCEv2.
    pub gid_type: u32,
    /// The network interface it belongs to.
    pub ndev_ifindex: u32,
}

/// More addresses than this are left out.
pub const GIDS_MAX: usize = 128;

/// `IBV_GID_TYPE_IB`, which ports have that do not speak RoCE, those of iWARP among them.
pub const NO_ROCE: u32 = 0;
/// `IBV_GID_TYPE_ROCE_V2`.
pub const ROCE_V2: u32 = 2;

/// An IPv4 address as a GID: mapped into IPv6 (RoCEv2 annex A17.4.4).
pub fn mapped(address: [u8; 4]) -> Gid {
    let mut gid = [0; 16];
    gid[10] = 0xff;
    gid[11] = 0xff;
    gid[12..].copy_from_slice(&address);
    Gid(gid)
}

/// The link-local address of an Ethernet address (RFC 4291 appendix A), for the entry that
/// every port has even when the host has no address.
pub fn link_local(mac: [u8; 6]) -> Gid {
    let [a, b, c, d, e, f] = mac;
    Gid([
        0xfe,
        0x80,
        0,
        0,
        0,
        0,
        0,
        0,
        a ^ 2,
        b,
        c,
        0xff,
        0xfe,
        d,
        e,
        f,
    ])
}

/// Whether packets to this address can come from another host.
fn leaves_the_host(gid: &Gid) -> bool {
    let address = Ipv6Addr::from(gid.0);
    let loopback = address.to_ipv4_mapped().map(|mapped| mapped.is_loopback());
    !loopback.unwrap_or_else(|| address.is_loopback())
}

/// The device's own entry where the table needs it: always within a host, where any GID will do;
/// on a network until there is an address, since no packet ever comes to a made-up one.
pub fn needed(own: GidEntry, by_address: bool, host: &[GidEntry]) -> Option<GidEntry> {
    let has_address = host.iter().any(|entry| leaves_the_host(&entry.gid));
    (!by_address || !has_address).then_some(own)
}

/// The new table after the host's addresses changed: who stays keeps the index, and who is new
/// gets the first free one.
pub fn merge(old: &[GidEntry], first: Option<GidEntry>, host: &[GidEntry]) -> Vec<GidEntry> {
    let wanted = || first.iter().chain(host);
    let mut table: Vec<GidEntry> = old
        .iter()
        .map(|entry| match wanted().any(|new| new == entry) {
            true => *entry,
            false => GidEntry::default(),
        })
        .collect();
    for new in wanted() {
        let doubled = first.is_some_and(|first| *new != first && new.gid == first.gid);
        if doubled || table.contains(new) {
            continue;
        }
        match table.iter().position(|entry| entry.gid.is_zero()) {
            Some(free) => table[free] = *new,
            None if table.len() < GIDS_MAX => table.push(*new),
            None => break,
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(last: u8) -> GidEntry {
        GidEntry {
            gid: mapped([10, 0, 0, last]),
            gid_type: ROCE_V2,
            ndev_ifindex: 2,
        }
    }

    #[test]
    fn forms_of_addresses() {
        let text = |gid: Gid| std::net::Ipv6Addr::from(gid.0).to_string();
        assert_eq!(text(mapped([192, 0, 2, 7])), "::ffff:192.0.2.7");
        let mac = [0x52, 0x54, 0, 0x12, 0x34, 0x56];
        assert_eq!(text(link_local(mac)), "fe80::5054:ff:fe12:3456");
    }

    #[test]
    fn entries_keep_their_index() {
        let first = Some(entry(1));
        let table = merge(&[], first, &[entry(2), entry(3)]);
        assert_eq!(table, [entry(1), entry(2), entry(3)]);
        let table = merge(&table, first, &[entry(3)]);
        assert_eq!(table, [entry(1), GidEntry::default(), entry(3)]);
        let table = merge(&table, first, &[entry(3), entry(4)]);
        assert_eq!(table, [entry(1), entry(4), entry(3)]);
    }

    /// The first entry is what programs use that are told no index.
    #[test]
    fn on_a_network_the_first_entry_is_an_address() {
        let own = GidEntry {
            gid: link_local([2, 0, 0, 0, 0, 1]),
            ..GidEntry::default()
        };
        let loopback = GidEntry {
            gid: mapped([127, 0, 0, 1]),
            ..entry(0)
        };
        assert_eq!(needed(own, false, &[entry(2)]), Some(own));
        assert_eq!(needed(own, true, &[loopback]), Some(own));
        assert_eq!(needed(own, true, &[entry(2), loopback]), None);
        // It gives its place to the first address that comes.
        let table = merge(&[], needed(own, true, &[loopback]), &[loopback]);
        assert_eq!(table, [own, loopback]);
        let host = [entry(2), loopback];
        let table = merge(&table, needed(own, true, &host), &host);
        assert_eq!(table, host);
    }

    #[test]
    fn the_table_has_an_end() {
        let many: Vec<GidEntry> = (0..300u32)
            .map(|n| GidEntry {
                ndev_ifindex: n,
                ..entry(9)
            })
            .collect();
        assert_eq!(merge(&[], Some(entry(1)), &many).len(), GIDS_MAX);
    }
}
