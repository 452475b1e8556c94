//! A host with queue pairs, and peers of it that are made by hand: sockets of the kernel's, on which they
//! say what they like.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sluice_protocol::iwarp::{Wishes, arrived, request};
use sluice_transport_iwarp::IwarpTransport;
use sluice_verbs::iw_cm::{ConnectionParameters, Event, EventSink, IwCm};
use sluice_verbs::{
    AhAttr, Context, Device, Error, Gid, Pd, QpAttr, QpState, QpType, Transport as _, WcStatus,
    qp_mask,
};
use sluice_verbs_testing::{End, Memory, PATIENCE, until};
use sluice_wire::iwarp::message::ReadRequest;
use sluice_wire::iwarp::{
    Cause, Header, Kind, Role, Segment, Startup, Tagged, Terminate, Untagged, fpdu,
};

/// READs that a queue pair answers at a time.
pub const IRD: u16 = 8;
/// Bytes of a queue pair's memory; of what receives take, at its end; and of that each one.
pub const REGION: usize = 2 << 20;
pub const RECEIVES: usize = REGION - 4 * RECEIVE;
pub const RECEIVE: usize = 4096;
/// Of its bytes.
pub const SEED: u8 = 0x35;
/// Receives of each queue pair.
const RECEIVES_POSTED: u64 = 2;

struct Sink(Mutex<Sender<(u32, Event)>>);

impl EventSink for Sink {
    fn happened(&self, stream: u32, event: Event) {
        let _ = self.0.lock().unwrap().send((stream, event));
    }
}

/// A host that takes connections.
pub struct Host {
    transport: Arc<IwarpTransport>,
    context: Arc<Context>,
    pd: Arc<Pd>,
    events: Receiver<(u32, Event)>,
    address: SocketAddr,
    listener: u32,
}

pub fn parameters() -> ConnectionParameters {
    ConnectionParameters {
        ird: IRD,
        ord: 4,
        private_data: Vec::new(),
    }
}

impl Host {
    pub fn new(crc: bool) -> Self {
        Self::at(Ipv4Addr::LOCALHOST, crc)
    }

    /// One that listens at this address.
    pub fn at(address: Ipv4Addr, crc: bool) -> Self {
        let transport = IwarpTransport::over_tcp(1, crc).unwrap();
        let (sender, events) = channel();
        transport.set_sink(Arc::new(Sink(Mutex::new(sender))));
        // Liars, too, may get no processor between connecting and asking; and a read ends before.
        transport.set_request_wait(2 * PATIENCE);
        // Somebody else may take the port that was free.
        let (address, listener) = loop {
            let free = TcpListener::bind((address, 0)).unwrap();
            let address = free.local_addr().unwrap();
            drop(free);
            match transport.listen(address, false) {
                Ok(listener) => break (address, listener),
                Err(Error::System(errno)) if errno.0 == libc::EADDRINUSE => {}
                Err(why) => panic!("{address}: {why}"),
            }
        };
        let context = Device::new("host", transport.clone()).open().unwrap();
        let pd = context.alloc_pd().unwrap();
        Self {
            transport,
            context,
            pd,
            events,
            address,
            listener,
        }
    }

    pub fn cm(&self) -> &dyn IwCm {
        &*self.transport
    }

    /// The next event but those of connections that end.
    pub fn event(&self) -> (u32, Event) {
        loop {
            let event = self.events.recv_timeout(PATIENCE).expect("no event");
            if event.1 != Event::Closed {
                return event;
            }
        }
    }

    /// A queue pair that is connected to a peer made by hand, with receives.
    pub fn join(&self) -> (End, Liar) {
        let mut liar = Liar::asks(self.address);
        let (stream, event) = self.event();
        assert!(matches!(event, Event::Requested { .. }), "{event:?}");
        self.cm().accept(stream, &parameters()).unwrap();
        let end = self.end(stream);
        liar.hears_reply();
        (end, liar)
    }

    /// Where it takes connections.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Takes no more.
    pub fn ends_listening(&self) {
        self.cm().end_listening(self.listener);
    }

    /// What has happened and was not looked at.
    pub fn events(&self) -> Vec<(u32, Event)> {
        self.events.try_iter().collect()
    }

    /// Connections that it has, at whatever stage.
    pub fn streams(&self) -> u64 {
        let counters = self.transport.report().counters;
        let streams = counters.iter().find(|(name, _)| *name == "streams");
        streams.unwrap().1
    }

