//! UC and UD: what comes is whole, in order, and at most once; what is lost is lost.

mod sim;

use std::collections::VecDeque;

use sim::random::Random;
use sluice_protocol::{
    Access, Atomic, Datagram, Instant, Memory, Operation, Payload, PostError, Received, Refusal,
    Remote, Request, ScatterError, Status, TakeError, Transmit, uc, ud,
};
use sluice_wire::extended::ImmDt;
use sluice_wire::{Ecn, Mtu, Packet, Psn, Qpn};

const REGION: Remote = Remote {
    address: 0x5000,
    rkey: 77,
};

/// Receives and one region.
#[derive(Default)]
struct Inbox {
    region: Vec<u8>,
    receives: u32,
    receiving: Option<Vec<u8>>,
    received: Vec<(Received, Vec<u8>)>,
}

impl Memory for Inbox {
    fn place(&mut self, _: u64, _: u32, _: &[u8]) -> Result<(), Refusal> {
        unreachable!("no responses")
    }

    fn check(&mut self, _: Access, remote: Remote, length: u32) -> Result<(), Refusal> {
        let end = remote.address.checked_add(u64::from(length));
        let last = REGION.address + self.region.len() as u64;
        let inside = remote.address >= REGION.address && end.is_some_and(|end| end <= last);
        if inside && remote.rkey == REGION.rkey {
            Ok(())
        } else {
            Err(Refusal::Access)
        }
    }

