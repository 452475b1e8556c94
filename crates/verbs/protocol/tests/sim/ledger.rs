//! The memory behind one end, which knows what may happen to it, and when.

use std::collections::{BTreeMap, BTreeSet};

use sluice_protocol::{
    Access, Atomic, Memory, Operation, Received, Refusal, Remote, ScatterError, Status, TakeError,
};
use sluice_wire::Mtu;

use super::program::{COUNTED, COUNTERS, Op, READ, READ_BYTES, WRITTEN, WRITTEN_BYTES};
use super::random::Random;

pub struct Ledger {
    /// What the peer asks, in order.
    incoming: Vec<Op>,
    /// The request that is being carried out, or is next.
    next: usize,
    /// Pieces of it that were written, by their place in packets.
    pieces: BTreeSet<u64>,
    mtu: Mtu,
    pub written: Vec<u8>,
    read: Vec<u8>,
    counters: [u64; COUNTERS],
    /// What the atomics gave, by request.
    pub originals: BTreeMap<u64, u64>,
    /// Receives that are posted, and how long each is.
    pub receives: u64,
    pub receive_bytes: usize,
    /// What has come of the message that is being received.
    receiving: Option<Vec<u8>>,
    /// Of our own requests: what was read.
    pub answers: BTreeMap<u64, Vec<u8>>,
    /// Lengths of our own requests.
    pub asked: BTreeMap<u64, u32>,
    pub refused: u64,
    pub failed_receives: Vec<Status>,
    /// Nothing is expected: whatever comes may be right. For hostile peers.
    pub lenient: bool,
}

impl Ledger {
    pub fn new(incoming: Vec<Op>, mtu: Mtu, seed: u64) -> Self {
        let mut ledger = Self {
            incoming,
            next: 0,
            pieces: BTreeSet::new(),
            mtu,
            written: vec![0; WRITTEN_BYTES],
            read: Random::new(seed).bytes(READ_BYTES),
            counters: [0; COUNTERS],
            originals: BTreeMap::new(),
            receives: 0,
            receive_bytes: 1 << 20,
            receiving: None,
            answers: BTreeMap::new(),
            asked: BTreeMap::new(),
            refused: 0,
            failed_receives: Vec::new(),
            lenient: false,
        };
        ledger.settle();
        ledger
    }

    /// Requests that have had their effect: all before this one.
    pub fn effects(&self) -> u64 {
        self.next as u64
    }

    /// Requests without an effect here are passed over.
    fn settle(&mut self) {
        while let Some(op) = self.incoming.get(self.next) {
            let none = match op.request.operation {
                Operation::Read(_) => true,
                Operation::Write(_) => op.request.length == 0,
                _ => false,
            };
            if !none {
                break;
            }
            self.next += 1;
        }
    }

    fn current(&self, what: &str) -> &Op {
        self.incoming
            .get(self.next)
            .unwrap_or_else(|| panic!("{what}, but nothing was asked any more"))
    }

    fn done(&mut self) {
        self.next += 1;
        self.pieces.clear();
        self.settle();
    }

    /// Bytes for a READ. None outside a region.
    pub fn bytes(&self, remote: Remote, length: usize) -> Option<&[u8]> {
        let (base, region) = match remote.rkey {
            key if key == READ.rkey => (READ, &self.read),
            key if key == WRITTEN.rkey => (WRITTEN, &self.written),
            _ => return None,
        };
        let begin = usize::try_from(remote.address.checked_sub(base.address)?).ok()?;
        region.get(begin..begin.checked_add(length)?)
    }
}

