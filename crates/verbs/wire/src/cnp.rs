//! Congestion notification packets (annex A17.9.3): a receiver tells the sender of packets that
//! routers marked ([`crate::Ecn::Congestion`]).

use crate::bth::Bth;
use crate::number::{Psn, Qpn};
use crate::opcode::Opcode;
use crate::packet::Headers;

/// What follows the base transport header: 16 reserved bytes.
pub const PAYLOAD: [u8; 16] = [0; 16];

/// The headers of a notification to the queue pair that sends too fast: BECN set, PSN 0. The
/// partition is that of the packets it is about.
pub const fn headers(destination: Qpn, pkey: u16) -> Headers {
    Headers::new(Bth {
        becn: true,
        migrated: false,
        pkey,
        ..Bth::new(Opcode::CNP, destination, Psn::new(0))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As in the packet that NVIDIA (Mellanox) publishes as the example of its adapters, "RoCEv2 CNP
    /// Packet Format Example".
    #[test]
    fn a_notification_has_one_form() {
        let mut buffer = [0xff; 28];
        let used = headers(Qpn::new(0xd2), 0xffff).emit(&PAYLOAD, &mut buffer);
        assert_eq!(used, Ok(28));
        let head = [0x81, 0, 0xff, 0xff, 0x40, 0, 0, 0xd2, 0, 0, 0, 0];
        assert_eq!(buffer[..12], head);
        assert_eq!(buffer[12..], [0; 16]);
    }
}