    fn write(&mut self, remote: Remote, bytes: &[u8]) -> Result<(), Refusal> {
        self.check(Access::Write, remote, bytes.len() as u32)?;
        let begin = (remote.address - REGION.address) as usize;
        self.region[begin..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn atomic(&mut self, _: Remote, _: Atomic) -> Result<u64, Refusal> {
        unreachable!("no atomics")
    }

    fn take_receive(&mut self) -> Result<(), TakeError> {
        assert!(self.receiving.is_none(), "two receives at once");
        self.receives = self.receives.checked_sub(1).ok_or(TakeError::Empty)?;
        self.receiving = Some(Vec::new());
        Ok(())
    }

    fn scatter(&mut self, offset: u32, bytes: &[u8]) -> Result<(), ScatterError> {
        let received = self.receiving.as_mut().expect("a receive was taken");
        // A message that was given up leaves its receive to the next.
        received.truncate(offset as usize);
        assert_eq!(received.len(), offset as usize, "a hole");
        if offset as usize + bytes.len() > 100_000 {
            return Err(ScatterError::TooLong);
        }
        received.extend_from_slice(bytes);
        Ok(())
    }

    fn invalidate(&mut self, _: u32) -> Result<(), Refusal> {
        unreachable!("not on UC")
    }

    fn complete_receive(&mut self, received: &Received) {
        let bytes = self.receiving.take().expect("a receive was taken");
        self.received.push((*received, bytes));
    }
}

fn inbox(receives: u32) -> Inbox {
    Inbox {
        region: vec![0; 8192],
        receives,
        ..Inbox::default()
    }
}

fn pair() -> [uc::Connection; 2] {
    let config = |send, receive| uc::Config {
        destination: Qpn::new(8),
        pkey: 0xffff,
        mtu: Mtu::Bytes256,
        send_psn: Psn::new(send),
        receive_psn: Psn::new(receive),
        depth: 4,
        rate: None,
    };
    [
        uc::Connection::new(&config(0xff_fff0, 9)),
        uc::Connection::new(&config(9, 0xff_fff0)),
    ]
}

fn bytes(packet: &Transmit, data: &[u8]) -> Vec<u8> {
    let payload = match packet.payload {
        Payload::Request { offset, length, .. } => &data[offset as usize..][..length as usize],
        _ => &[],
    };
    let mut buffer = [0; 8192];
    let used = packet.headers.emit(payload, &mut buffer).expect("legal");
    buffer[..used].to_vec()
}

fn give(to: &mut uc::Connection, bytes: &[u8], inbox: &mut Inbox) {
    let packet = Packet::parse(bytes).expect("legal");
    to.receive(Instant::default(), &packet, Ecn::Capable0, inbox);
}

fn request(seq: u64, operation: Operation, length: usize) -> Request {
    Request {
        seq,
        operation,
        length: length as u32,
        solicited: false,
        srq: None,
    }
}

/// Messages over a network that loses, copies and reorders. Catches: parts of two messages put
/// together, a message delivered twice or after a later one (mutation: no `give_up` after a gap).
#[test]
fn messages_are_whole_or_absent() {
    let (mut delivered, mut sent) = (0, 0);
    for seed in 0..100 {
        let mut random = Random::new(seed);
        let [mut from, mut to] = pair();
        let mut inbox = inbox(u32::MAX);
        let mut messages = Vec::new();
        let mut flying: VecDeque<Vec<u8>> = VecDeque::new();
        for seq in 0..100 {
            let len = random.below(2000) as usize;
            let mut data = random.bytes(len);
            let immediate = ImmDt((seq as u32).to_be_bytes());
            data.truncate(len);
            from.post(request(seq, Operation::SendImmediate(immediate), len))
                .unwrap();
            while let Some(packet) = from.transmit(Instant::default()) {
                let bytes = bytes(&packet, &data);
                for _ in 0..=u32::from(random.ppm(20_000)) {
                    let back = random.below(3) as usize * usize::from(random.ppm(20_000));
                    let place = flying.len().saturating_sub(back);
                    flying.insert(place, bytes.clone());
                }
            }
            assert_eq!(
                from.completion().map(|done| done.status),
                Some(Status::Success)
            );
            messages.push(data);
            while flying.len() > 10 {
                let bytes = flying.pop_front().unwrap();
                if !random.ppm(20_000) {
                    give(&mut to, &bytes, &mut inbox);
                }
            }
        }
        let mut last = None;
        for (received, data) in &inbox.received {
            let seq = u32::from_be_bytes(received.immediate.expect("has one").0);
            assert!(last < Some(seq), "seed {seed}: {seq} after {last:?}");
            last = Some(seq);
            assert!(*data == messages[seq as usize], "seed {seed}: {seq}");
            assert_eq!(received.length as usize, data.len());
        }
        delivered += inbox.received.len();
        sent += messages.len();
    }
    // About four packets a message, each lost or out of place in 4 to 6 cases of 100.
    assert!(delivered * 10 > sent * 6, "{delivered} of {sent}");
}

/// Catches: a dropped message that keeps the next from its receive, or takes one more.
#[test]
fn a_message_without_a_receive_is_dropped_whole() {
    let [mut from, mut to] = pair();
    let mut inbox = inbox(0);
    let data = Random::new(1).bytes(600);
    for seq in 0..3 {
        from.post(request(seq, Operation::Send, 600)).unwrap();
        let mut first = true;
        while let Some(packet) = from.transmit(Instant::default()) {
            give(&mut to, &bytes(&packet, &data), &mut inbox);
            // A receive that comes in the middle of the first message is for the second.
            if std::mem::take(&mut first) && seq == 0 {
                inbox.receives = 2;
            }
        }
    }
    assert_eq!(inbox.received.len(), 2);
    assert!(inbox.received.iter().all(|(_, bytes)| *bytes == data));
    assert_eq!(to.counters().messages_dropped, 1);
}

#[test]
fn writes_stay_inside_and_bad_keys_are_dropped() {
    let [mut from, mut to] = pair();
    let mut inbox = inbox(1);
    let data = Random::new(1).bytes(600);
    let at = |offset: u64, rkey| {
        Operation::Write(Remote {
            address: REGION.address + offset,
            rkey,
        })
    };
    let good = at(1000, 77);
    for (seq, operation) in [at(8000, 77), at(0, 78), good].into_iter().enumerate() {
        from.post(request(seq as u64, operation, 600)).unwrap();
        while let Some(packet) = from.transmit(Instant::default()) {
            give(&mut to, &bytes(&packet, &data), &mut inbox);
        }
        while from.completion().is_some() {}
    }
    assert_eq!(inbox.region[1000..1600], data);
    assert!(
        inbox.region[..1000]
            .iter()
            .chain(&inbox.region[1600..])
            .all(|byte| *byte == 0)
    );
    assert_eq!(to.counters().messages_dropped, 2);
}

#[test]
fn unreliable_connections_refuse_what_they_do_not_have() {
    let [mut from, _] = pair();
    let illegal = [
        Operation::Read(REGION),
        Operation::SendInvalidate(3),
        Operation::FetchAdd {
            remote: REGION,
            add: 1,
        },
    ];
    for operation in illegal {
        assert_eq!(from.post(request(0, operation, 8)), Err(PostError::Illegal));
    }
    for seq in 0..4 {
        from.post(request(seq, Operation::Send, 0)).unwrap();
    }
    assert_eq!(
        from.post(request(4, Operation::Send, 0)),
        Err(PostError::Full)
    );
    from.stop();
    let ends: Vec<Status> = std::iter::from_fn(|| from.completion())
        .map(|end| end.status)
        .collect();
    assert_eq!(ends, [Status::Flushed; 4]);
}

fn endpoint(source: u32, qkey: u32) -> ud::Endpoint {
    ud::Endpoint::new(&ud::Config {
        source: Qpn::new(source),
        pkey: 0xffff,
        mtu: Mtu::Bytes1024,
        qkey,
        send_psn: Psn::new(3),
        depth: 4,
    })
}

/// Catches: a Q_Key that is not compared; a datagram of more than the MTU.
#[test]
fn datagrams_need_the_key_and_a_receive() {
    let (mut from, mut to) = (endpoint(5, 1), endpoint(6, 0x1234));
    let mut inbox = inbox(2);
    let data = Random::new(1).bytes(1024);
    let send = |qkey| Datagram {
        destination: Qpn::new(6),
        qkey,
    };
    for (seq, (qkey, len)) in [(0x1234, 1024), (0x1235, 10), (0x1234, 0), (0x1234, 5)]
        .into_iter()
        .enumerate()
    {
        from.post(request(seq as u64, Operation::Send, len), send(qkey))
            .unwrap();
        let packet = from.transmit().expect("one packet");
        assert_eq!(packet.headers.deth.expect("has one").source, Qpn::new(5));
        assert_eq!(packet.headers.bth.psn, Psn::new(3 + seq as u32));
        let bytes = bytes(&packet, &data);
        to.receive(&Packet::parse(&bytes).expect("legal"), &mut inbox);
        assert_eq!(from.completion().map(|done| done.seq), Some(seq as u64));
    }
    let lengths: Vec<u32> = inbox
        .received
        .iter()
        .map(|(received, _)| received.length)
        .collect();
    assert_eq!(lengths, [1024, 0]);
    let counters = to.counters();
    assert_eq!((counters.bad_qkeys, counters.messages_dropped), (1, 1));
    let long = request(9, Operation::Send, 1025);
    assert_eq!(from.post(long, send(1)), Err(PostError::Illegal));
    let write = request(9, Operation::Write(REGION), 8);
    assert_eq!(from.post(write, send(1)), Err(PostError::Illegal));
}
