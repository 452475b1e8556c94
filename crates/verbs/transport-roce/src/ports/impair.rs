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

use crate::ports::timer::Timer;

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
    fn fetch(&mut self) {
        self.port.fetch();
    }

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

    fn left_to_sockets(&self) -> Option<u64> {
        self.port.left_to_sockets()
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

    fn hand_on(&mut self) -> bool {
        self.port.hand_on()
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    /// Gives numbered packets, so many in a call.
    struct Numbers(VecDeque<Vec<u8>>);

    impl Port for Numbers {
        fn receive(&mut self, each: &mut dyn FnMut(&Received<'_>)) -> usize {
            let Some(batch) = self.0.pop_front() else {
                return 0;
            };
            for number in &batch {
                each(&Received {
                    source: IpAddr::from([192, 0, 2, 1]),
                    destination: IpAddr::from([192, 0, 2, 2]),
                    interface: 1,
                    source_port: 0xc000,
                    traffic_class: 0,
                    hop_limit: 64,
                    packet: &[*number],
                });
            }
            batch.len()
        }

        fn send(
            &mut self,
            _: &Path,
            _: Ecn,
            _: usize,
            _: &mut dyn FnMut(&mut [u8]) -> bool,
        ) -> Result<(), SendError> {
            Err(SendError::Unreachable)
        }

        fn flush(&mut self) -> bool {
            true
        }

        fn room(&self) -> usize {
            0
        }

        fn descriptors(&self) -> Vec<RawFd> {
            Vec::new()
        }

        fn counters(&self) -> PortCounters {
            PortCounters {
                received: 250,
                ..PortCounters::default()
            }
        }
    }

    fn port(faults: &str, batches: &[&[u8]]) -> Box<dyn Port> {
        let numbers = Numbers(batches.iter().map(|batch| batch.to_vec()).collect());
        Impaired::around(Box::new(numbers), &faults.parse().unwrap(), 0)
    }

    /// What comes in one call, and the call's answer.
    fn receive(port: &mut dyn Port) -> (usize, Vec<u8>) {
        let mut got = Vec::new();
        let came = port.receive(&mut |received| got.extend_from_slice(received.packet));
        (came, got)
    }

    #[test]
    fn each_fault_does_what_it_is_called() {
        let (some, many): (&[u8], Vec<u8>) = (&[1, 2, 3], (0..250).collect());
        // Those that came count also when all are lost: there may be more.
        assert_eq!(receive(&mut *port("loss=1", &[some])), (3, vec![]));
        let twice = vec![1, 1, 2, 2, 3, 3];
        assert_eq!(receive(&mut *port("dup=1", &[some])), (3, twice));
        let mut damaged = port("corrupt=1", &[&many]);
        assert_eq!(receive(&mut *damaged), (250, vec![]));
        let counters = damaged.counters();
        assert_eq!((counters.bad_icrc, counters.received), (250, 0));
        // Some of each, and nothing else.
        let mixed = "loss=0.2,dup=0.2,reorder=0.2,delay=1s,seed=1";
        let (_, mut got) = receive(&mut *port(mixed, &[&many]));
        assert!(got.windows(2).any(|two| two[0] == two[1]));
        assert!(got.windows(2).any(|two| two[0] > two[1]));
        got.sort_unstable();
        got.dedup();
        assert!((150..250).contains(&got.len()), "{}", got.len());
    }

    #[test]
    fn the_late_come_after_the_next_or_after_their_time() {
        let mut late = port("reorder=1,delay=1s", &[&[1], &[2]]);
        assert_eq!(receive(&mut *late), (1, vec![]));
        assert_eq!(receive(&mut *late), (1, vec![1]));
        // Nothing follows: it is waited for by descriptor.
        let mut late = port("reorder=1,delay=2ms", &[&[7]]);
        assert_eq!(receive(&mut *late), (1, vec![]));
        let [timer] = late.descriptors()[..] else {
            panic!("no timer");
        };
        assert_eq!(sluice_sys::unix::wait_readable(timer, 10_000), Ok(true));
        assert_eq!(receive(&mut *late), (1, vec![7]));
        assert_eq!(sluice_sys::unix::wait_readable(timer, 0), Ok(false));
    }
}
