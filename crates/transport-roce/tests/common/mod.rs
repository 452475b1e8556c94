//! Two transports in one process, with a cable in memory between them.
#![allow(unsafe_code, dead_code)]

pub mod cable;

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use sluice_packet::{Path, Port};
use sluice_transport_roce::RoceTransport;
use sluice_verbs::fault::Faults;
use sluice_verbs::{
    AhAttr, Channel, Context, Cq, Device, Gid, Mr, Pd, Qp, QpAttr, QpCap, QpInit, QpState, QpType,
    SendWr, Sge, Wc, WcStatus, WrOpcode, access, qp_mask, send_flags,
};

use sluice_wire::bth::Bth;
use sluice_wire::opcode::{Operation, Service};
use sluice_wire::{Ecn, Headers, Opcode, Psn, Qpn};

use self::cable::{Frame, Inbox, Plug, Steer, cable};

/// Nothing in these tests takes longer; a test that does has hung.
pub const PATIENCE: Duration = Duration::from_secs(60);
pub const EVERYTHING: u32 = access::LOCAL_WRITE | access::REMOTE_ANY;
pub const QKEY: u32 = 0x1111_1111;
/// Room for an MTU of 1024.
const IP_BYTES: u32 = 1500;
/// Of the path, in bytes.
pub const MTU: usize = 1024;

/// One host.
pub struct Side {
    pub transport: Arc<RoceTransport>,
    pub device: Arc<Device>,
    pub context: Arc<Context>,
    pub pd: Arc<Pd>,
    /// What comes to it, or to its first lane.
    pub inbox: Arc<Inbox>,
    /// What comes to each lane.
    pub inboxes: Vec<Arc<Inbox>>,
    directory: PathBuf,
}

impl Drop for Side {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// A directory that no other world has.
fn directory(name: &str) -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let name = format!("slv-roce-{}-{number}-{name}", std::process::id());
    std::env::temp_dir().join(name)
}

fn side((plug, inbox): (Plug, Arc<Inbox>), name: &str, directory: PathBuf) -> Side {
    let transport = RoceTransport::with_ports(vec![Box::new(plug)], &directory, IP_BYTES).unwrap();
    of_transport(transport, vec![inbox], name, directory)
}

fn side_of_lanes(plugs: Vec<(Plug, Arc<Inbox>)>, name: &str, directory: PathBuf) -> Side {
    let inboxes = plugs.iter().map(|(_, inbox)| inbox.clone()).collect();
    let lanes = plugs
        .into_iter()
        .map(|(plug, _)| -> Vec<Box<dyn Port>> { vec![Box::new(plug)] });
    let transport = RoceTransport::with_lanes(lanes.collect(), &directory, IP_BYTES).unwrap();
    of_transport(transport, inboxes, name, directory)
}

fn of_transport(
    transport: Arc<RoceTransport>,
    inboxes: Vec<Arc<Inbox>>,
    name: &str,
    directory: PathBuf,
) -> Side {
    // The name makes the address.
    let device = Device::new(name, transport.clone());
    let context = device.open().unwrap();
    let pd = context.alloc_pd().unwrap();
    Side {
        transport,
        device,
        context,
        pd,
        inbox: inboxes[0].clone(),
        inboxes,
        directory,
    }
}

/// Two hosts. `faults`: on the cable, in both directions.
pub fn world(faults: &str) -> (Side, Side) {
    let faults: Option<Faults> = (!faults.is_empty()).then(|| faults.parse().unwrap());
    let [left, right] = cable(faults.as_ref());
    (
        side(left, "left", directory("left")),
        side(right, "right", directory("right")),
    )
}

/// Two hosts with so many lanes.
pub fn world_of_lanes(faults: &str, counts: [usize; 2], steer: Steer) -> (Side, Side) {
    let faults: Option<Faults> = (!faults.is_empty()).then(|| faults.parse().unwrap());
    let [left, right] = cable::lanes(faults.as_ref(), counts, steer);
    (
        side_of_lanes(left, "left", directory("left")),
        side_of_lanes(right, "right", directory("right")),
    )
}

/// The same, and another process on the right host, with so many lanes too. All packets come to
/// the lanes of the first.
pub fn world_of_three_with_lanes(counts: [usize; 3], steer: Steer) -> [Side; 3] {
    let [left, right] = cable::lanes(None, [counts[0], counts[1]], steer);
    let other = (0..counts[2]).map(|_| Plug::beside(&right[0].0)).collect();
    let shared = directory("right");
    [
        side_of_lanes(left, "left", directory("left")),
        side_of_lanes(right, "right", shared.clone()),
        side_of_lanes(other, "right", shared),
    ]
}

/// Two hosts, and another process on the right one, whose packets all come to the first.
pub fn world_of_three() -> [Side; 3] {
    let [left, right] = cable(None);
    let other = Plug::beside(&right.0);
    let shared = directory("right");
    [
        side(left, "left", directory("left")),
        side(right, "right", shared.clone()),
        side(other, "right", shared),
    ]
}

