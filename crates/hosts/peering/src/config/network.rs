//! Networks and addresses, as users write them: `10.0.0.0/8`, `fd00::1`.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// All addresses with the same first bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Network {
    /// Its bits behind the prefix are zero.
    first: IpAddr,
    prefix: u8,
}

/// Why a text is not a network. The text of the error says what to write instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NetworkError {
    /// No address before the `/`, or none at all.
    Address,
    /// More bits than the address has, or no number.
    Prefix,
    /// Bits behind the prefix are set; this is the network without them.
    HostBits(Network),
}

impl fmt::Display for NetworkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address => {
                f.write_str("write an address such as 10.0.0.7 or a network such as 10.0.0.0/24")
            }
            Self::Prefix => {
                f.write_str("the number behind / is at most 32 for IPv4 and 128 for IPv6")
            }
            Self::HostBits(network) => write!(f, "write {network}"),
        }
    }
}

impl std::error::Error for NetworkError {}

impl Network {
    /// The network of one address.
    pub fn single(address: IpAddr) -> Network {
        let first = address.to_canonical();
        Network {
            first,
            prefix: bits(first),
        }
    }

    /// The first address, and how many of its bits all have.
    pub fn parts(&self) -> (IpAddr, u8) {
        (self.first, self.prefix)
    }

    /// Whether the address is in it. An IPv4 address is also found in its IPv6 spelling
    /// (RFC 4291 2.5.5.2).
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.first.is_ipv4() == address.is_ipv4() && masked(address, self.prefix) == self.first
    }

    /// The lowest of its addresses.
    pub fn first(&self) -> IpAddr {
        self.first
    }

    /// Its address, if it has one only.
    pub fn as_single(&self) -> Option<IpAddr> {
        (self.prefix == bits(self.first)).then_some(self.first)
    }

    /// Whether the two have an address in common.
    pub fn overlaps(&self, other: &Network) -> bool {
        self.contains(other.first) || other.contains(self.first)
    }
}

fn bits(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

fn masked(address: IpAddr, prefix: u8) -> IpAddr {
    let drop = u32::from(bits(address) - prefix.min(bits(address)));
    match address {
        IpAddr::V4(v4) => {
            let mask = u32::MAX.checked_shl(drop).unwrap_or(0);
            Ipv4Addr::from_bits(v4.to_bits() & mask).into()
        }
        IpAddr::V6(v6) => {
            let mask = u128::MAX.checked_shl(drop).unwrap_or(0);
            Ipv6Addr::from_bits(v6.to_bits() & mask).into()
        }
    }
}

impl FromStr for Network {
    type Err = NetworkError;

    fn from_str(text: &str) -> Result<Network, NetworkError> {
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| NetworkError::Address)?;
        let Some(prefix) = prefix else {
            return Ok(Network::single(address));
        };
        let prefix: u8 = prefix.parse().map_err(|_| NetworkError::Prefix)?;
        if prefix > bits(address) {
            return Err(NetworkError::Prefix);
        }
        let first = masked(address, prefix);
        let network = Network { first, prefix };
        if first == address {
            Ok(network)
        } else {
            Err(NetworkError::HostBits(network))
        }
    }
}

/// As it is read.
impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.as_single() {
            Some(address) => write!(f, "{address}"),
            None => write!(f, "{}/{}", self.first, self.prefix),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(text: &str) -> Network {
        text.parse().unwrap()
    }

    #[test]
    fn addresses_are_inside_or_not() {
        for (text, address, is_in) in [
            ("10.0.0.0/8", "10.255.0.1", true),
            ("10.0.0.0/8", "11.0.0.1", false),
            ("10.0.0.0/8", "::ffff:10.0.0.1", true),
            ("0.0.0.0/0", "192.0.2.1", true),
            ("0.0.0.0/0", "fd00::1", false),
            ("::/0", "fd00::1", true),
            ("fd00::/8", "fd12::1", true),
            ("10.0.0.7", "10.0.0.7", true),
            ("10.0.0.7", "10.0.0.6", false),
        ] {
            let address = address.parse().unwrap();
            assert_eq!(network(text).contains(address), is_in, "{text} {address}");
        }
        assert!(network("10.0.0.0/8").overlaps(&network("10.1.0.0/16")));
        assert!(network("10.1.0.0/16").overlaps(&network("0.0.0.0/0")));
        assert!(!network("10.1.0.0/16").overlaps(&network("10.2.0.0/16")));
    }

    #[test]
    fn what_is_no_network_is_refused_with_what_to_write() {
        for text in ["", "host", "10.0.0", "/8", "10.0.0.1:80"] {
            assert_eq!(
                text.parse::<Network>(),
                Err(NetworkError::Address),
                "{text}"
            );
        }
        for text in [
            "10.0.0.0/33",
            "::/129",
            "10.0.0.0/",
            "10.0.0.0/-1",
            "::/256",
        ] {
            assert_eq!(text.parse::<Network>(), Err(NetworkError::Prefix), "{text}");
        }
        let error = "10.1.2.3/8".parse::<Network>().unwrap_err();
        assert_eq!(error.to_string(), "write 10.0.0.0/8");
        assert_eq!(network("10.0.0.7/32").to_string(), "10.0.0.7");
    }
}