    /// The queue pair of that stream.
    pub fn end(&self, stream: u32) -> End {
        let memory = Memory::new(REGION);
        memory.fill(0, RECEIVES, SEED);
        self.end_if(stream, memory).expect("the stream has ended")
    }

    /// The same with memory that is there, unless the stream has ended.
    pub fn end_if(&self, stream: u32, memory: Memory) -> Option<End> {
        let cq = self.context.create_cq(1024, 0, None, 0).unwrap();
        let end = End::new(&self.pd, QpType::Rc, &cq, memory);
        end.to_init();
        for id in 0..RECEIVES_POSTED {
            end.post_recv(id, RECEIVES + id as usize * RECEIVE, RECEIVE);
        }
        let mut ah = AhAttr {
            port_num: 1,
            is_global: 1,
            ..AhAttr::default()
        };
        ah.grh.dgid = Gid(Ipv4Addr::LOCALHOST.to_ipv6_mapped().octets());
        let attr = QpAttr {
            qp_state: QpState::Rtr as u32,
            path_mtu: 5,
            dest_qp_num: stream,
            max_dest_rd_atomic: 16,
            min_rnr_timer: 1,
            ah_attr: ah,
            ..QpAttr::default()
        };
        let mask = qp_mask::STATE
            | qp_mask::AV
            | qp_mask::PATH_MTU
            | qp_mask::DEST_QPN
            | qp_mask::RQ_PSN
            | qp_mask::MAX_DEST_RD_ATOMIC
            | qp_mask::MIN_RNR_TIMER;
        end.qp.modify(&attr, mask).ok()?;
        let attr = QpAttr {
            qp_state: QpState::Rts as u32,
            timeout: 16,
            retry_cnt: 7,
            rnr_retry: 7,
            max_rd_atomic: 16,
            ..QpAttr::default()
        };
        let mask = qp_mask::STATE
            | qp_mask::SQ_PSN
            | qp_mask::TIMEOUT
            | qp_mask::RETRY_CNT
            | qp_mask::RNR_RETRY
            | qp_mask::MAX_QP_RD_ATOMIC;
        // It may have been given up already.
        let _ = end.qp.modify(&attr, mask);
        Some(end)
    }
}

/// What the host's side has of a connection that was given up: its queue pair in ERR, all receives that
/// were not used flushed, and its memory as it was. How many receives have ended.
pub fn is_over(end: &End) -> usize {
    until("the error state", || {
        // A program that polls.
        while let Some(wc) = end.cq.poll_one() {
            assert_ne!(wc.status, WcStatus::Success as u32, "{wc:?}");
        }
        end.qp.state() == QpState::Err
    });
    end.memory.check(0, RECEIVES, SEED);
    RECEIVES_POSTED as usize
}

/// A peer made by hand.
pub struct Liar {
    pub tcp: TcpStream,
    pub crc: bool,
    came: Vec<u8>,
}

/// A request.
pub fn asking() -> Vec<u8> {
    let wishes = Wishes {
        crc: false,
        ird: 4,
        ird_max: 4,
        ord: IRD,
        peer_to_peer: false,
        long_frames: true,
    };
    let mut bytes = vec![0; Startup::BYTES_MAX];
    let used = request(&wishes, &[]).emit(&mut bytes).unwrap();
    bytes.truncate(used);
    bytes
}

/// What it is told.
#[derive(Debug, PartialEq, Eq)]
pub enum Heard {
    /// Why it was given up.
    Told(Cause),
    /// The end of the stream, in order.
    End,
    Reset,
}

impl Liar {
    /// With a request on its way.
    pub fn asks(address: SocketAddr) -> Self {
        let mut liar = Self::on(TcpStream::connect(address).unwrap());
        liar.says(&asking());
        liar
    }

    pub fn on(tcp: TcpStream) -> Self {
        tcp.set_nodelay(true).unwrap();
        tcp.set_read_timeout(Some(PATIENCE)).unwrap();
        tcp.set_write_timeout(Some(PATIENCE)).unwrap();
        Self {
            tcp,
            crc: false,
            came: Vec::new(),
        }
    }

    pub fn hears_reply(&mut self) {
        loop {
            if let Some(reply) = arrived(Role::Reply, &self.came).unwrap() {
                self.crc = reply.startup.crc;
                let bytes = reply.bytes;
                self.came.drain(..bytes);
                return;
            }
            assert!(self.reads().unwrap() > 0, "no reply");
        }
    }

    fn reads(&mut self) -> std::io::Result<usize> {
        let mut bytes = [0; 64 << 10];
        let count = loop {
            match self.tcp.read(&mut bytes) {
                // Stopped meanwhile (signal(7)).
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                read => break read?,
            }
        };
        self.came.extend_from_slice(&bytes[..count]);
        Ok(count)
    }