/// A queue pair with memory.
pub struct End {
    pub qp: Arc<Qp>,
    pub cq: Arc<Cq>,
    pub mr: Arc<Mr>,
    pub memory: Memory,
    pub gid: Gid,
    pub psn: u32,
}

/// Registered memory of a test.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    pub start: *mut u8,
    pub len: usize,
}

// SAFETY: it is only touched by volatile accesses, and never freed.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    pub fn new(len: usize) -> Self {
        let bytes = vec![0u64; len.div_ceil(8)].into_boxed_slice();
        let start = Box::leak(bytes).as_mut_ptr().cast();
        Self { start, len }
    }

    pub fn byte(&self, at: usize) -> u8 {
        assert!(at < self.len);
        // SAFETY: inside the memory; peers may write it at any time.
        unsafe { self.start.add(at).read_volatile() }
    }

    pub fn word(&self, at: usize) -> u64 {
        assert!(at + 8 <= self.len && at.is_multiple_of(8));
        // SAFETY: as above.
        unsafe { self.start.add(at).cast::<u64>().read_volatile() }
    }

    pub fn set_word(&self, at: usize, value: u64) {
        assert!(at + 8 <= self.len && at.is_multiple_of(8));
        // SAFETY: as above.
        unsafe { self.start.add(at).cast::<u64>().write_volatile(value) };
    }

    pub fn fill(&self, at: usize, len: usize, seed: u8) {
        for index in 0..len {
            assert!(at + index < self.len);
            // SAFETY: as above.
            unsafe {
                let place = self.start.add(at + index);
                place.write_volatile(pattern(index, seed));
            }
        }
    }

    pub fn check(&self, at: usize, len: usize, seed: u8) {
        for index in 0..len {
            let wanted = pattern(index, seed);
            assert_eq!(self.byte(at + index), wanted, "byte {index} of {len}");
        }
    }
}

pub fn pattern(index: usize, seed: u8) -> u8 {
    (index.wrapping_mul(7) + index / 251) as u8 ^ seed
}

impl Side {
    pub fn end(&self, kind: QpType, len: usize, channel: Option<&Arc<Channel>>) -> End {
        let cq = self.context.create_cq(1024, 0, channel, 0).unwrap();
        self.end_with(kind, len, &cq)
    }

    pub fn end_with(&self, kind: QpType, len: usize, cq: &Arc<Cq>) -> End {
        let init = QpInit {
            send_cq: Some(cq.clone()),
            recv_cq: Some(cq.clone()),
            cap: QpCap {
                max_send_wr: 256,
                max_recv_wr: 256,
                max_send_sge: 4,
                max_recv_sge: 4,
                max_inline_data: 64,
            },
            ..QpInit::new(kind)
        };
        self.of(self.pd.create_qp(&init).unwrap(), len, cq)
    }

    /// An end around a queue pair that is there.
    pub fn of(&self, qp: Arc<Qp>, len: usize, cq: &Arc<Cq>) -> End {
        let memory = Memory::new(len);
        let start = memory.start as u64;
        let mr = self
            .pd
            .reg_mr(start, len as u64, start, EVERYTHING)
            .unwrap();
        let psn = 0xff_fff0 + (qp.num() & 0xf);
        End {
            qp,
            cq: cq.clone(),
            mr,
            memory,
            gid: self.device.gid(1, 0).unwrap().gid,
            psn,
        }
    }
}

/// Two connected ends.
pub fn connected(left: &Side, right: &Side, kind: QpType, len: usize) -> (End, End) {
    let (a, b) = (left.end(kind, len, None), right.end(kind, len, None));
    a.connect(&b);
    b.connect(&a);
    (a, b)
}

impl End {
    pub fn to_init(&self) {
        let attr = QpAttr {
            qp_state: QpState::Init as u32,
            port_num: 1,
            qp_access_flags: access::REMOTE_ANY,
            qkey: QKEY,
            ..QpAttr::default()
        };
        let own = match self.qp.qp_type() {
            QpType::Ud => qp_mask::QKEY,
            _ => qp_mask::ACCESS_FLAGS,
        };
        let mask = qp_mask::STATE | qp_mask::PKEY_INDEX | qp_mask::PORT | own;
        self.qp.modify(&attr, mask).unwrap();
    }

    /// How the peer is reached.
    pub fn ah_attr(peer: &Gid) -> AhAttr {
        let mut attr = AhAttr {
            is_global: 1,
            port_num: 1,
            ..AhAttr::default()
        };
        attr.grh.dgid = *peer;
        attr.grh.hop_limit = 7;
        attr
    }

