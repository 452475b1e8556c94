//! The receive hash of the shell (`qdma_subsystem_hash.sv`): a Toeplitz hash whose input is, from
//! the least significant bit, the upper 4 bits of the VLAN's number, the IP protocol, source and destination
//! address, source and destination port, each in the order of its bytes in the packet. It knows
//! IPv4 only, and ports of TCP and UDP only; what is missing counts as zero.

/// Words of the key, of which bit 0 of the first is the first bit of the window.
pub const KEY_WORDS: usize = 10;
pub type Key = [u32; KEY_WORDS];

/// The key after a reset, `DEFAULT_HKEY` of `qdma_subsystem_function_register.sv`.
pub const DEFAULT_KEY: Key = [
    0xD6E3_1417,
    0x376C_C87E,
    0x011B_A7A6,
    0xDC1B_91BB,
    0x7872_E224,
    0xBFD0_404B,
    0x2603_74B8,
    0xD927_0F6F,
    0x18DC_4386,
    0x7C9C_37DE,
];

/// The 32 bits of the key that begin at a bit.
fn window(key: &Key, at: usize) -> u32 {
    let word = |index: usize| u64::from(key.get(index).copied().unwrap_or(0));
    ((word(at / 32) | word(at / 32 + 1) << 32) >> (at % 32)) as u32
}

fn mix(key: &Key, start: usize, value: u32, bits: usize) -> u32 {
    (0..bits)
        .filter(|bit| value >> bit & 1 == 1)
        .fold(0, |hash, bit| hash ^ window(key, start + bit))
}

fn word(bytes: &[u8], at: usize) -> u32 {
    let byte = |at: usize| u32::from(bytes.get(at).copied().unwrap_or(0));
    byte(at) | byte(at + 1) << 8 | byte(at + 2) << 16 | byte(at + 3) << 24
}

/// The hash of an Ethernet frame.
pub fn hash(key: &Key, frame: &[u8]) -> u32 {
    let kind = |at| word(frame, at) & 0xFFFF;
    // Network byte order read as little-endian, as the shell's constants are.
    const IPV4: u32 = 0x0008;
    const VLAN: u32 = 0x0081;
    let (mut result, ip) = match kind(12) {
        IPV4 => (0, Some(14)),
        VLAN => {
            let hash = mix(key, 0, kind(14) & 0xF, 4);
            (hash, (kind(16) == IPV4).then_some(18))
        }
        _ => (0, None),
    };
    let Some(packet) = ip.and_then(|at| frame.get(at..)) else {
        return result;
    };
    let protocol = word(packet, 9) & 0xFF;
    result ^= mix(key, 4, protocol, 8);
    result ^= mix(key, 12, word(packet, 12), 32);
    result ^= mix(key, 44, word(packet, 16), 32);
    if matches!(protocol, 6 | 17) {
        let header = (word(packet, 0) as usize & 0xF) * 4;
        if header >= 20 {
            result ^= mix(key, 76, word(packet, header), 32);
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    fn udp(source_port: u16, vlan: Option<u16>) -> Vec<u8> {
        let mut frame = vec![0; 12];
        if let Some(vlan) = vlan {
            frame.extend([0x81, 0x00]);
            frame.extend(vlan.to_be_bytes());
        }
        frame.extend([0x08, 0x00, 0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17, 0, 0]);
        frame.extend([10, 0, 0, 1, 10, 0, 0, 2]);
        frame.extend(source_port.to_be_bytes());
        frame.extend([0; 20]);
        frame
    }

    /// With a key of one bit, the hash says at which places of the input there are ones.
    #[test]
    fn each_field_is_where_the_shell_has_it() {
        let mut key = Key::default();
        // The window that begins at bit 76 has bit 0 set: the first bit of the source port.
        key[76 / 32] = 1 << (76 % 32);
        let odd = hash(&key, &udp(0x0100, None)) & 1;
        let even = hash(&key, &udp(0x0200, None)) & 1;
        assert_eq!((odd, even), (1, 0));
        let mut key = Key::default();
        key[0] = 1 << 4;
        // Protocol 17 is 0b10001, whose lowest bit is at 4.
        assert_eq!(hash(&key, &udp(0, None)) & 1, 1);
    }

    #[test]
    fn flows_spread_and_repeat() {
        let queues: std::collections::BTreeSet<u32> = (0..64)
            .map(|port| hash(&DEFAULT_KEY, &udp(1000 + port, None)) % 128)
            .collect();
        assert!(queues.len() > 16, "{queues:?}");
        assert_eq!(
            hash(&DEFAULT_KEY, &udp(7, Some(0x303))),
            hash(&DEFAULT_KEY, &udp(7, Some(0x303)))
        );
        assert_ne!(
            hash(&DEFAULT_KEY, &udp(7, Some(0x303))),
            hash(&DEFAULT_KEY, &udp(7, Some(0x203)))
        );
    }

    #[test]
    fn short_and_strange_frames_hash_to_something() {
        assert_eq!(hash(&DEFAULT_KEY, &[]), 0);
        for len in 0..60 {
            hash(&DEFAULT_KEY, &udp(1, Some(1))[..len.min(58)]);
        }
        let mut arp = udp(1, None);
        arp[13] = 6;
        assert_eq!(hash(&DEFAULT_KEY, &arp), 0);
    }
}
