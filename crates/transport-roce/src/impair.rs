//! Faults on purpose ([`sluice_verbs::fault`]): a port whose incoming packets get lost, come
//! twice, come late or are damaged.
//!
//! What comes is enough: a packet that is lost here was lost on its way. Both directions of a
//! connection have faults when both processes ask for them.

use std::net::IpAddr;
use std::os::fd::RawFd;

use sluice_packet::{Path, Port, PortCounters, Received, SendError};
use sluice_sys::errno::Errno;
use sluice_sys::process::now_ns;
use sluice_verbs::fault::{Fate, Faults, Injector};
use sluice_wire::Ecn;

use crate::timer::Timer;

/// A packet that comes late.
struct Held {
    /// Its `packet` is empty, the bytes are in `bytes`.
    frame: Received<'static>,
    bytes: Vec<u8>,
    due_ns: u64,
}

impl Held {
    fn give(&self, each: &mut dyn FnMut(&Received<'_>)) {
        each(&Received {
            packet: &self.bytes,
            ..self.frame
        });
    }
}

/// A port with faults.
pub struct Impaired {
    port: Box<dyn Port>,
    injector: Injector,
    delay_ns: u64,
    held: Option<Held>,
    /// Readable when the held packet is due. None where the kernel has none: then the packet
    /// waits for the next one.
    timer: Option<Timer>,
    damaged: u64,
}

impl Impaired {
    /// `number` tells this port's faults from those of others.
    pub fn around(port: Box<dyn Port>, faults: &Faults, number: u64) -> Box<dyn Port> {
        Box::new(Self {
            port,
            injector: faults.injector(number),
            delay_ns: faults.delay().as_nanos() as u64,
            held: None,
            timer: Timer::new().ok(),
            damaged: 0,
        })
    }
}

impl Port for Impaired {
    fn receive(&mut self, each: &mut dyn FnMut(&Received<'_>)) -> usize {
        let Self {
            port,
            injector,
            held,
            damaged,
            delay_ns,
            timer,
        } = self;
        let mut came = port.receive(&mut |received| {
            let fate = injector.fate();
            match fate {
                Fate::Drop => return,
                Fate::Corrupt => {
                    *damaged += 1;
                    return;
                }
                Fate::Pass | Fate::Late => {}
                Fate::Duplicate => each(received),
            }
            // The next one is here: whoever was late has been overtaken.
            let overtaken = held.take();
            if fate == Fate::Late {
                *held = Some(Held {
                    frame: Received {
                        packet: &[],
                        ..*received
                    },
                    bytes: received.packet.to_vec(),
                    due_ns: now_ns() + *delay_ns,
                });
                if let Some(timer) = timer {
                    timer.set(*delay_ns);
                }
            } else {
                each(received);
            }
            if let Some(late) = overtaken {
                late.give(each);
            }
        });
        if let Some(late) = held.take_if(|late| now_ns() >= late.due_ns) {
            late.give(each);
            came += 1;
        }
        if let Some(timer) = timer
            && held.is_none()
        {
            timer.clear();
        }
        came
    }

    fn send(
        &mut self,
        path: &Path,
        ecn: Ecn,
        length: usize,
        fill: &mut dyn FnMut(&mut [u8]) -> bool,
    ) -> Result<(), SendError> {
        self.port.send(path, ecn, length, fill)
    }

    fn flush(&mut self) -> bool {
        self.port.flush()
    }

    fn room(&self) -> usize {
        self.port.room()
    }

    fn descriptors(&self) -> Vec<RawFd> {
        let mut all = self.port.descriptors();
        all.extend(self.timer.as_ref().map(Timer::raw));
        all
    }

    fn join(&self, group: IpAddr, interface: u32, join: bool) -> Result<(), Errno> {
        self.port.join(group, interface, join)
    }

    /// Damaged packets count as such with a wrong ICRC.
    fn counters(&self) -> PortCounters {
        let mut counters = self.port.counters();
        counters.bad_icrc += self.damaged;
        counters.received = counters.received.saturating_sub(self.damaged);
        counters
    }
}
