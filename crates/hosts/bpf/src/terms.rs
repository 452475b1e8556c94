//! Where the kernel keeps what a program has set for a connection that another connection in its place would not have:
//! keys, a TTL, IP options.

use sluice_sys::bpf::{Btf, Place};
use sluice_sys::errno::Errno;

/// As many as capture.bpf.c looks at, and the size of its `struct term`.
pub const TERMS_MAX: u32 = 8;
pub const TERM_BYTES: usize = 32;

/// The part of the kernel's `struct tcp_sock` that a socket of each protocol has.
const INET: [&str; 3] = ["tcp_sock", "inet_conn", "icsk_inet"];
/// What leads from there to what a socket of IPv6 has besides.
const POINTER: &str = "pinet6";
const BEHIND: &str = "ipv6_pinfo";

/// One part, and what it is if a program has set nothing.
struct Term {
    within: &'static [&'static str],
    name: &'static str,
    bits: u32,
    usual: Usual,
}

#[derive(Clone, Copy)]
enum Usual {
    Zero,
    /// -1.
    Ones,
}

const fn term(
    within: &'static [&'static str],
    name: &'static str,
    bits: u32,
    usual: Usual,
) -> Term {
    Term {
        within,
        name,
        bits,
        usual,
    }
}

const TERMS: [Term; TERMS_MAX as usize] = [
    // TCP_MD5SIG (CONFIG_TCP_MD5SIG), TCP_AO_ADD_KEY (Linux 6.7, CONFIG_TCP_AO).
    term(&["tcp_sock"], "md5sig_info", usize::BITS, Usual::Zero),
    term(&["tcp_sock"], "ao_info", usize::BITS, Usual::Zero),
    // IP_TTL, IP_MINTTL, IP_OPTIONS.
    term(&INET, "uc_ttl", 16, Usual::Ones),
    term(&INET, "min_ttl", 8, Usual::Zero),
    term(&INET, "inet_opt", usize::BITS, Usual::Zero),
    // A socket of the kernel's: of NFS, iSCSI, Ceph and others. Before Linux 6.6 it would keep the listener's address as
    // that of its server (kernel_connect()).
    term(
        &["tcp_sock", "inet_conn", "icsk_inet", "sk"],
        "sk_kern_sock",
        1,
        Usual::Zero,
    ),
    // IPV6_UNICAST_HOPS, IPV6_MINHOPCOUNT.
    term(&[BEHIND], "hop_limit", 16, Usual::Ones),
    term(&[BEHIND], "min_hopcount", 8, Usual::Zero),
];

/// For capture.bpf.c; None: the kernel does not say.
pub fn places() -> Option<Vec<[u8; TERM_BYTES]>> {
    find(&Btf::of_kernel().ok()?)
}

/// None: not even a TTL has a place.
fn find(btf: &Btf) -> Option<Vec<[u8; TERM_BYTES]>> {
    let member = |within: &[&str], name: &str| -> Result<Place, Errno> {
        btf.member(&[within, &[name]].concat())
    };
    member(&INET, "min_ttl").ok()?;
    let pointer = member(&INET, POINTER).ok();
    let found = TERMS.iter().filter_map(|term| {
        // Not every kernel has each.
        let place = member(term.within, term.name).ok()?;
        let pointer = match term.within {
            [BEHIND] => pointer?.bits / 8,
            _ => 0,
        };
        Some(term.encode(pointer, place))
    });
    Some(found.collect())
}

impl Term {
    /// As the program has it, which reads 64 bits from a byte on.
    fn encode(&self, pointer: u32, place: Place) -> [u8; TERM_BYTES] {
        let bits = place.field_bits.unwrap_or(self.bits).clamp(1, 64);
        let skipped = place.bits % 8;
        let shift = if cfg!(target_endian = "big") {
            64_u32.saturating_sub(skipped + bits)
        } else {
            skipped
        };
        let mask = u64::MAX >> (64 - bits);
        let usual = match self.usual {
            Usual::Zero => 0,
            Usual::Ones => mask,
        };
        let mut out = [0; TERM_BYTES];
        for (at, word) in [(0, pointer), (4, place.bits / 8), (8, shift)] {
            out[at..at + 4].copy_from_slice(&word.to_ne_bytes());
        }
        out[16..24].copy_from_slice(&mask.to_ne_bytes());
        out[24..].copy_from_slice(&usual.to_ne_bytes());
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_with_types_says_where_terms_are() {
        let Ok(btf) = Btf::of_kernel() else {
            return;
        };
        let found = find(&btf).expect("Linux has them");
        // Keys depend on how the kernel was built.
        assert!((6..=TERMS.len()).contains(&found.len()), "{found:?}");
        let distinct: std::collections::BTreeSet<_> = found.iter().map(|it| &it[..12]).collect();
        assert_eq!(distinct.len(), found.len());
    }
}
