//! Messages go in, and a file with their packets comes out.

use std::io::{self, Write};
use std::net::IpAddr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use sluice_trace::{
    Direction, End, Ending, Flow, Kind, Message, Mtu, NakCode, Psn, Recorder, Service, Summary,
    Syndrome,
};
use sluice_wire::capture::Format;
use sluice_wire::opcode::{Opcode, Position};
use sluice_wire::{Frame, Headers, Qpn};

const PATIENCE: Duration = Duration::from_secs(60);

/// A file in memory.
#[derive(Clone, Default)]
struct Memory(Arc<Mutex<Vec<u8>>>);

impl Write for Memory {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn end(last: u8, qpn: u32) -> End {
    End {
        address: IpAddr::from([192, 0, 2, last]),
        qpn: Qpn::new(qpn),
    }
}

fn flow(service: Service) -> Arc<Flow> {
    Arc::new(Flow {
        service,
        mtu: Mtu::Bytes1024,
        local: end(1, 0x111),
        remote: end(2, 0x222),
        traffic_class: 0x69,
        flow_label: 0,
        hop_limit: 0,
    })
}

const SEND: Kind = Kind::Send {
    ending: Ending::Plain,
    solicited: false,
    srq: 0,
    qkey: 0,
};

fn byte(at: usize) -> u8 {
    (at % 251) as u8
}

fn record(recorder: &Recorder, flow: &Arc<Flow>, kind: Kind, psn: u32, len: u32) {
    let message = Message {
        flow,
        direction: Direction::Outbound,
        psn: Psn::new(psn),
        kind,
        len,
    };
    recorder.record(&message, |offset, bytes| {
        for (at, place) in bytes.iter_mut().enumerate() {
            *place = byte(offset + at);
        }
    });
}

/// The frames of a classic file.
fn frames(file: &[u8]) -> Vec<&[u8]> {
    let mut rest = &file[24..];
    let mut frames = Vec::new();
    while !rest.is_empty() {
        let len = u32::from_le_bytes(rest[8..12].try_into().unwrap()) as usize;
        frames.push(&rest[16..16 + len]);
        rest = &rest[16 + len..];
    }
    frames
}

/// Runs a writer over what `messages` records.
fn trace(messages: impl FnOnce(&Recorder)) -> (Vec<u8>, Summary) {
    let file = Memory::default();
    let (recorder, writer) = Recorder::new(file.clone(), Format::Pcap, "test").unwrap();
    let thread = thread::spawn(move || writer.run());
    messages(&recorder);
    let summary = recorder.close(PATIENCE).unwrap();
    thread.join().unwrap();
    let bytes = file.0.lock().unwrap().clone();
    (bytes, summary)
}

#[test]
fn messages_of_every_length_are_cut_and_come_back() {
    // Beyond one piece of the buffer, too.
    let lengths = [0, 1, 1023, 1024, 1025, 2048, 5000, 200_000];
    let flow = flow(Service::Rc);
    for len in lengths {
        let first = 0xff_fffe;
        let (file, summary) = trace(|recorder| record(recorder, &flow, SEND, first, len));
        let frames = frames(&file);
        assert_eq!(frames.len() as u64, Mtu::Bytes1024.packets(len.into()));
        assert_eq!((summary.written, summary.dropped), (frames.len() as u64, 0));
        let mut payload = Vec::new();
        for (n, bytes) in frames.iter().enumerate() {
            let frame = Frame::parse(bytes).unwrap();
            let bth = frame.packet().bth();
            assert_eq!(bth.psn, Psn::new(first).after(n as u32));
            assert_eq!(bth.destination, Qpn::new(0x222));
            let position = match (n == 0, n + 1 == frames.len()) {
                (true, true) => Position::Only,
                (true, false) => Position::First,
                (false, true) => Position::Last,
                (false, false) => Position::Middle,
            };
            assert_eq!(bth.opcode.position(), position);
            assert!(bth.opcode.allows(frame.packet().payload().len(), flow.mtu));
            assert_eq!(bth.ack_request, n + 1 == frames.len());
            payload.extend_from_slice(frame.packet().payload());
        }
        let expected: Vec<u8> = (0..len as usize).map(byte).collect();
        assert_eq!(payload, expected);
    }
}

fn opcodes(file: &[u8]) -> Vec<u8> {
    let frames = frames(file);
    let opcode = |bytes: &&[u8]| Frame::parse(bytes).unwrap().packet().bth().opcode.byte();
    frames.iter().map(opcode).collect()
}

#[test]
fn every_kind_has_its_headers() {
    let immediate = Ending::Immediate([1, 2, 3, 4]);
    let write = |ending| Kind::Write {
        address: 0x1000,
        rkey: 7,
        ending,
        solicited: true,
        srq: 9,
    };
    let send = |ending| Kind::Send {
        ending,
        solicited: true,
        srq: 9,
        qkey: 0x11,
    };
    let atomic = |compares| Kind::Atomic {
        compares,
        address: 0x1000,
        rkey: 7,
        swap_add: 1,
        compare: 2,
        srq: 9,
    };
    let read = Kind::ReadRequest {
        address: 0x1000,
        rkey: 7,
        length: 3000,
        srq: 9,
    };
    let nak = Kind::Acknowledge {
        syndrome: Syndrome::Nak(NakCode::RemoteAccess),
        msn: 1,
    };
    let result = Kind::AtomicResponse {
        original: 5,
        msn: 1,
    };
    let cases: &[(Kind, u32, &[u8])] = &[
        (send(Ending::Plain), 3000, &[0x00, 0x01, 0x02]),
        (send(immediate), 3000, &[0x00, 0x01, 0x03]),
        (send(Ending::Invalidate(3)), 3000, &[0x00, 0x01, 0x16]),
        (send(Ending::Plain), 5, &[0x04]),
        (send(immediate), 5, &[0x05]),
        (send(Ending::Invalidate(3)), 5, &[0x17]),
        (write(Ending::Plain), 3000, &[0x06, 0x07, 0x08]),
        (write(immediate), 3000, &[0x06, 0x07, 0x09]),
        (write(Ending::Plain), 0, &[0x0a]),
        (write(immediate), 5, &[0x0b]),
        (read, 0, &[0x0c]),
        (Kind::ReadResponse { msn: 1 }, 3000, &[0x0d, 0x0e, 0x0f]),
        (Kind::ReadResponse { msn: 1 }, 5, &[0x10]),
        (nak, 0, &[0x11]),
        (result, 0, &[0x12]),
        (atomic(true), 0, &[0x13]),
        (atomic(false), 0, &[0x14]),
    ];
    for (service, base) in [(Service::Rc, 0), (Service::Xrc, 0xa0)] {
        let flow = flow(service);
        for (kind, len, expected) in cases {
            let (file, summary) = trace(|recorder| record(recorder, &flow, *kind, 1, *len));
            let expected: Vec<u8> = expected.iter().map(|opcode| opcode + base).collect();
            assert_eq!(opcodes(&file), expected, "{kind:?}");
            assert_eq!(summary.dropped, 0);
        }
    }
    let datagrams = flow(Service::Ud);
    let (file, _) = trace(|recorder| {
        record(recorder, &datagrams, send(Ending::Plain), 1, 100);
        record(recorder, &datagrams, send(immediate), 2, 100);
    });
    assert_eq!(opcodes(&file), [0x64, 0x65]);
    let headers: Headers = *Frame::parse(frames(&file)[0]).unwrap().packet().headers();
    let deth = headers.deth.unwrap();
    assert_eq!((deth.qkey, deth.source), (0x11, Qpn::new(0x111)));
}

#[test]
fn what_a_service_does_not_have_is_counted_and_not_written() {
    let flow = flow(Service::Uc);
    let (file, summary) = trace(|recorder| {
        record(recorder, &flow, Kind::ReadResponse { msn: 1 }, 1, 5);
        record(recorder, &flow, SEND, 1, 5);
    });
    assert_eq!(opcodes(&file), [Opcode::from_byte(0x24).unwrap().byte()]);
    assert_eq!((summary.written, summary.dropped), (1, 1));
}

#[test]
fn a_full_buffer_drops_and_counts() {
    let file = Memory::default();
    let limit = 300_000;
    let recorder = Recorder::with_limit(file.clone(), Format::Pcap, "test", limit);
    let (recorder, writer) = recorder.unwrap();
    let flow = flow(Service::Rc);
    // Nobody writes: four of its pieces fit.
    record(&recorder, &flow, SEND, 0, 1 << 20);
    let thread = thread::spawn(move || writer.run());
    let summary = recorder.close(PATIENCE).unwrap();
    thread.join().unwrap();
    assert_eq!((summary.written, summary.dropped), (4 * 64, 12 * 64));
    assert_eq!(frames(&file.0.lock().unwrap()).len(), 4 * 64);
}

/// Packets that the interface statistics blocks of a file say are missing.
fn told(file: &[u8]) -> Vec<u64> {
    const STATISTICS: u32 = 5;
    const DROPPED: u16 = 5;
    let word = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap());
    let short = |at: usize| u16::from_le_bytes(file[at..at + 2].try_into().unwrap());
    let mut found = Vec::new();
    let mut block = 0;
    while block < file.len() {
        let end = block + word(block + 4) as usize;
        // Behind the head and the time lie the options: code, length, value.
        let mut option = block + 20;
        while word(block) == STATISTICS && option + 4 < end {
            if short(option) == DROPPED {
                found.push(u64::from(word(option + 4)));
            }
            option += 4 + usize::from(short(option + 2)).next_multiple_of(4);
        }
        block = end;
    }
    found
}