    pub fn to_rtr(&self, peer: &End) {
        let attr = QpAttr {
            qp_state: QpState::Rtr as u32,
            path_mtu: 3,
            dest_qp_num: peer.qp.num(),
            rq_psn: peer.psn,
            max_dest_rd_atomic: 16,
            min_rnr_timer: 1,
            ah_attr: Self::ah_attr(&peer.gid),
            ..QpAttr::default()
        };
        let connected =
            qp_mask::STATE | qp_mask::AV | qp_mask::PATH_MTU | qp_mask::DEST_QPN | qp_mask::RQ_PSN;
        let mask = match self.qp.qp_type() {
            QpType::Ud => qp_mask::STATE,
            QpType::Uc | QpType::XrcSend => connected,
            _ => connected | qp_mask::MAX_DEST_RD_ATOMIC | qp_mask::MIN_RNR_TIMER,
        };
        self.qp.modify(&attr, mask).unwrap();
    }

    pub fn to_rts(&self, timeout: u8, rnr_retry: u8) {
        let attr = QpAttr {
            qp_state: QpState::Rts as u32,
            sq_psn: self.psn,
            timeout,
            retry_cnt: 7,
            rnr_retry,
            max_rd_atomic: 16,
            ..QpAttr::default()
        };
        let mask = match self.qp.qp_type() {
            QpType::Ud | QpType::Uc => qp_mask::STATE | qp_mask::SQ_PSN,
            _ => {
                qp_mask::STATE
                    | qp_mask::SQ_PSN
                    | qp_mask::TIMEOUT
                    | qp_mask::RETRY_CNT
                    | qp_mask::RNR_RETRY
                    | qp_mask::MAX_QP_RD_ATOMIC
            }
        };
        self.qp.modify(&attr, mask).unwrap();
    }

    pub fn to_state(&self, state: QpState) {
        let attr = QpAttr {
            qp_state: state as u32,
            ..QpAttr::default()
        };
        self.qp.modify(&attr, qp_mask::STATE).unwrap();
    }

    /// From RESET to RTS. Repetitions come after 134 ms, and end after a second: on a machine with
    /// much else to do a thread may be away for long.
    pub fn connect(&self, peer: &End) {
        self.to_init();
        self.to_rtr(peer);
        self.to_rts(15, 7);
    }

    pub fn sge(&self, at: usize, len: usize) -> Sge {
        assert!(at + len <= self.memory.len);
        Sge {
            addr: self.memory.start as u64 + at as u64,
            length: len as u32,
            lkey: self.mr.lkey(),
        }
    }

    pub fn post_recv(&self, id: u64, at: usize, len: usize) {
        self.qp.post_recv(id, &[self.sge(at, len)]).unwrap();
    }

    /// A signalled request for the peer's memory at `remote`.
    pub fn request<'a>(
        opcode: WrOpcode,
        id: u64,
        sges: &'a [Sge],
        peer: &End,
        remote: usize,
    ) -> SendWr<'a> {
        SendWr {
            flags: send_flags::SIGNALED,
            sges,
            remote_addr: peer.memory.start as u64 + remote as u64,
            rkey: peer.mr.rkey(),
            ..SendWr::new(opcode, id)
        }
    }

    /// The next completion.
    pub fn completion(&self) -> Wc {
        let start = Instant::now();
        loop {
            if let Some(wc) = self.cq.poll_one() {
                return wc;
            }
            assert!(start.elapsed() < PATIENCE, "no completion");
            std::thread::yield_now();
        }
    }

    /// The next completion, which is good.
    pub fn good(&self) -> Wc {
        let wc = self.completion();
        assert_eq!(wc.status, WcStatus::Success as u32, "{wc:?}");
        wc
    }

    /// The next completion's request and status.
    pub fn outcome(&self) -> (u64, u32) {
        let wc = self.completion();
        (wc.wr_id, wc.status)
    }

    /// Posts, and waits for the completion of exactly this.
    pub fn run(&self, wr: &SendWr<'_>) -> Wc {
        self.qp.post_send(wr).unwrap();
        let wc = self.completion();
        assert_eq!(wc.wr_id, wr.wr_id, "{wc:?}");
        wc
    }
}

/// Waits for something that another thread does.
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "{what} did not happen");
        std::thread::yield_now();
    }
}

/// A packet of a stranger's for a queue pair of `qpn`.
pub fn stray(from: &Gid, to: &Gid, qpn: u32) -> Frame {
    let address = |gid: &Gid| IpAddr::from(gid.0);
    let opcode = Opcode::new(Service::Rc, Operation::SendOnly).unwrap();
    let headers = Headers::new(Bth::new(opcode, Qpn::new(qpn), Psn::new(1)));
    let mut packet = vec![0; headers.bytes()];
    headers.emit(&[], &mut packet).unwrap();
    Frame {
        path: Path {
            source: address(from),
            destination: address(to),
            interface: 1,
            ethernet: None,
            source_port: 0xc000,
            dscp: 0,
            hop_limit: 64,
            flow_label: 0,
        },
        ecn: Ecn::NotCapable,
        packet,
    }
}
