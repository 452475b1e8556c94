//! What the daemons say to each other of their relays, on their control connection.

use std::net::{IpAddr, Ipv6Addr};

use super::header::Secret;
use crate::words::{Fields, ip_bytes};

/// The first byte of an advertisement: greater than all kinds of [`Word`](crate::fabric::words::Word), less than those
/// of words about gateways.
pub const ADVERTISEMENT_KIND: u8 = 48;

/// Addresses in an advertisement at most.
pub const ADDRESSES_MAX: usize = 64;

/// A relay that the peer's relay may connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Advertisement {
    /// Of the listener over IPv4; 0: there is none.
    pub port_v4: u16,
    /// The same over IPv6. Both are 0 when the relay is gone.
    pub port_v6: u16,
    /// By which the peer's relay proves that it is the peer's, for this session.
    pub secret: Secret,
    /// The host's own: where connections end that the relay can make. At most [`ADDRESSES_MAX`].
    pub addresses: Vec<IpAddr>,
}

impl Advertisement {
    /// As it is sent.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![ADVERTISEMENT_KIND];
        out.extend(self.port_v4.to_be_bytes());
        out.extend(self.port_v6.to_be_bytes());
        out.extend(self.secret.id.to_be_bytes());
        out.extend(self.secret.key);
        for address in self.addresses.iter().take(ADDRESSES_MAX) {
            out.extend(ip_bytes(*address));
        }
        out
    }

    /// Reads a whole message; `None` for what no daemon of this version says.
    pub fn decode(message: &[u8]) -> Option<Advertisement> {
        let mut fields = Fields(message);
        if fields.take::<1>()? != [ADVERTISEMENT_KIND] {
            return None;
        }
        let port_v4 = fields.u16()?;
        let port_v6 = fields.u16()?;
        let secret = Secret {
            id: fields.u64()?,
            key: fields.take()?,
        };
        let (addresses, rest) = fields.0.as_chunks::<16>();
        if !rest.is_empty() || addresses.len() > ADDRESSES_MAX {
            return None;
        }
        let address = |octets: &[u8; 16]| Ipv6Addr::from(*octets).to_canonical();
        Some(Advertisement {
            port_v4,
            port_v6,
            secret,
            addresses: addresses.iter().map(address).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advertisements_come_back_and_others_do_not() {
        let advertisement = Advertisement {
            port_v4: 4796,
            port_v6: 1,
            secret: Secret {
                id: 9,
                key: [3; 32],
            },
            addresses: vec!["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()],
        };
        let bytes = advertisement.encode();
        assert_eq!(Advertisement::decode(&bytes), Some(advertisement.clone()));
        let whole = [45, 61, 77];
        for length in 0..bytes.len() {
            let is_shorter = whole.contains(&length);
            assert_eq!(
                Advertisement::decode(&bytes[..length]).is_some(),
                is_shorter
            );
        }
        let mut other = bytes.clone();
        other[0] = 1;
        assert_eq!(Advertisement::decode(&other), None);
        let many = Advertisement {
            addresses: vec![IpAddr::from([10, 0, 0, 1]); ADDRESSES_MAX + 1],
            ..advertisement
        };
        let mut bytes = many.encode();
        assert_eq!(
            Advertisement::decode(&bytes).map(|advertisement| advertisement.addresses.len()),
            Some(ADDRESSES_MAX)
        );
        bytes.extend([0; 16]);
        assert_eq!(Advertisement::decode(&bytes), None);
    }
}
