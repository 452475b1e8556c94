//! Faults on purpose ([`sluice_transport::fault`]): a port whose incoming packets get lost, come
//! twice, come late or are damaged.
//!
//! What comes is enough: a packet that is lost here was lost on its way. Both directions of a
//! connection have faults when both processes ask for them.

use sluice_packet::{Facts, Leaving, Port, Received, SendError};
use sluice_sys::clock::now_ns;
use sluice_sys::timer::Timer;
use sluice_transport::fault::{Fate, Faults, Impair};

/// A packet that comes late.
struct Kept {
    /// Its `packet` is empty, the bytes are in `bytes`.
    frame: Received<'static>,
    bytes: Vec<u8>,
}

impl Kept {
    fn copy(received: &Received<'_>) -> Self {
        Self {
            frame: Received {
                packet: &[],
                ..*received
            },
            bytes: received.packet.to_vec(),
        }
    }

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
    impair: Impair<Kept>,
    /// Readable when the packet that is kept back is due. None where the kernel has none: then the
    /// packet waits for the next one.
    timer: Option<Timer>,
    /// When that is, as far as the timer knows.
    due_ns: Option<u64>,
    damaged: u64,
}

impl Impaired {
    /// `number` tells this port's faults from those of others.
    pub fn around(port: Box<dyn Port>, faults: &Faults, number: u64) -> Box<dyn Port> {
        Box::new(Self {
            port,
            impair: Impair::new(faults, number),
            timer: Timer::new().ok(),
            due_ns: None,
            damaged: 0,
        })
    }

    fn set_timer(&mut self) {
        let due_ns = self.impair.due_ns();
        if let Some(timer) = &mut self.timer
            && due_ns != self.due_ns
        {
            match due_ns {
                Some(due_ns) => timer.set(due_ns.saturating_sub(now_ns())),
                None => timer.clear(),
            }
        }
        self.due_ns = due_ns;
    }
}

impl Port for Impaired {
    fn receive(&mut self, each: &mut dyn FnMut(&Received<'_>)) -> usize {
        let (impair, damaged) = (&mut self.impair, &mut self.damaged);
        let mut came = self.port.receive(&mut |received| {
            let passing = impair.pass(now_ns, || Kept::copy(received));
            *damaged += u64::from(passing.fate == Fate::Corrupt);
            (0..passing.copies).for_each(|_| each(received));
            if let Some(late) = passing.behind {
                late.give(each);
            }
        });
        if self.impair.due_ns().is_some()
            && let Some(late) = self.impair.due(now_ns())
        {
            late.give(each);
            came += 1;
        }
        self.set_timer();
        came
    }

    fn put(
        &mut self,
        packet: &Leaving<'_>,
        fill: &mut dyn FnMut(&mut [u8]) -> bool,
    ) -> Result<(), SendError> {
        self.port.put(packet, fill)
    }

    fn flush(&mut self) -> bool {
        self.port.flush()
    }

    fn room(&self) -> usize {
        self.port.room()
    }

    /// Damaged packets count as such with a wrong ICRC.
    fn facts(&self) -> Facts {
        let mut facts = self.port.facts();
        let timer = self.timer.as_ref().map(Timer::raw);
        facts.descriptors.extend(timer);
        let counters = &mut facts.counters;
        counters.bad_icrc += self.damaged;
        counters.received = counters.received.saturating_sub(self.damaged);
        facts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;
    use std::net::IpAddr;
    use std::time::{Duration, Instant};

    use sluice_packet::PortCounters;

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

        fn put(
            &mut self,
            _: &Leaving<'_>,
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

        fn facts(&self) -> Facts {
            Facts {
                descriptors: Vec::new(),
                counters: PortCounters {
                    received: 250,
                    ..PortCounters::default()
                },
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
        let counters = damaged.facts().counters;
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

    /// What comes of it when it takes less time than that: who gets no processor in between tries again.
    fn within<T>(limit: Duration, look: impl Fn() -> T) -> T {
        loop {
            let start = Instant::now();
            let seen = look();
            if start.elapsed() < limit {
                return seen;
            }
        }
    }

    #[test]
    fn the_late_come_after_the_next_or_after_their_time() {
        let came = within(Duration::from_secs(1), || {
            let mut late = port("reorder=1,delay=1s", &[&[1], &[2]]);
            [receive(&mut *late), receive(&mut *late)]
        });
        // The second would be late as well, and overtakes the first.
        assert_eq!(came, [(1, vec![]), (1, vec![2, 1])]);
        // Nothing follows: it is waited for by descriptor.
        let (mut late, came) = within(Duration::from_millis(100), || {
            let mut late = port("reorder=1,delay=100ms", &[&[7]]);
            let came = receive(&mut *late);
            (late, came)
        });
        assert_eq!(came, (1, vec![]));
        let [timer] = late.facts().descriptors[..] else {
            panic!("no timer");
        };
        assert_eq!(sluice_sys::unix::wait_readable(timer, 60_000), Ok(true));
        assert_eq!(receive(&mut *late), (1, vec![7]));
        assert_eq!(sluice_sys::unix::wait_readable(timer, 0), Ok(false));
    }
}