    /// Bytes, whoever listens.
    pub fn says(&mut self, bytes: &[u8]) {
        // Who has been given up meanwhile finds that out when it reads.
        let _ = self.tcp.write_all(bytes);
    }

    pub fn sends(&mut self, frames: &[Vec<u8>]) {
        let bytes: Vec<u8> = frames.iter().flat_map(|ulpdu| self.framed(ulpdu)).collect();
        self.says(&bytes);
    }

    pub fn framed(&self, ulpdu: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; fpdu::bytes(ulpdu.len())];
        fpdu::emit(ulpdu, self.crc, &mut bytes).unwrap();
        bytes
    }

    /// The next segment but keepalives. None: the stream has ended, in order.
    pub fn next(&mut self) -> std::io::Result<Option<Vec<u8>>> {
        loop {
            match self.next_of_any()? {
                Some(ulpdu) if ulpdu == write(0, 0, &[]) => {}
                next => return Ok(next),
            }
        }
    }

    /// The next segment, keepalives too.
    pub fn next_of_any(&mut self) -> std::io::Result<Option<Vec<u8>>> {
        loop {
            if let Some((ulpdu, used)) = fpdu::parse(&self.came, self.crc).unwrap() {
                let ulpdu = ulpdu.to_vec();
                self.came.drain(..used);
                return Ok(Some(ulpdu));
            }
            if self.reads()? == 0 {
                assert!(self.came.is_empty(), "half a frame, and the end");
                return Ok(None);
            }
        }
    }

    /// How the connection ends; what comes before that does not count.
    pub fn hears(&mut self) -> Heard {
        loop {
            match self.next() {
                Ok(Some(ulpdu)) => {
                    let segment = Segment::parse(&ulpdu).unwrap();
                    if let Kind::Terminate(_) = segment.header().kind {
                        return Heard::Told(Terminate::parse(segment.payload()).unwrap().cause);
                    }
                }
                Ok(None) => return Heard::End,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
                    return Heard::Reset;
                }
            }
        }
    }

    /// Asks for bytes of the queue pair's memory, and checks what comes. It tells the truth.
    pub fn fetches(&mut self, number: u32, end: &End, at: usize, bytes: usize) {
        self.sends(&[read(number, end.mr.rkey(), address(end, at), bytes as u32)]);
        let mut done = 0;
        loop {
            let ulpdu = self.next().unwrap().expect("the end instead of an answer");
            let segment = Segment::parse(&ulpdu).unwrap();
            let Kind::ReadResponse(place) = segment.header().kind else {
                panic!("{:?}", segment.header());
            };
            assert_eq!((place.stag, place.offset), (number, done as u64));
            let wanted = end.memory.bytes(at + done, segment.payload().len());
            assert_eq!(segment.payload(), wanted);
            done += wanted.len();
            if segment.header().last {
                assert_eq!(done, bytes);
                return;
            }
        }
    }

    /// The host's kernel sees what it would see if this process had died.
    pub fn resets(self) {
        let socket = socket2::Socket::from(self.tcp);
        socket.set_linger(Some(Duration::ZERO)).unwrap();
    }
}

/// Where a byte of a queue pair's memory is for peers.
pub fn address(end: &End, at: usize) -> u64 {
    end.memory.start as u64 + at as u64
}

pub fn segment(last: bool, kind: Kind, payload: &[u8]) -> Vec<u8> {
    let header = Header { last, kind };
    let mut bytes = vec![0; header.bytes()];
    header.emit(&mut bytes).unwrap();
    bytes.extend(payload);
    bytes
}

pub fn write(stag: u32, offset: u64, payload: &[u8]) -> Vec<u8> {
    segment(true, Kind::Write(Tagged { stag, offset }), payload)
}

pub fn send(last: bool, msn: u32, offset: u32, payload: &[u8]) -> Vec<u8> {
    let kind = Kind::Send {
        place: Untagged { msn, offset },
        solicited: false,
        invalidate: None,
    };
    segment(last, kind, payload)
}

/// The number of a READ, counted from 1, is the tag of its answer too.
pub fn read(msn: u32, source_stag: u32, source_offset: u64, length: u32) -> Vec<u8> {
    let request = ReadRequest {
        sink_stag: msn,
        sink_offset: 0,
        length,
        source_stag,
        source_offset,
    };
    let kind = Kind::ReadRequest(Untagged { msn, offset: 0 });
    segment(true, kind, &request.emit())
}