#[test]
fn a_file_without_an_end_says_what_is_missing() {
    let file = Memory::default();
    let recorder = Recorder::with_limit(file.clone(), Format::PcapNg, "test", 300_000);
    let (recorder, writer) = recorder.unwrap();
    // Nobody writes yet: four of its pieces fit.
    record(&recorder, &flow(Service::Rc), SEND, 0, 1 << 20);
    let thread = thread::spawn(move || writer.run());
    let start = Instant::now();
    // Nobody ends it either, as with a program that is killed.
    while told(&file.0.lock().unwrap()).is_empty() {
        assert!(start.elapsed() < PATIENCE);
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(told(&file.0.lock().unwrap()), [12 * 64]);
    recorder.close(PATIENCE).unwrap();
    thread.join().unwrap();
    // At the end it is said in any case.
    assert_eq!(told(&file.0.lock().unwrap()), [12 * 64, 12 * 64]);
}

/// A file that is written only when somebody says so.
struct Stuck {
    may_go_on: Receiver<()>,
    has_begun: Sender<()>,
    writes: u32,
}

impl Write for Stuck {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.writes += 1;
        // The first is the beginning of the file, by the thread that makes the recorder.
        if self.writes > 1 {
            let _ = self.has_begun.send(());
            let _ = self.may_go_on.recv();
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_stuck_disk_stops_nobody() {
    let (go_on, may_go_on) = channel();
    let (has_begun, begun) = channel();
    let stuck = Stuck {
        may_go_on,
        has_begun,
        writes: 0,
    };
    let recorder = Recorder::with_limit(stuck, Format::PcapNg, "test", 100_000);
    let (recorder, writer) = recorder.unwrap();
    let thread = thread::spawn(move || writer.run());
    let flow = flow(Service::Rc);
    record(&recorder, &flow, SEND, 0, 1000);
    begun.recv_timeout(PATIENCE).unwrap();
    // The writer hangs in the file. This returns, whatever there is to record.
    for n in 0..1000 {
        record(&recorder, &flow, SEND, n, 1000);
    }
    assert_eq!(recorder.close(Duration::from_millis(50)), None);
    drop(go_on);
    let summary = recorder.close(PATIENCE).unwrap();
    thread.join().unwrap();
    assert!(summary.dropped > 800, "{summary:?}");
    assert_eq!(summary.written + summary.dropped, 1001);
}

struct Full(u32);

impl Write for Full {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += 1;
        match self.0 {
            1 => Ok(bytes.len()),
            _ => Err(io::Error::from(io::ErrorKind::StorageFull)),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_full_disk_is_told() {
    let (recorder, writer) = Recorder::new(Full(0), Format::PcapNg, "test").unwrap();
    let thread = thread::spawn(move || writer.run());
    let flow = flow(Service::Rc);
    for n in 0..100 {
        record(&recorder, &flow, SEND, n, 60_000);
    }
    let summary = recorder.close(PATIENCE).unwrap();
    thread.join().unwrap();
    assert!(
        summary.error.is_some() && summary.dropped > 0,
        "{summary:?}"
    );
}

#[test]
fn nothing_is_taken_after_the_end() {
    let flow = flow(Service::Rc);
    let (file, _) = trace(|recorder| {
        record(recorder, &flow, SEND, 0, 8);
        recorder.close(PATIENCE).unwrap();
        record(recorder, &flow, SEND, 1, 8);
        recorder.turn_off();
        record(recorder, &flow, SEND, 2, 8);
    });
    assert_eq!(frames(&file).len(), 1);
}
