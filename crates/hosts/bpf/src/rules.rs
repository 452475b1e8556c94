//! Which connections are asked about: networks and ports.

use core::fmt;
use core::ops::RangeInclusive;
use core::str::FromStr;
use std::collections::BTreeMap;
use std::net::IpAddr;

use sluice_sys::bpf::{Kind, Map};

use crate::address;
use crate::error::Error;
use crate::load;

/// More networks than this are refused.
pub const NETWORKS_MAX: u32 = 16 * 1024;
/// A bit for each port.
const PORT_WORDS: usize = 1024;
/// Bits in front of an IPv4 address in [`address::bytes`].
const MAPPED_BITS: u8 = 96;

/// A network: an address and how many of its leading bits count. Written `10.0.0.0/8`,
/// `2001:db8::/32`, or as an address alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Network {
    address: IpAddr,
    bits: u8,
}

/// The text is not a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseNetworkError {
    text: String,
}

impl fmt::Display for ParseNetworkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "'{}' is not a network; write an address and its length, such as 10.0.0.0/8 or \
             2001:db8::/32",
            self.text
        )
    }
}

impl std::error::Error for ParseNetworkError {}

impl Network {
    /// None: more bits than the address has. Bits of the address beyond them do not count.
    pub fn new(address: IpAddr, bits: u8) -> Option<Self> {
        let most = if address.is_ipv4() { 32 } else { 128 };
        (bits <= most).then_some(Self { address, bits })
    }

    /// As the trie has it, all bits beyond the prefix 0. `::/0` and `0.0.0.0/0` are two networks.
    pub(crate) fn key(&self) -> [u8; NETWORK_KEY_BYTES] {
        let bits = match self.address {
            IpAddr::V4(_) => self.bits + MAPPED_BITS,
            IpAddr::V6(_) => self.bits,
        };
        let all = u128::from_be_bytes(address::bytes(self.address));
        let kept = all & !u128::MAX.checked_shr(bits.into()).unwrap_or(0);
        network_key(bits, kept)
    }
}

impl FromStr for Network {
    type Err = ParseNetworkError;

    fn from_str(text: &str) -> Result<Self, ParseNetworkError> {
        let wrong = || ParseNetworkError {
            text: text.to_owned(),
        };
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits.parse().map_err(|_| wrong())?)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let bits = bits.unwrap_or(if address.is_ipv4() { 32 } else { 128 });
        Self::new(address, bits).ok_or_else(wrong)
    }
}

/// Bytes of `struct network` of finder.bpf.c.
pub(crate) const NETWORK_KEY_BYTES: usize = 20;

fn network_key(bits: u8, address: u128) -> [u8; NETWORK_KEY_BYTES] {
    let mut key = [0; NETWORK_KEY_BYTES];
    key[..4].copy_from_slice(&u32::from(bits).to_ne_bytes());
    key[4..].copy_from_slice(&address.to_be_bytes());
    key
}

/// Which ports are chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortSet {
    words: Box<[u64; PORT_WORDS]>,
}

impl PortSet {
    /// Every port.
    pub fn all() -> Self {
        Self {
            words: Box::new([u64::MAX; PORT_WORDS]),
        }
    }

    /// No port.
    pub fn none() -> Self {
        Self {
            words: Box::new([0; PORT_WORDS]),
        }
    }

    /// Chooses a range, or leaves it alone.
    #[must_use]
    pub fn with(mut self, ports: RangeInclusive<u16>, chosen: bool) -> Self {
        for port in ports {
            let bit = 1 << (port & 63);
            if let Some(word) = self.words.get_mut(usize::from(port >> 6)) {
                *word = if chosen { *word | bit } else { *word & !bit };
            }
        }
        self
    }
}

/// What the array of a program holds: nothing at first.
#[derive(Debug)]
pub(crate) struct PortMap {
    map: Map,
    held: PortSet,
}

impl PortMap {
    pub fn new() -> Result<Self, Error> {
        Ok(Self {
            map: load::map("sluice_ports", Kind::Array, 4, 8, PORT_WORDS as u32)?,
            held: PortSet::none(),
        })
    }

    pub const fn map(&self) -> &Map {
        &self.map
    }

