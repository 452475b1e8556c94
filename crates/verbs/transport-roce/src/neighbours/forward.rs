//! Between the processes of one user on one host, who share an address: a packet that came to the
//! wrong one goes on to the owner of the queue pair.
//!
//! The kernel gives a UDP socket of a group the packets of some flows, whatever their queue pair.
//! So each process listens on a socket for each of its blocks of numbers; a packet for another
//! block goes there as one message.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::sync::Mutex;

use sluice_packet::Received;
use sluice_rendezvous::{Names, block_of, check_peer};
use sluice_sys::clock::now_ns;
use sluice_sys::errno::Errno;
use sluice_sys::local_fd::LocalFd;
use sluice_sys::unix;
use sluice_transport::worker::{Sleeper, token};
use sluice_verbs::Gid;
use sluice_verbs::transport::{MAD_BYTES, MadPath};

use crate::locks::lock;
use crate::watched::NEIGHBOUR;

/// What a message is.
const PACKET: u8 = 0;
const MAD: u8 = 1;

/// Bytes in front of the packet: kind, hop limit, traffic class, one unused, source port,
/// interface, source and destination.
const FRONT: usize = 4 + 2 + 4 + 16 + 16;
/// The longest packet, with some room.
const MESSAGE_MAX: usize = FRONT + 8192;

/// How long it is believed which blocks have an owner: peers may send to any number, and each must
/// not cost a look at the file system.
const LISTED_NS: u64 = 20_000_000;
/// Owners whose sockets are kept.
const OWNERS_MAX: usize = 1024;
/// Connections accepted in one go, and messages taken.
const BATCH: usize = 64;

