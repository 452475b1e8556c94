//! What a peer must know of a link to connect its own to it.

use std::net::{IpAddr, Ipv6Addr};

use sluice_verbs_abi as abi;

use crate::error::Error;

/// The length of [`Endpoint::encode`].
pub const ENDPOINT_BYTES: usize = 32;

/// Of the format. Another one is refused.
const VERSION: u8 = 1;
/// Queue pair numbers and packet sequence numbers have 24 bits.
const LIMIT_24_BITS: u32 = 1 << 24;

/// What a peer must know of a link: it crosses by another connection, whose end is known to be the
/// peer. It is public, but whoever can replace it can make a link go elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    pub(crate) gid: [u8; 16],
    pub(crate) qpn: u32,
    pub(crate) psn: u32,
    /// A code, `IBV_MTU_256` and so on.
    pub(crate) mtu: u8,
}

/// The format, in network byte order.
mod field {
    use std::ops::Range;

    pub const VERSION: usize = 0;
    pub const MTU: usize = 1;
    pub const RESERVED: Range<usize> = 2..4;
    pub const QPN: Range<usize> = 4..8;
    pub const PSN: Range<usize> = 8..12;
    pub const RESERVED_TOO: Range<usize> = 12..16;
    pub const GID: Range<usize> = 16..32;
}

impl Endpoint {
    /// The bytes for the peer.
    pub fn encode(&self) -> [u8; ENDPOINT_BYTES] {
        let mut bytes = [0; ENDPOINT_BYTES];
        bytes[field::VERSION] = VERSION;
        bytes[field::MTU] = self.mtu;
        bytes[field::QPN].copy_from_slice(&self.qpn.to_be_bytes());
        bytes[field::PSN].copy_from_slice(&self.psn.to_be_bytes());
        bytes[field::GID].copy_from_slice(&self.gid);
        bytes
    }

    /// What the peer sent.
    ///
    /// # Errors
    /// [`Error::Endpoint`] for bytes that [`Endpoint::encode`] cannot have made.
    pub fn decode(bytes: &[u8; ENDPOINT_BYTES]) -> Result<Self, Error> {
        let number = |at: std::ops::Range<usize>| {
            bytes[at]
                .iter()
                .fold(0_u32, |number, byte| number << 8 | u32::from(*byte))
        };
        if bytes[field::VERSION] != VERSION {
            return Err(Error::Endpoint("its version is unknown"));
        }
        if number(field::RESERVED) != 0 || number(field::RESERVED_TOO) != 0 {
            return Err(Error::Endpoint("it has bytes that mean nothing yet"));
        }
        let mut gid = [0; 16];
        gid.copy_from_slice(&bytes[field::GID]);
        let (mtu, qpn, psn) = (bytes[field::MTU], number(field::QPN), number(field::PSN));
        if !(abi::IBV_MTU_256..=abi::IBV_MTU_4096).contains(&u32::from(mtu)) {
            return Err(Error::Endpoint("there is no such MTU"));
        }
        // 0 and 1 are for management, and all ones for multicast.
        if !(2..LIMIT_24_BITS - 1).contains(&qpn) || psn >= LIMIT_24_BITS {
            return Err(Error::Endpoint("there is no such queue pair"));
        }
        let address = Ipv6Addr::from(gid);
        if address.is_unspecified() || address.is_multicast() {
            return Err(Error::Endpoint("its address is nobody's"));
        }
        Ok(Self { gid, qpn, psn, mtu })
    }

    /// Whose it is.
    pub fn address(&self) -> IpAddr {
        address_of(self.gid)
    }
}

/// The address that a RoCEv2 GID stands for (IBTA A17.4.5.2).
pub(crate) fn address_of(gid: [u8; 16]) -> IpAddr {
    Ipv6Addr::from(gid).to_canonical()
}

/// The RoCEv2 GID of an address.
pub(crate) fn gid_of(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint() -> Endpoint {
        Endpoint {
            gid: gid_of("10.1.2.3".parse().unwrap()),
            qpn: 0x0a_bcde,
            psn: 0xff_ffff,
            mtu: 3,
        }
    }

    #[test]
    fn what_was_encoded_is_decoded() {
        let bytes = endpoint().encode();
        assert_eq!(
            bytes[..12],
            [1, 3, 0, 0, 0, 0x0a, 0xbc, 0xde, 0, 0xff, 0xff, 0xff]
        );
        let decoded = Endpoint::decode(&bytes).unwrap();
        assert_eq!(decoded, endpoint());
        assert_eq!(decoded.address().to_string(), "10.1.2.3");
    }

    #[test]
    fn a_version_6_address_stays_one() {
        let address: IpAddr = "fd00::5".parse().unwrap();
        assert_eq!(address_of(gid_of(address)), address);
    }

    #[test]
    fn every_byte_counts() {
        let good = endpoint().encode();
        for (at, value) in [
            (0, 0),
            (0, 2),
            (1, 0),
            (1, 6),
            (2, 1),
            (3, 1),
            (4, 1),
            (8, 1),
            (12, 1),
            (15, 1),
            (16, 0xff),
        ] {
            let mut bytes = good;
            bytes[at] = value;
            assert!(Endpoint::decode(&bytes).is_err(), "{at}: {value}");
        }
        let mut nobody = good;
        nobody[field::GID].fill(0);
        assert!(Endpoint::decode(&nobody).is_err());
        let mut management = good;
        management[field::QPN].copy_from_slice(&1_u32.to_be_bytes());
        assert!(Endpoint::decode(&management).is_err());
    }

    #[test]
    fn the_document_has_the_format() {
        let document = include_str!("../../../../docs/protocols.md");
        let text = format!(
            "An **endpoint**, {ENDPOINT_BYTES} bytes: version 8 ({VERSION}), MTU's code 8, zero 16, queue pair number 32, first PSN 32, zero 32, GID 16 bytes"
        );
        assert!(document.contains(&text), "the document lacks: {text}");
        assert_eq!(
            (field::MTU, field::QPN, field::PSN, field::GID),
            (1, 4..8, 8..12, 16..32)
        );
    }
}
