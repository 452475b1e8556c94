//! The global route header (IBTA 8.3): what a UD receive finds in front of its data.
//!
//! RoCEv2 has an IP header in its place. A receiver gets 40 bytes either way: an IPv6 header as
//! it is, or 20 bytes without meaning and then the IPv4 header (annex A17.4).

use crate::ipv4;
use crate::ipv6;

/// Bytes in front of the data.
pub const BYTES: usize = 40;

/// `next_header` of a header that InfiniBand's own packets follow (IBTA 8.3).
pub const NEXT_HEADER: u8 = 0x1b;

/// The 40 bytes for a datagram that came in an IPv6 packet.
pub fn of_ipv6(header: &ipv6::Header) -> [u8; BYTES] {
    header.emit()
}

/// The 40 bytes for a datagram that came in an IPv4 packet; the first 20 are zero.
///
/// [`crate::Error::Length`] for a payload of 64 KiB or more.
pub fn of_ipv4(header: &ipv4::Header) -> crate::Result<[u8; BYTES]> {
    let mut bytes = [0; BYTES];
    if let Some(place) = bytes.last_chunk_mut() {
        *place = header.emit()?;
    }
    Ok(bytes)
}

/// What kind of packet RoCEv2's 40 bytes are of, as a receiver is told it.
///
/// Annex A17.4.5.1 wants it in the completion, where verbs have no field for it. The provider of mlx5 puts it into
/// `sl`, and programs go by that (UCX): bits 0 to 2 are 1 for IPv6 and 2 for IPv4, bit 3 says UDP.
pub const fn packet_type(bytes: &[u8; BYTES]) -> u8 {
    const UDP: u8 = 8;
    match bytes[0] >> 4 {
        6 => UDP | 1,
        _ => UDP | 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receiver_is_told_which_packet_it_was() {
        let mut bytes = [0; BYTES];
        // An IPv4 header lies behind 20 bytes without meaning.
        bytes[20] = 0x45;
        assert_eq!(packet_type(&bytes), 0xa);
        bytes[0] = 0x60;
        assert_eq!(packet_type(&bytes), 0x9);
    }
}