/// What another process has brought.
pub enum Message<'a> {
    /// A packet, which says that it is for this queue pair.
    Packet(u32, Received<'a>),
    /// A management datagram.
    Mad(MadPath, &'a [u8; MAD_BYTES]),
}

/// The ways to and from other processes.
#[derive(Default)]
pub struct Forward {
    to: Mutex<To>,
    from: Mutex<From>,
}

#[derive(Default)]
struct To {
    owners: HashMap<u32, LocalFd>,
    /// Blocks that have an owner, as of then (nanoseconds).
    listed: HashSet<u32>,
    listed_at: u64,
}

impl To {
    /// The socket of a block's owner.
    fn owner(&mut self, names: &Names, block: u32) -> Result<&LocalFd, Errno> {
        if !self.owners.contains_key(&block) {
            let now = now_ns();
            if self.listed_at == 0 || now - self.listed_at > LISTED_NS {
                self.listed = names.all_blocks().into_iter().collect();
                self.listed_at = now;
            }
            if !self.listed.contains(&block) {
                return Err(Errno(libc::ENOENT));
            }
            let socket = names.connect(block).inspect_err(|_| {
                // Who was killed has left his name.
                self.listed.remove(&block);
            })?;
            if self.owners.len() >= OWNERS_MAX {
                self.owners.clear();
            }
            self.owners.insert(block, socket);
        }
        self.owners.get(&block).ok_or(Errno(libc::ENOENT))
    }
}

#[derive(Default)]
struct From {
    next: u64,
    sockets: HashMap<u64, LocalFd>,
}

fn front(kind: u8, received: &Received<'_>) -> [u8; FRONT] {
    let mut bytes = [0; FRONT];
    bytes[0] = kind;
    bytes[1] = received.hop_limit;
    bytes[2] = received.traffic_class;
    bytes[4..6].copy_from_slice(&received.source_port.to_ne_bytes());
    bytes[6..10].copy_from_slice(&received.interface.to_ne_bytes());
    bytes[10..26].copy_from_slice(&Gid::from(received.source).0);
    bytes[26..42].copy_from_slice(&Gid::from(received.destination).0);
    bytes
}

/// The kind of a message, and what it carries.
fn parse(message: &[u8]) -> Option<(u8, Received<'_>)> {
    let (front, packet) = message.split_first_chunk::<FRONT>()?;
    let address_at = |at: usize| -> Option<IpAddr> {
        let bytes: [u8; 16] = front.get(at..at + 16)?.try_into().ok()?;
        Some(Gid(bytes).address())
    };
    let received = Received {
        source: address_at(10)?,
        destination: address_at(26)?,
        interface: u32::from_ne_bytes(front.get(6..10)?.try_into().ok()?),
        source_port: u16::from_ne_bytes(front.get(4..6)?.try_into().ok()?),
        traffic_class: front[2],
        hop_limit: front[1],
        packet,
    };
    Some((front[0], received))
}

impl Forward {
    /// Somebody wants to bring packets for a block of this process. `sleeper` is woken by them.
    pub fn accept(&self, names: &Names, sleeper: &Sleeper, block: u32) {
        let Some(listener) = names.listener(block) else {
            return;
        };
        for _ in 0..BATCH {
            let Some(socket) = unix::accept_or_rest(listener) else {
                return;
            };
            if check_peer(socket.as_raw_fd()).is_err() {
                continue;
            }
            let socket = LocalFd::own(socket);
            let mut from = lock(&self.from);
            from.next += 1;
            let id = from.next;
            if sleeper.watch(socket.raw(), token(NEIGHBOUR, id)).is_ok() {
                from.sockets.insert(id, socket);
            }
        }
    }

    /// Somebody has brought something, which `each` gets without a lock, or has ended.
    pub fn take(&self, sleeper: &Sleeper, id: u64, mut each: impl FnMut(Message<'_>)) {
        let mut message = [0; MESSAGE_MAX];
        for _ in 0..BATCH {
            let received = {
                let from = lock(&self.from);
                let Some(socket) = from.sockets.get(&id) else {
                    return;
                };
                unix::receive_with_fds(socket.raw(), &mut message)
            };
            match received {
                Ok(got) if got.len > 0 => {
                    let whole = message.get(..got.len).filter(|_| !got.truncated);
                    let parsed = whole.and_then(parse);
                    if let Some(brought) = parsed.and_then(|(kind, received)| told(kind, received))
                    {
                        each(brought);
                    }
                }
                Err(Errno::AGAIN) => return,
                _ => {
                    let socket = lock(&self.from).sockets.remove(&id);
                    if let Some(socket) = socket {
                        sleeper.forget(socket.raw());
                    }
                    return;
                }
            }
        }
    }

    /// Passes a packet on to the owner of its queue pair. False: it is nobody's, or was this
    /// process's own.
    pub fn pass_on(&self, names: &Names, qpn: u32, received: &Received<'_>) -> bool {
        let block = block_of(qpn);
        // Sent to ourselves it would come back for ever.
        !names.is_own(block) && self.send(names, block, PACKET, received).is_ok()
    }

    /// Passes a management datagram on: to the process with that tag, or to all others.
    pub fn pass_on_mad(
        &self,
        names: &Names,
        tag: Option<u16>,
        path: &MadPath,
        mad: &[u8; MAD_BYTES],
    ) {
        let received = Received {
            source: path.source.address(),
            destination: path.destination.address(),
            interface: path.interface,
            source_port: 0,
            traffic_class: 0,
            hop_limit: 0,
            packet: mad,
        };
        let own = names.own_blocks();
        let to = match tag {
            Some(tag) => vec![u32::from(tag)],
            None => names.all_blocks(),
        };
        for block in to.into_iter().filter(|block| !own.contains(block)) {
            let _ = self.send(names, block, MAD, &received);
        }
    }

    fn send(
        &self,
        names: &Names,
        block: u32,
        kind: u8,
        received: &Received<'_>,
    ) -> Result<(), Errno> {
        let mut to = lock(&self.to);
        let socket = to.owner(names, block)?;
        let mut message = front(kind, received).to_vec();
        message.extend_from_slice(received.packet);
        match unix::send_with_fds(socket.raw(), &message, &[]) {
            // Too many wait there: lost, as on a network.
            Ok(_) | Err(Errno::AGAIN) => Ok(()),
            Err(error) => {
                to.owners.remove(&block);
                Err(error)
            }
        }
    }
}

/// The queue pair that a packet is for, as its base transport header says (IBTA 9.2).
fn destination(packet: &[u8]) -> Option<u32> {
    let [_, high, middle, low] = packet.get(4..8)? else {
        return None;
    };
    Some(u32::from_be_bytes([0, *high, *middle, *low]))
}

/// What a message of a kind tells.
fn told(kind: u8, received: Received<'_>) -> Option<Message<'_>> {
    match (kind, <&[u8; MAD_BYTES]>::try_from(received.packet)) {
        (PACKET, _) => {
            let destination = destination(received.packet).unwrap_or_default();
            Some(Message::Packet(destination, received))
        }
        (MAD, Ok(mad)) => {
            let path = MadPath {
                source: received.source.into(),
                destination: received.destination.into(),
                interface: received.interface,
            };
            Some(Message::Mad(path, mad))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_arrives_as_it_came() {
        let received = Received {
            source: "192.0.2.1".parse().unwrap(),
            destination: "192.0.2.2".parse().unwrap(),
            interface: 7,
            source_port: 0xc123,
            traffic_class: 0x61,
            hop_limit: 63,
            packet: b"packet",
        };
        let mut message = front(PACKET, &received).to_vec();
        message.extend_from_slice(received.packet);
        let (kind, found) = parse(&message).unwrap();
        assert_eq!(kind, PACKET);
        assert_eq!(format!("{found:?}"), format!("{received:?}"));
        assert!(parse(&message[..FRONT - 1]).is_none());
    }
}
