//! What must hold for any bytes. The tests call these with random bytes and cut packets, and a
//! fuzzer may call them with its own: they panic if something does not hold, and only then.

use crate::cm::{IpService, Message};
use crate::frame::{Frame, OVERHEAD_MAX, Outer};
use crate::mad::Mad;
use crate::packet::{Headers, Packet};

/// Bytes of the longest packet that is emitted again.
const PACKET_BYTES_MAX: usize = 4096 + 4 + Headers::BYTES_MAX;

/// A transport packet: what was understood is emitted, and understood as the same.
pub fn packet(bytes: &[u8]) {
    let Ok(packet) = Packet::parse(bytes) else {
        return;
    };
    assert!(packet.payload().len() <= bytes.len());
    let mut buffer = [0; PACKET_BYTES_MAX];
    if packet.payload().len() > 4096 {
        return;
    }
    let used = packet.headers().emit(packet.payload(), &mut buffer);
    let again = used.and_then(|used| Packet::parse(buffer.get(..used).unwrap_or_default()));
    let same = match again {
        Ok(again) => again == packet,
        Err(_) => false,
    };
    assert!(same, "{packet:?} became {again:?}");
}

/// A whole frame: what was understood is emitted, and understood as the same.
pub fn frame(bytes: &[u8]) {
    let Ok(frame) = Frame::parse(bytes) else {
        return;
    };
    let packet = frame.packet();
    if packet.payload().len() > 4096 {
        return;
    }
    let outer = Outer {
        ethernet: *frame.ethernet(),
        ip: *frame.ip(),
        source_port: frame.udp().source_port,
    };
    let mut buffer = [0; PACKET_BYTES_MAX + OVERHEAD_MAX];
    let used = outer.emit(packet.headers(), packet.payload(), &mut buffer);
    let again = used.and_then(|used| Frame::parse(buffer.get(..used).unwrap_or_default()));
    let same = match again {
        Ok(again) => again.packet().payload() == packet.payload(),
        Err(_) => false,
    };
    assert!(same, "{frame:?} became {again:?}");
}

/// A management datagram: what was understood is emitted, and understood as the same.
pub fn management(bytes: &[u8]) {
    let Ok(mad) = Mad::parse(bytes) else { return };
    let Ok((message, transaction)) = Message::parse(&mad) else {
        return;
    };
    if let Message::Req(req) = &message
        && let Ok((service, _)) = IpService::parse(req.private_data)
    {
        let bytes = service.emit();
        let again = bytes.as_ref().map(|bytes| IpService::parse(bytes));
        assert_eq!(again, Ok(Ok((service, &[][..]))));
    }
    let bytes = message.emit(transaction);
    let again = bytes
        .as_ref()
        .map_err(|error| *error)
        .and_then(|bytes| Mad::parse(bytes))
        .and_then(|mad| Message::parse(&mad));
    assert_eq!(again, Ok((message, transaction)));
}