impl Memory for Ledger {
    fn place(&mut self, seq: u64, offset: u32, bytes: &[u8]) -> Result<(), Refusal> {
        let length = self.asked[&seq] as usize;
        let answer = self.answers.entry(seq).or_insert_with(|| vec![0; length]);
        // A write outside the request's memory panics here.
        answer[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn check(&mut self, access: Access, remote: Remote, length: u32) -> Result<(), Refusal> {
        let right = access == Access::Read || remote.rkey == WRITTEN.rkey;
        match self.bytes(remote, length as usize) {
            Some(_) if right => Ok(()),
            _ => {
                self.refused += 1;
                Err(Refusal::Access)
            }
        }
    }

    fn write(&mut self, remote: Remote, bytes: &[u8]) -> Result<(), Refusal> {
        self.check(Access::Write, remote, bytes.len() as u32)?;
        let begin = (remote.address - WRITTEN.address) as usize;
        self.written[begin..][..bytes.len()].copy_from_slice(bytes);
        if self.lenient {
            return Ok(());
        }
        let op = self.current("a write");
        let (Operation::Write(to) | Operation::WriteImmediate(to, _)) = op.request.operation else {
            panic!("a write where {:?} was next", op.request);
        };
        let offset = remote
            .address
            .checked_sub(to.address)
            .expect("of this request");
        let piece = offset / self.mtu.bytes() as u64;
        assert_eq!(offset % self.mtu.bytes() as u64, 0);
        assert_eq!(bytes, &op.data[offset as usize..][..bytes.len()]);
        let pieces = self.mtu.packets(op.data.len() as u64);
        let plain = matches!(op.request.operation, Operation::Write(_));
        assert_eq!(piece, self.pieces.len() as u64, "out of order");
        assert!(self.pieces.insert(piece), "piece {piece} written twice");
        if plain && self.pieces.len() as u64 == pieces {
            self.done();
        }
        Ok(())
    }

    fn atomic(&mut self, remote: Remote, atomic: Atomic) -> Result<u64, Refusal> {
        let offset = remote.address.checked_sub(COUNTED.address);
        let place = offset.filter(|_| remote.rkey == COUNTED.rkey);
        let place = place.and_then(|offset| usize::try_from(offset / 8).ok());
        let Some(counter) = place.and_then(|place| self.counters.get_mut(place)) else {
            self.refused += 1;
            return Err(Refusal::Access);
        };
        let original = *counter;
        match atomic {
            Atomic::FetchAdd(add) => *counter = counter.wrapping_add(add),
            Atomic::CompareSwap { compare, swap } if original == compare => *counter = swap,
            Atomic::CompareSwap { .. } => {}
        }
        if self.lenient {
            return Ok(original);
        }
        let op = self.current("an atomic").request;
        let asked = match op.operation {
            Operation::FetchAdd { remote, add } => (remote, Atomic::FetchAdd(add)),
            Operation::CompareSwap {
                remote,
                compare,
                swap,
            } => (remote, Atomic::CompareSwap { compare, swap }),
            other => panic!("an atomic where {other:?} was next"),
        };
        assert_eq!(asked, (remote, atomic));
        self.originals.insert(op.seq, original);
        self.done();
        Ok(original)
    }

    fn take_receive(&mut self) -> Result<(), TakeError> {
        assert!(self.receiving.is_none(), "two receives at once");
        if self.receives == 0 {
            return Err(TakeError::Empty);
        }
        if !self.lenient {
            let op = self.current("a message").request;
            assert!(
                op.operation.takes_receive(),
                "a message where {op:?} was next"
            );
        }
        self.receives -= 1;
        self.receiving = Some(Vec::new());
        Ok(())
    }

    fn scatter(&mut self, offset: u32, bytes: &[u8]) -> Result<(), ScatterError> {
        let room = self.receive_bytes;
        let received = self.receiving.as_mut().expect("a receive was taken");
        // UC begins anew with the same receive.
        if offset == 0 {
            received.clear();
        }
        assert_eq!(offset as usize, received.len(), "out of order");
        if received.len() + bytes.len() > room {
            return Err(ScatterError::TooLong);
        }
        received.extend_from_slice(bytes);
        Ok(())
    }

    fn invalidate(&mut self, _rkey: u32) -> Result<(), Refusal> {
        Ok(())
    }

    fn complete_receive(&mut self, received: &Received) {
        let bytes = self.receiving.take().expect("a receive was taken");
        if received.status != Status::Success {
            self.failed_receives.push(received.status);
            return;
        }
        if self.lenient {
            return;
        }
        let op = self.current("a completion");
        let (immediate, invalidated, write) = match op.request.operation {
            Operation::Send => (None, None, false),
            Operation::SendImmediate(data) => (Some(data), None, false),
            Operation::SendInvalidate(rkey) => (None, Some(rkey), false),
            Operation::WriteImmediate(_, data) => (Some(data), None, true),
            other => panic!("a completion where {other:?} was next"),
        };
        let wanted = Received {
            status: Status::Success,
            length: op.request.length,
            write,
            immediate,
            invalidated,
            solicited: op.request.solicited,
        };
        assert_eq!(*received, wanted);
        if write {
            let pieces = match op.data.len() as u64 {
                0 => 0,
                len => self.mtu.packets(len),
            };
            assert_eq!(self.pieces.len() as u64, pieces, "before all was written");
        } else {
            assert_eq!(bytes, *op.data);
        }
        self.done();
    }
}
