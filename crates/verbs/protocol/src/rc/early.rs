//! What came before its turn: which data of responses, and whole requests.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use sluice_wire::{Headers, Packet, selective};

/// A set of packets that are up to [`Arrived::SPAN`] after a base that moves on. Packets are taken
/// out when the base comes to them.
#[derive(Clone, Default)]
pub(crate) struct Arrived {
    /// Packet `n` has bit `n` modulo [`Arrived::SPAN`]. Nothing, as long as nothing came early.
    words: Vec<u64>,
}

impl core::fmt::Debug for Arrived {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let count: u32 = self.words.iter().map(|word| word.count_ones()).sum();
        f.debug_struct("Arrived").field("packets", &count).finish()
    }
}

impl Arrived {
    const WORDS: usize = 256;

    /// Packets from the base on that can be remembered: more than a network has under way.
    pub const SPAN: u64 = Self::WORDS as u64 * 64;

    fn place(index: u64) -> (usize, u64) {
        ((index / 64) as usize % Self::WORDS, 1 << (index % 64))
    }

    /// Adds a packet, which is less than [`Arrived::SPAN`] after the base. False if it was there
    /// already.
    pub fn insert(&mut self, index: u64) -> bool {
        if self.words.is_empty() {
            self.words.resize(Self::WORDS, 0);
        }
        let (place, bit) = Self::place(index);
        let Some(word) = self.words.get_mut(place) else {
            return false;
        };
        let new = *word & bit == 0;
        *word |= bit;
        new
    }

    /// Whether the packet is there, of those that may be.
    pub fn contains(&self, index: u64) -> bool {
        let (place, bit) = Self::place(index);
        self.words.get(place).is_some_and(|word| word & bit != 0)
    }

    /// Takes out the packet at the base; whether it was there.
    pub fn take(&mut self, index: u64) -> bool {
        let (place, bit) = Self::place(index);
        let Some(word) = self.words.get_mut(place) else {
            return false;
        };
        let was = *word & bit != 0;
        *word &= !bit;
        was
    }
}

/// Requests that came before their turn, to be carried out when it comes. Nothing of them has
/// happened yet: what a program sees of a message comes in the order in which it was sent, and its
/// last byte last.
#[derive(Default)]
pub(super) struct Kept {
    packets: BTreeMap<u64, (Headers, Box<[u8]>)>,
    bytes: usize,
}

impl core::fmt::Debug for Kept {
    /// Without the bytes, which may be many.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Kept")
            .field("packets", &self.packets.len())
            .field("bytes", &self.bytes)
            .finish()
    }
}

impl Kept {
    /// Packets from the one that is waited for on that are kept, if at all.
    pub const SPAN: u64 = selective::SPAN as u64;

    /// Bytes of payload that one connection keeps at most.
    pub const BYTES_MAX: usize = 1 << 20;

    /// Keeps a packet that is `distance` after the one that is waited for. False: there is no room
    /// for it, or it is there already.
    pub fn insert(&mut self, index: u64, distance: u64, packet: &Packet<'_>) -> bool {
        let payload = packet.payload();
        let room = distance < Self::SPAN && self.bytes + payload.len() <= Self::BYTES_MAX;
        if !room || self.contains(index) {
            return false;
        }
        self.bytes += payload.len();
        self.packets
            .insert(index, (*packet.headers(), payload.into()));
        true
    }

    pub fn contains(&self, index: u64) -> bool {
        self.packets.contains_key(&index)
    }

    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// The packet whose turn has come. What has an earlier number is dropped: what came in its
    /// stead has been carried out.
    pub fn take(&mut self, index: u64) -> Option<(Headers, Box<[u8]>)> {
        while let Some(first) = self.packets.first_entry() {
            if *first.key() > index {
                return None;
            }
            let (at, packet) = first.remove_entry();
            self.bytes -= packet.1.len();
            if at == index {
                return Some(packet);
            }
        }
        None
    }

    pub fn clear(&mut self) {
        self.packets.clear();
        self.bytes = 0;
    }

    /// Which there are, in order.
    pub fn indices(&self) -> impl Iterator<Item = u64> {
        self.packets.keys().copied()
    }

    /// After the last.
    pub fn end(&self) -> Option<u64> {
        self.packets.last_key_value().map(|(last, _)| last + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;
    use proptest::prelude::*;
    use sluice_wire::bth::Bth;
    use sluice_wire::{Opcode, Psn, Qpn};

    proptest! {
        /// Catches: a bit that is another packet's, of the round before.
        #[test]
        fn a_set_with_a_moving_base(
            begin in 0u64..10_000,
            steps in prop::collection::vec(prop::option::of(0..Arrived::SPAN), 1..400),
        ) {
            let (mut set, mut model, mut base) = (Arrived::default(), BTreeSet::new(), begin);
            for step in steps {
                match step {
                    Some(distance) => {
                        let new = model.insert(base + distance);
                        prop_assert_eq!(set.insert(base + distance), new);
                        prop_assert!(set.contains(base + distance));
                    }
                    None => {
                        prop_assert_eq!(set.take(base), model.remove(&base));
                        base += 1;
                    }
                }
            }
        }
    }

    fn headers() -> Headers {
        let opcode = Opcode::from_byte(0x04).unwrap();
        Headers::new(Bth::new(opcode, Qpn::new(2), Psn::new(3)))
    }

    /// Catches: memory without bound, a count that is not given back.
    #[test]
    fn what_is_kept_has_a_bound() {
        let bytes = [7; 4096];
        let packet = Packet::again(headers(), &bytes).unwrap();
        let mut kept = Kept::default();
        for round in 0..3 {
            let first = round * 5000;
            let fitted = (1..2 * Kept::SPAN)
                .filter(|distance| kept.insert(first + distance, *distance, &packet))
                .count();
            assert_eq!(fitted, Kept::BYTES_MAX / bytes.len());
            assert!(!kept.insert(first + 1, 1, &packet), "it is there");
            assert!(kept.take(first).is_none());
            assert!(
                kept.take(first + 1)
                    .is_some_and(|(_, payload)| *payload == bytes)
            );
            // The rest is overtaken.
            assert!(kept.take(first + 4999).is_none() && kept.is_empty());
        }
        let small = Packet::again(headers(), &[]).unwrap();
        assert!(kept.insert(Kept::SPAN - 1, Kept::SPAN - 1, &small));
        assert!(!kept.insert(Kept::SPAN, Kept::SPAN, &small));
    }
}
