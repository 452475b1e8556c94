//! Queue pair 1 (IBTA 13.5.1): the connection manager's datagrams, by the mailboxes of the window's links.
//!
//! An address does not say which slot has it, and several programs of one host have a slot each. So a
//! datagram goes to all hosts of the window, and each takes what is to an address of its own. They are few
//! and small, and whoever shares the window can read everything in it as it is.

use std::collections::VecDeque;
use std::net::UdpSocket;
use std::sync::{Arc, Mutex, RwLock};

use sluice_sys::errno::Errno;
use sluice_sys::process::random;
use sluice_transport::tap;
use sluice_verbs::Gid;
use sluice_verbs::locks::{lock, read, write};
use sluice_verbs::transport::{MAD_BYTES, MadPath, MadReceiver, ManagementTrace as _};
use sluice_window::Broken;

/// A message: the GIDs of who sends it and to whom it goes, and the datagram.
pub const MESSAGE_BYTES: usize = 32 + MAD_BYTES;
/// Messages for one host that wait for room in its mailbox. More are lost, as a network would lose them.
const WAITING_MAX: usize = 64;
/// Bits of [`Management::tag`] that are not the slot's.
const TAG_BITS: u32 = 11;

pub type Message = [u8; MESSAGE_BYTES];

pub struct Management {
    receiver: RwLock<Option<Arc<dyn MadReceiver>>>,
    /// By slot.
    waiting: Vec<Mutex<VecDeque<Message>>>,
    /// As no other program of the window has it.
    pub tag: u16,
}

/// What goes over the mailbox.
pub fn message(path: &MadPath, mad: &[u8; MAD_BYTES]) -> Message {
    let mut message = [0; MESSAGE_BYTES];
    message[..16].copy_from_slice(&path.source.0);
    message[16..32].copy_from_slice(&path.destination.0);
    message[32..].copy_from_slice(mad);
    message
}

impl Management {
    pub fn new(slot: u32, hosts: u32) -> core::result::Result<Self, Errno> {
        let [number, _] = random()?;
        let own = number as u32 & ((1 << TAG_BITS) - 1);
        Ok(Self {
            receiver: RwLock::default(),
            waiting: (0..hosts).map(|_| Mutex::default()).collect(),
            tag: (slot << TAG_BITS | own) as u16,
        })
    }

    /// Has a message wait for a host.
    pub fn post(&self, slot: u32, message: &Message) {
        let mut waiting = lock(&self.waiting[slot as usize]);
        if waiting.len() < WAITING_MAX {
            waiting.push_back(*message);
        }
    }

    pub fn set_receiver(&self, receiver: Arc<dyn MadReceiver>) {
        *write(&self.receiver) = Some(receiver);
    }

    /// Sends what waits for a host, for as long as `send` says that there was room.
    pub fn send(
        &self,
        slot: u32,
        mut send: impl FnMut(&Message) -> core::result::Result<bool, Broken>,
    ) -> core::result::Result<bool, Broken> {
        let mut waiting = lock(&self.waiting[slot as usize]);
        let mut any = false;
        while let Some(message) = waiting.front() {
            if !send(message)? {
                break;
            }
            any = true;
            waiting.pop_front();
        }
        Ok(any)
    }

    /// Whether something waits for a host.
    pub fn has_waiting(&self, slot: u32) -> bool {
        !lock(&self.waiting[slot as usize]).is_empty()
    }

    /// The host is gone, and what waits for it nobody's.
    pub fn forget(&self, slot: u32) {
        lock(&self.waiting[slot as usize]).clear();
    }

    /// A message came. `is_own`: from this process, whose trace has it already.
    pub fn came(&self, message: &[u8], is_own: bool) -> core::result::Result<(), Broken> {
        let message: &Message = message
            .try_into()
            .map_err(|_| Broken("has sent a management datagram of another length"))?;
        let Some(receiver) = read(&self.receiver).clone() else {
            return Ok(());
        };
        let (source, rest) = message.split_at(16);
        let (destination, mad) = rest.split_at(16);
        let gid = |bytes: &[u8]| bytes.try_into().map(Gid);
        if let (Ok(source), Ok(destination), Ok(mad)) =
            (gid(source), gid(destination), mad.try_into())
            && is_here(&destination)
        {
            let path = MadPath {
                source,
                destination,
                interface: 0,
            };
            if !is_own {
                tap::Management.record(false, [destination, source], 0, mad);
            }
            receiver.received(&path, mad, false);
        }
        Ok(())
    }
}

/// Whether it is an address of this host.
fn is_here(gid: &Gid) -> bool {
    let address = gid.address();
    !address.is_unspecified() && !address.is_multicast() && UdpSocket::bind((address, 0)).is_ok()
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    #[derive(Default)]
    struct Heard(Mutex<Vec<(MadPath, u8)>>);

    impl MadReceiver for Heard {
        fn received(&self, path: &MadPath, mad: &[u8; MAD_BYTES], passed_on: bool) {
            assert!(!passed_on);
            lock(&self.0).push((*path, mad[0]));
        }
    }

    fn gid(address: &str) -> Gid {
        address.parse::<IpAddr>().expect("an address").into()
    }

    fn message(to: &str, number: u8) -> Message {
        let path = MadPath {
            source: gid("192.0.2.9"),
            destination: gid(to),
            interface: 0,
        };
        super::message(&path, &[number; MAD_BYTES])
    }

    #[test]
    fn what_is_to_others_or_of_another_length_is_not_taken() {
        let management = Management::new(31, 32).expect("random numbers");
        assert_eq!(management.tag >> TAG_BITS, 31);
        management
            .came(&message("127.0.0.1", 1), false)
            .expect("nobody listens");
        let heard = Arc::new(Heard::default());
        management.set_receiver(heard.clone());
        for (to, number) in [
            ("127.0.0.1", 2),
            ("192.0.2.1", 3),
            ("0.0.0.0", 4),
            ("::", 5),
            ("224.0.0.1", 6),
            ("ff02::1", 7),
        ] {
            management
                .came(&message(to, number), false)
                .expect("a message");
        }
        for length in [0, 31, MESSAGE_BYTES - 1] {
            let short = &message("127.0.0.1", 8)[..length];
            assert!(management.came(short, false).is_err(), "{length}");
        }
        let heard = lock(&heard.0);
        let numbers: Vec<u8> = heard.iter().map(|(_, number)| *number).collect();
        assert_eq!(numbers, [2]);
        assert_eq!(heard[0].0.source, gid("192.0.2.9"));
    }

    #[test]
    fn messages_wait_for_room_in_order_and_not_without_end() {
        let management = Management::new(0, 3).expect("random numbers");
        for number in 0..=WAITING_MAX as u8 {
            management.post(2, &message("127.0.0.1", number));
        }
        let mut sent = Vec::new();
        let mut send = |room: usize| {
            let mut left = room;
            management.send(2, |message| {
                let is_room = left > 0;
                left = left.saturating_sub(1);
                if is_room {
                    sent.push(message[MESSAGE_BYTES - 1]);
                }
                Ok(is_room)
            })
        };
        assert!(matches!(send(0), Ok(false)));
        assert!(matches!(send(5), Ok(true)));
        assert!(matches!(send(1000), Ok(true)));
        assert_eq!(sent, (0..WAITING_MAX as u8).collect::<Vec<u8>>());
        assert!(!management.has_waiting(2));
        management.post(1, &message("127.0.0.1", 9));
        management.forget(1);
        assert!(!management.has_waiting(1));
    }
}
