//! Two hosts of the laboratory, for tests and examples.
#![allow(dead_code, unused_imports)]

use std::thread;
use std::time::{Duration, Instant};

use sluice_lab::link::require_means;
use sluice_lab::verdict::made;
use sluice_packet::{Ethernet, Kept, Leaving, Path, Port, Received, SendError};
use sluice_wire::bth::Bth;
use sluice_wire::{Ecn, Headers, Opcode, Psn, Qpn};
use sluice_xdp::{Interface, Options, Steering, XdpPort};

pub use sluice_lab::net::{INTERFACE, Net, Node as Host};

/// Longest time that a test waits for something that must happen.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Whether hosts can be made. If not, says so; `SLUICE_NO_SKIP=1` makes it a failure.
pub fn can_run(test: &str) -> bool {
    made(test, require_means()).is_some()
}

/// Block of the queue pairs that tests use.
pub const BLOCK: u16 = 0x1234;

/// What a host of the laboratory does with the device.
pub trait Device {
    fn interface(&self) -> Interface;

    /// Opened, with the addresses and the block that tests use.
    fn open(&self, options: &Options) -> (Steering, Vec<XdpPort>);

    /// With one queue.
    fn open_one(&self, options: &Options) -> (Steering, XdpPort);

    /// From here to there.
    fn path(&self, to: &Host, v6: bool) -> Path;

    /// Whether a program is attached.
    fn attached(&self) -> bool;
}

impl Device for Host {
    fn interface(&self) -> Interface {
        self.enter(|| Interface::by_name(INTERFACE)).expect("made")
    }

    fn open(&self, options: &Options) -> (Steering, Vec<XdpPort>) {
        let options = Options {
            addresses: vec![self.v4, self.v6],
            ..options.clone()
        };
        let interface = self.interface();
        let (mut steering, ports) = self.enter(|| interface.open(&options)).expect("opens");
        steering.add_block(BLOCK).expect("a block");
        (steering, ports)
    }

    fn open_one(&self, options: &Options) -> (Steering, XdpPort) {
        let (steering, mut ports) = self.open(options);
        assert_eq!(ports.len(), 1);
        (steering, ports.remove(0))
    }

    fn path(&self, to: &Host, v6: bool) -> Path {
        Path {
            source: if v6 { self.v6 } else { self.v4 },
            destination: if v6 { to.v6 } else { to.v4 },
            interface: self.interface().index(),
            ethernet: Some(Ethernet {
                source: self.mac,
                destination: to.mac,
            }),
            source_port: 0xc123,
            dscp: 26 << 2,
            hop_limit: 61,
            flow_label: 0xabcde,
        }
    }

    fn attached(&self) -> bool {
        // What `ip link` says of one: nothing, if there is none.
        let text = self.ip(&format!("link show {INTERFACE}"));
        text.contains("xdp")
    }
}

/// Waits for something that must come.
pub fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < end, "waited in vain: {what}");
        thread::yield_now();
    }
}

/// Bytes of the transport packet that [`message`] makes around a payload.
pub fn message_bytes(payload: usize) -> usize {
    Bth::BYTES + payload.next_multiple_of(4)
}

/// Content that depends on every number.
pub fn content(number: u32, payload: usize) -> impl Iterator<Item = u8> {
    (0..payload as u32).map(move |at| (at.wrapping_mul(31) ^ number.wrapping_mul(0x9e37)) as u8)
}

/// An UD SEND_ONLY would need more headers; this is an UC SEND_ONLY to a queue pair.
pub fn headers(qpn: u32, number: u32) -> Headers {
    let opcode = Opcode::from_byte(0x24).expect("UC SEND_ONLY");
    Headers::new(Bth::new(
        opcode,
        Qpn::new(qpn),
        Psn::new(number & 0xff_ffff),
    ))
}

/// Sends one packet whose content is that of `number`.
pub fn send(
    port: &mut impl Port,
    path: &Path,
    qpn: u32,
    number: u32,
    payload: usize,
) -> Result<(), SendError> {
    send_beside(port, path, qpn, number, payload, None)
}

/// The same with an acknowledgement beside it.
pub fn send_beside(
    port: &mut impl Port,
    path: &Path,
    qpn: u32,
    number: u32,
    payload: usize,
    beside: Option<&Kept>,
) -> Result<(), SendError> {
    let leaving = Leaving {
        beside,
        ..Leaving::alone(path, Ecn::Capable0, message_bytes(payload))
    };
    port.put(&leaving, &mut |bytes| {
        let content: Vec<u8> = content(number, payload).collect();
        headers(qpn, number).emit(&content, bytes) == Ok(bytes.len())
    })
}

/// A queue pair of ours.
pub const QPN: u32 = (BLOCK as u32) << 8 | 0x56;

/// Number and payload of a packet that [`send`] made, all of it checked.
pub fn check(received: &Received<'_>) -> (u32, usize) {
    let packet = sluice_wire::Packet::parse(received.packet).expect("legal");
    let number = packet.bth().psn.get();
    let payload = packet.payload();
    assert!(
        payload.iter().copied().eq(content(number, payload.len())),
        "the content of {number}"
    );
    (number, payload.len())
}
