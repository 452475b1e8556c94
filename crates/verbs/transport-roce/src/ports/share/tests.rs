use std::cell::Cell;
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::sync::atomic::AtomicBool;

use sluice_packet::PortCounters;

use super::*;

/// What a port has sent: queue and packet.
type Sent = Arc<Mutex<Vec<(usize, Vec<u8>)>>>;

/// A port that takes a few packets, and whose kernel takes fewer.
struct Narrow {
    queue: usize,
    sent: Sent,
    staged: Vec<Vec<u8>>,
    /// Of these calls of the kernel each third takes nothing.
    flushes: usize,
    open: Arc<AtomicBool>,
    came: usize,
}

const ROOM: usize = 5;

thread_local! {
    /// Happens once, while somebody looks at the facts.
    static MEANWHILE: Cell<Option<Box<dyn FnOnce()>>> = const { Cell::new(None) };
}

impl Port for Narrow {
    fn receive(&mut self, each: &mut dyn FnMut(&Received<'_>)) -> usize {
        self.came += 1;
        let packet = [self.queue as u8];
        each(&Received {
            source: "192.0.2.1".parse().unwrap(),
            destination: "192.0.2.2".parse().unwrap(),
            interface: 1,
            source_port: 1,
            traffic_class: 0,
            hop_limit: 1,
            packet: &packet,
        });
        1
    }

    fn put(
        &mut self,
        packet: &Leaving<'_>,
        fill: &mut dyn FnMut(&mut [u8]) -> bool,
    ) -> Result<(), SendError> {
        if self.room() < 1 + usize::from(packet.beside.is_some()) {
            return Err(SendError::NoRoom);
        }
        if let Some(kept) = packet.beside {
            self.staged.push(kept.packet().to_vec());
        }
        let mut bytes = vec![0; packet.length];
        assert!(fill(&mut bytes));
        self.staged.push(bytes);
        Ok(())
    }

    fn flush(&mut self) -> bool {
        self.flushes += 1;
        let taken = match self.flushes % 3 {
            0 => 0,
            _ if self.open.load(Ordering::Relaxed) => self.staged.len().min(3),
            _ => 0,
        };
        let gone = self.staged.drain(..taken);
        self.sent
            .lock()
            .unwrap()
            .extend(gone.map(|packet| (self.queue, packet)));
        self.staged.is_empty()
    }

    fn room(&self) -> usize {
        ROOM - self.staged.len()
    }

    fn facts(&self) -> Facts {
        if let Some(meanwhile) = MEANWHILE.take() {
            meanwhile();
        }
        Facts {
            descriptors: vec![self.queue as RawFd],
            counters: PortCounters {
                received: self.came as u64,
                ..PortCounters::default()
            },
        }
    }
}

fn ports(queues: usize) -> (Vec<Boxed>, Sent, Arc<AtomicBool>) {
    let (sent, open) = (Sent::default(), Arc::new(AtomicBool::new(true)));
    let port = |queue| -> Boxed {
        Box::new(Narrow {
            queue,
            sent: sent.clone(),
            staged: Vec::new(),
            flushes: 0,
            open: open.clone(),
            came: 0,
        })
    };
    ((0..queues).map(port).collect(), sent, open)
}

const PATH: Path = Path {
    source: IpAddr::V4(std::net::Ipv4Addr::LOCALHOST),
    destination: IpAddr::V4(std::net::Ipv4Addr::LOCALHOST),
    interface: 1,
    ethernet: None,
    source_port: 1,
    dscp: 0,
    hop_limit: 1,
    flow_label: 0,
};

fn send(port: &mut Boxed, packet: &[u8]) -> Result<(), SendError> {
    let leaving = Leaving::alone(&PATH, Ecn::NotCapable, packet.len());
    port.put(&leaving, &mut |into| {
        into.copy_from_slice(packet);
        true
    })
}

fn received(port: &mut Boxed) -> Vec<u8> {
    let mut all = Vec::new();
    port.receive(&mut |received| all.extend_from_slice(received.packet));
    all
}

#[test]
fn each_shard_has_one_port_and_each_queue_one_receiver() {
    for (queues, shards) in [(1, 1), (3, 3), (5, 2), (8, 3), (1, 4), (2, 3), (3, 7)] {
        let (all, sent, _) = ports(queues);
        let mut all = deal(all, shards);
        assert_eq!(all.len(), shards);
        // Every queue is received from and waited for by exactly one shard.
        for mut found in [
            all.iter_mut().flat_map(received).map(usize::from).collect(),
            all.iter()
                .flat_map(|port| port.facts().descriptors)
                .map(|descriptor| descriptor as usize)
                .collect::<Vec<usize>>(),
        ] {
            found.sort_unstable();
            assert_eq!(found, (0..queues).collect::<Vec<_>>(), "{queues} {shards}");
        }
        let counted: u64 = all.iter().map(|port| port.facts().counters.received).sum();
        assert_eq!(counted, queues as u64);
        for (shard, port) in all.iter_mut().enumerate() {
            send(port, &[shard as u8]).unwrap();
            while !port.flush() {}
        }
        let sent = sent.lock().unwrap();
        for (shard, (queue, packet)) in sent.iter().enumerate() {
            assert_eq!((*queue, &**packet), (shard % queues, &[shard as u8][..]));
        }
        assert_eq!(sent.len(), shards);
    }
}

#[test]
fn what_is_not_filled_is_not_sent() {
    let (all, sent, _) = ports(1);
    let mut all = deal(all, 2);
    let port = &mut all[1];
    send(port, b"one").unwrap();
    let nothing = port.put(&Leaving::alone(&PATH, Ecn::NotCapable, 8), &mut |into| {
        into.fill(1);
        false
    });
    assert_eq!(nothing, Err(SendError::Nothing));
    send(port, b"three").unwrap();
    while !port.flush() {}
    let sent = sent.lock().unwrap();
    let packets: Vec<&[u8]> = sent.iter().map(|(_, packet)| &**packet).collect();
    assert_eq!(packets, [&b"one"[..], b"three"]);
}

/// A queue that takes nothing has no room for ever more, and gives all when it takes some again.
#[test]
fn a_queue_that_stands_still_fills_up_and_goes_on_in_order() {
    let (all, sent, open) = ports(1);
    let mut all = deal(all, 2);
    open.store(false, Ordering::Relaxed);
    let mut number = 0u32;
    loop {
        match send(&mut all[1], &number.to_be_bytes()) {
            Ok(()) => number += 1,
            Err(error) => {
                assert_eq!(error, SendError::NoRoom);
                assert!(!all[1].flush());
                if all[1].room() == 0 {
                    break;
                }
            }
        }
        assert!(number < 4096, "it takes any number");
    }
    // Who receives says that there is something to do.
    assert!(sent.lock().unwrap().is_empty());
    open.store(true, Ordering::Relaxed);
    while !all[0].flush() {}
    let sent = sent.lock().unwrap();
    let numbers: Vec<u32> = sent
        .iter()
        .map(|(_, packet)| u32::from_be_bytes(packet[..].try_into().unwrap()))
        .collect();
    assert_eq!(numbers, (0..number).collect::<Vec<_>>());
}

/// Shards that send and one that receives, at the same time: each packet goes once, those of a shard
/// in their order, and none is left when all have flushed.
#[test]
fn shards_that_share_a_queue_lose_nothing() {
    const SHARDS: usize = 4;
    const EACH: u32 = 5000;
    let (all, sent, _) = ports(1);
    let mut all = deal(all, SHARDS);
    std::thread::scope(|scope| {
        for (shard, port) in all.iter_mut().enumerate() {
            scope.spawn(move || {
                for number in 0..EACH {
                    let mut packet = vec![shard as u8; 1 + number as usize % 7];
                    packet.extend_from_slice(&number.to_be_bytes());
                    while send(port, &packet).is_err() {
                        port.flush();
                        std::thread::yield_now();
                    }
                    if number % 5 == 0 {
                        port.flush();
                    }
                    if shard == 0 {
                        port.receive(&mut |_| {});
                    }
                }
                while !port.flush() {}
            });
        }
    });
    let sent = sent.lock().unwrap();
    let mut next = [0; SHARDS];
    for (_, packet) in sent.iter() {
        let (front, number) = packet.split_last_chunk().unwrap();
        let shard = usize::from(front[0]);
        assert_eq!(u32::from_be_bytes(*number), next[shard]);
        next[shard] += 1;
    }
    assert_eq!(next, [EACH; SHARDS]);
}

/// Who finds the queue taken leaves his packets to whoever has it, also if that one only looks.
#[test]
fn what_is_left_to_one_who_looks_is_sent() {
    let (all, sent, _) = ports(1);
    let mut all = deal(all, 2);
    let mut other = all.pop().unwrap();
    MEANWHILE.set(Some(Box::new(move || {
        send(&mut other, b"left").unwrap();
        other.flush();
    })));
    all[0].facts();
    assert_eq!(*sent.lock().unwrap(), [(0, b"left".to_vec())]);
}