    pub fn set(&mut self, ports: &PortSet) -> Result<(), Error> {
        let words = self.held.words.iter_mut().zip(ports.words.iter());
        for (index, (held, wanted)) in words.enumerate() {
            if held != wanted {
                let key = (index as u32).to_ne_bytes();
                self.map
                    .set(&key, &wanted.to_ne_bytes())
                    .map_err(Error::system("bpf(BPF_MAP_UPDATE_ELEM), ports"))?;
                *held = *wanted;
            }
        }
        Ok(())
    }
}

/// Which connections are asked about: those whose remote address and whose port are chosen. The
/// port is that of the end that accepts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// False: none at all.
    pub enabled: bool,
    /// Networks of remote addresses, and whether they are chosen. The longest that an address is
    /// in decides; of the same network given twice, the later one.
    pub networks: Vec<(Network, bool)>,
    /// Whether addresses in none of these are chosen.
    pub other_networks: bool,
    /// Ports of the end that accepts.
    pub ports: PortSet,
}

impl Rules {
    /// Every connection, those within a host too.
    pub fn all() -> Self {
        Self {
            enabled: true,
            networks: Vec::new(),
            other_networks: true,
            ports: PortSet::all(),
        }
    }

    /// No connection.
    pub fn none() -> Self {
        Self {
            enabled: false,
            ..Self::all()
        }
    }

    /// What the trie is to hold.
    pub(crate) fn trie(&self) -> BTreeMap<[u8; NETWORK_KEY_BYTES], u8> {
        let other = u8::from(self.other_networks);
        let mut trie = BTreeMap::new();
        // Without this, ::/0 would be a network of IPv4 addresses too.
        trie.insert(network_key(MAPPED_BITS, 0xffff_0000_0000), other);
        for (network, chosen) in &self.networks {
            trie.insert(network.key(), u8::from(*chosen));
        }
        trie
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(text: &str) -> Network {
        text.parse().unwrap()
    }

    #[test]
    fn networks_are_read() {
        assert_eq!(network("10.0.0.0/8").bits, 8);
        assert_eq!(network("10.1.2.3").bits, 32);
        assert_eq!(network("2001:db8::/32").bits, 32);
        assert_eq!(network("::1").bits, 128);
        for wrong in [
            "",
            "10.0.0.0/33",
            "::/129",
            "10.0.0.0/",
            "10/8",
            "x/8",
            "10.0.0.0/-1",
            "::/0/0",
        ] {
            let error = wrong.parse::<Network>().unwrap_err();
            assert!(error.to_string().starts_with(&format!("'{wrong}' is not")));
        }
    }

    #[test]
    fn keys_have_no_bits_behind_the_prefix() {
        assert_eq!(
            network("10.255.255.255/8").key(),
            network("10.0.0.0/8").key()
        );
        let key = network("10.0.0.0/8").key();
        assert_eq!(key[..4], 104_u32.to_ne_bytes());
        assert_eq!(
            key[4..],
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 0]
        );
        assert_eq!(network("ffff::/0").key()[4..], [0; 16]);
        assert_eq!(network("::1/128").key()[19], 1);
    }

    #[test]
    fn the_later_of_two_rules_holds_and_ipv4_has_a_root_of_its_own() {
        let rules = Rules {
            networks: vec![
                (network("::/0"), true),
                (network("10.0.0.0/8"), true),
                (network("10.9.9.9/8"), false),
            ],
            other_networks: false,
            ..Rules::all()
        };
        let trie = rules.trie();
        assert_eq!(trie.len(), 3);
        assert_eq!(trie[&network("10.0.0.0/8").key()], 0);
        assert_eq!(trie[&network("0.0.0.0/0").key()], 0);
        assert_eq!(trie[&network("::/0").key()], 1);
    }

    #[test]
    fn ports_are_bits() {
        let ports = PortSet::none()
            .with(80..=80, true)
            .with(65535..=65535, true);
        assert_eq!(ports.words[1], 1 << 16);
        assert_eq!(ports.words[1023], 1 << 63);
        let ports = PortSet::all().with(0..=65535, false);
        assert_eq!(ports, PortSet::none());
    }
}
