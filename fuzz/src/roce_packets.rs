//! A process of our own that talks verbs over RoCEv2, and a network on which anybody sends it
//! anything: packets for queue pairs of every kind and in every state, nearly right ones among
//! them.
//!
//! What must hold: no panic, no access outside the registered memory (which ends where faulting
//! pages begin), and every call returns. The victim polls, posts, receives, and changes states
//! meanwhile.
#![allow(unsafe_code)]

use crate::guarded::Guarded;
use crate::input::Input;
use sluice_packet::{Facts, Leaving, Port, Received, SendError};
use sluice_sys::unix::Fd;
use sluice_sys::wake;
use sluice_transport_roce::RoceTransport;
use sluice_verbs::{
    AhAttr, Context, Cq, Device, Gid, Mr, Pd, Qp, QpAttr, QpCap, QpInit, QpState, QpType, SendWr,
    Sge, Srq, SrqAttr, SrqInit, UdDestination, WrOpcode, access, qp_mask, send_flags,
};
use sluice_wire::Qpn;
use sluice_wire::opcode::Opcode;
use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::time::Instant;

const MEMORY_BYTES: usize = 64 * 1024;
const QKEY: u32 = 0x1111_1111;
/// Steps of one input.
const STEPS_MAX: usize = 200;
const IP_BYTES: u32 = 1500;
/// Where both ends of every connection begin to count.
const FIRST_PSN: u32 = 0xff_fffe;
const PEER_QPN: u32 = 0x0b_1234;

const OPCODES: [WrOpcode; 7] = [
    WrOpcode::Send,
    WrOpcode::SendWithImm,
    WrOpcode::RdmaWrite,
    WrOpcode::RdmaWriteWithImm,
    WrOpcode::RdmaRead,
    WrOpcode::AtomicCmpAndSwp,
    WrOpcode::AtomicFetchAndAdd,
];
/// What a victim's queue pairs are, and how far they have come.
const PLAN: [(QpType, QpState); 8] = [
    (QpType::Rc, QpState::Rts),
    (QpType::Rc, QpState::Rtr),
    (QpType::Rc, QpState::Init),
    (QpType::Rc, QpState::Err),
    (QpType::Uc, QpState::Rts),
    (QpType::Ud, QpState::Rts),
    (QpType::XrcRecv, QpState::Rtr),
    (QpType::XrcSend, QpState::Rts),
];

/// What comes: the sender's address, and a packet.
#[derive(Default)]
struct Network {
    packets: VecDeque<(IpAddr, u8, Vec<u8>)>,
    /// Where they are for, once the device has an address.
    own: Option<IpAddr>,
}

struct Plug {
    network: Arc<Mutex<Network>>,
    bell: Arc<Fd>,
    staged: usize,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Port for Plug {
    fn receive(&mut self, each: &mut dyn FnMut(&Received<'_>)) -> usize {
        let (batch, own): (Vec<_>, _) = {
            let mut network = lock(&self.network);
            wake::drain(self.bell.raw());
            (network.packets.drain(..).collect(), network.own)
        };
        let Some(own) = own else {
            return 0;
        };
        for (source, traffic_class, packet) in &batch {
            each(&Received {
                source: *source,
                destination: own,
                interface: 1,
                source_port: 0xc000,
                traffic_class: *traffic_class,
                hop_limit: 64,
                packet,
            });
        }
        batch.len()
    }

    fn put(
        &mut self,
        leaving: &Leaving<'_>,
        fill: &mut dyn FnMut(&mut [u8]) -> bool,
    ) -> Result<(), SendError> {
        if self.staged >= 64 {
            return Err(SendError::NoRoom);
        }
        if let Some(beside) = leaving.beside {
            sluice_wire::Packet::parse(beside.packet()).expect("what leaves beside is legal");
        }
        let mut packet = vec![0; leaving.length];
        if !fill(&mut packet) {
            return Err(SendError::Nothing);
        }
        sluice_wire::Packet::parse(&packet).expect("what leaves is legal");
        self.staged += 1;
        Ok(())
    }

    fn flush(&mut self) -> bool {
        self.staged = 0;
        true
    }

    fn room(&self) -> usize {
        64 - self.staged
    }

    fn facts(&self) -> Facts {
        Facts {
            descriptors: vec![self.bell.raw()],
            ..Facts::default()
        }
    }
}

/// Who is attacked.
struct Victim {
    network: Arc<Mutex<Network>>,
    bell: Arc<Fd>,
    peer: Gid,
    context: Arc<Context>,
    pd: Arc<Pd>,
    mr: Arc<Mr>,
    memory: Guarded,
    cq: Arc<Cq>,
    srq: Arc<Srq>,
    xrcd: Arc<sluice_verbs::Xrcd>,
    _device: Arc<Device>,
}

impl Victim {
    fn new() -> Victim {
        let network = Arc::new(Mutex::new(Network::default()));
        let bell = Arc::new(wake::eventfd().expect("an eventfd"));
        let plug = Plug {
            network: network.clone(),
            bell: bell.clone(),
            staged: 0,
        };
        let path = std::env::temp_dir().join(format!("sluice-fuzz-roce-{}", std::process::id()));
        let transport =
            RoceTransport::with_ports(vec![Box::new(plug)], &path, IP_BYTES).expect("a transport");
        let device = Device::new("sluice0", transport);
        // The address that programs use that are told no index, and a neighbour of it.
        let own = device.gid(1, 0).expect("an address").gid;
        let mut peer = own;
        peer.0[15] ^= 3;
        lock(&network).own = Some(IpAddr::from(own.0).to_canonical());
        let context = device.open().expect("open");
        let pd = context.alloc_pd().expect("a protection domain");
        let memory = Guarded::new(MEMORY_BYTES);
        let start = memory.base().as_ptr() as u64;
        let all = access::LOCAL_WRITE | access::REMOTE_ANY;
        let mr = pd
            .reg_mr(start, MEMORY_BYTES as u64, start, all)
            .expect("a region");
        let cq = context.create_cq(4096, 0, None, 0).expect("a queue");
        let xrcd = context.open_xrcd(None, true, false).expect("a domain");
        let srq = pd.create_srq(&SrqInit {
            attr: SrqAttr {
                max_wr: 64,
                max_sge: 4,
                srq_limit: 0,
            },
            xrcd: Some(xrcd.clone()),
            cq: Some(cq.clone()),
            cookie: 0,
        });
        Victim {
            network,
            bell,
            peer,
            context,
            pd,
            mr,
            memory,
            cq,
            srq: srq.expect("a shared queue"),
            xrcd,
            _device: device,
        }
    }

    /// A piece of the registered memory that ends where it ends.
    fn piece(&self, len: usize) -> Sge {
        let len = len % (MEMORY_BYTES + 1);
        Sge {
            addr: self.memory.end(len) as u64,
            length: len as u32,
            lkey: self.mr.lkey(),
        }
    }

    fn make(&self, kind: QpType, until: QpState) -> Arc<Qp> {
        let mut init = QpInit {
            send_cq: Some(self.cq.clone()),
            recv_cq: Some(self.cq.clone()),
            cap: QpCap {
                max_send_wr: 64,
                max_recv_wr: 64,
                max_send_sge: 4,
                max_recv_sge: 4,
                max_inline_data: 64,
            },
            ..QpInit::new(kind)
        };
        let qp = if kind == QpType::XrcRecv {
            init.xrcd = Some(self.xrcd.clone());
            self.context.create_xrc_recv(&init)
        } else {
            self.pd.create_qp(&init)
        };
        let qp = qp.expect("a queue pair");
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            self.advance(&qp, state).expect("a next state");
            if state == until {
                return qp;
            }
        }
        self.advance(&qp, until).expect("a last state");
        qp
    }

    fn advance(&self, qp: &Qp, to: QpState) -> sluice_verbs::Result<()> {
        let mut attr = QpAttr {
            qp_state: to as u32,
            port_num: 1,
            qkey: QKEY,
            qp_access_flags: access::REMOTE_ANY,
            path_mtu: 1,
            dest_qp_num: PEER_QPN,
            rq_psn: FIRST_PSN,
            sq_psn: FIRST_PSN,
            max_dest_rd_atomic: 4,
            max_rd_atomic: 4,
            min_rnr_timer: 1,
            timeout: 8,
            retry_cnt: 1,
            rnr_retry: 1,
            ..QpAttr::default()
        };
        attr.ah_attr = self.ah_attr();
        let datagrams = qp.qp_type() == QpType::Ud;
        let simple = matches!(qp.qp_type(), QpType::Uc | QpType::Ud);
        let mut mask = qp_mask::STATE;
        match to {
            QpState::Init => {
                mask |= qp_mask::PKEY_INDEX | qp_mask::PORT;
                mask |= match datagrams {
                    true => qp_mask::QKEY,
                    false => qp_mask::ACCESS_FLAGS,
                };
            }
            QpState::Rtr if !datagrams => {
                mask |= qp_mask::AV | qp_mask::PATH_MTU | qp_mask::DEST_QPN | qp_mask::RQ_PSN;
                if matches!(qp.qp_type(), QpType::Rc | QpType::XrcRecv) {
                    mask |= qp_mask::MAX_DEST_RD_ATOMIC | qp_mask::MIN_RNR_TIMER;
                }
            }
            QpState::Rts => {
                mask |= qp_mask::SQ_PSN;
                if !simple {
                    mask |= qp_mask::TIMEOUT;
                    if qp.qp_type() != QpType::XrcRecv {
                        mask |= qp_mask::RETRY_CNT | qp_mask::RNR_RETRY | qp_mask::MAX_QP_RD_ATOMIC;
                    }
                }
            }
            _ => {}
        }
        qp.modify(&attr, mask)
    }

    fn ah_attr(&self) -> AhAttr {
        let mut attr = AhAttr {
            is_global: 1,
            port_num: 1,
            ..AhAttr::default()
        };
        attr.grh.dgid = self.peer;
        attr
    }

    fn poll(&self) {
        for _ in 0..4 {
            while self.cq.poll_one().is_some() {}
        }
    }

    /// A packet for one of the queue pairs, or for any number: the header, then such extensions
    /// as the input says, in the order of the wire, then payload.
    fn packet(&self, qps: &[Arc<Qp>], input: &mut Input) -> Vec<u8> {
        let qpn = match input.below(qps.len() + 4) {
            at if at < qps.len() => qps[at].num(),
            0..12 if input.bool() => Qpn::GSI.get(),
            0..12 if input.bool() => Qpn::MULTICAST.get(),
            _ => input.u32() & 0xff_ffff,
        };
        let opcodes: Vec<Opcode> = Opcode::all().collect();
        let opcode = match input.bool() {
            true => opcodes[input.below(opcodes.len())].byte(),
            false => input.u8(),
        };
        let payload = match input.u8() % 4 {
            0 => 0,
            1 => 256,
            2 => input.u8() as usize,
            _ => input.u16() as usize % 4200,
        };
        let psn = FIRST_PSN.wrapping_add(input.u8() as i8 as u32) & 0xff_ffff;
        let flags = input.u8();
        let mut bytes = vec![
            opcode,
            flags & 0xcf | ((payload as u8).wrapping_neg() & 3) << 4,
        ];
        bytes.extend_from_slice(&[0xff, 0xff, 0]);
        bytes.extend_from_slice(&qpn.to_be_bytes()[1..]);
        bytes.push(if flags & 0x30 == 0 { 0 } else { 0x80 });
        bytes.extend_from_slice(&psn.to_be_bytes()[1..]);
        let which = input.u8();
        let extensions: [(u8, Vec<u8>); 6] = [
            (1, self.srq.num().to_be_bytes().to_vec()),
            (2, [QKEY.to_be_bytes(), 7u32.to_be_bytes()].concat()),
            (4, {
                let near = self.memory.end(0) as u64;
                let address = input.number(near).to_be_bytes();
                let rkey = match input.bool() {
                    true => self.mr.rkey(),
                    false => input.u32(),
                };
                let length = match input.bool() {
                    true => payload as u32,
                    false => input.u32(),
                };
                [&address[..], &rkey.to_be_bytes(), &length.to_be_bytes()].concat()
            }),
            (8, {
                let address = self.memory.end(8 + usize::from(input.u8())) as u64;
                let rkey = self.mr.rkey().to_be_bytes();
                [&address.to_be_bytes()[..], &rkey, &[0; 16]].concat()
            }),
            (16, input.u32().to_be_bytes().to_vec()),
            (32, input.u32().to_be_bytes().to_vec()),
        ];
        for (bit, extension) in extensions {
            if which & bit != 0 {
                bytes.extend_from_slice(&extension);
            }
        }
        bytes.resize((bytes.len() + payload).next_multiple_of(4), 0x5a);
        bytes
    }
}

pub fn run(data: &[u8]) {
    static VICTIM: Mutex<Option<Victim>> = Mutex::new(None);
    static LOUD: Once = Once::new();
    // The transport's thread must not die in silence.
    LOUD.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            before(panic);
            std::process::abort();
        }));
    });
    let mut victim = lock(&VICTIM);
    let victim = victim.get_or_insert_with(Victim::new);
    let start = Instant::now();
    let mut input = Input::new(data);
    let qps = PLAN.map(|(kind, state)| victim.make(kind, state));
    for qp in &qps {
        let _ = qp.post_recv(1, &[victim.piece(3000)]);
    }
    let _ = victim.srq.post_recv(2, &[victim.piece(3000)]);
    for _ in 0..STEPS_MAX {
        if input.is_empty() {
            break;
        }
        step(victim, &qps, &mut input);
    }
    victim.poll();
    for qp in &qps {
        qp.destroy().expect("the queue pair goes");
    }
    while victim.cq.poll_one().is_some() {}
    assert!(
        start.elapsed() < crate::patience(),
        "an input took {:?}",
        start.elapsed()
    );
}

fn step(victim: &Victim, qps: &[Arc<Qp>], input: &mut Input) {
    match input.u8() % 16 {
        0..9 => {
            let packet = victim.packet(qps, input);
            put(victim, input, packet);
        }
        9 => {
            let len = input.below(64);
            let packet = (0..len).map(|_| input.u8()).collect();
            put(victim, input, packet);
        }
        10 => {
            let qp = &qps[input.below(qps.len())];
            let sge = [victim.piece(usize::from(input.u16()))];
            let _ = qp.post_recv(input.u64(), &sge);
            let _ = victim.srq.post_recv(1, &sge);
        }
        11 | 12 => post(victim, qps, input),
        13 => {
            let qp = &qps[input.below(qps.len())];
            let states = [
                QpState::Reset,
                QpState::Init,
                QpState::Rtr,
                QpState::Rts,
                QpState::Sqd,
                QpState::Err,
            ];
            // Most changes are not allowed, and refused.
            let _ = victim.advance(qp, states[input.below(states.len())]);
        }
        _ => victim.poll(),
    }
}

fn put(victim: &Victim, input: &mut Input, packet: Vec<u8>) {
    let how = input.u8();
    let mut source = victim.peer.0;
    if how & 0x1c == 0x1c {
        source[15] ^= how;
    }
    let mut network = lock(&victim.network);
    network
        .packets
        .push_back((IpAddr::from(source).to_canonical(), how & 3, packet));
    drop(network);
    wake::ring(victim.bell.raw());
}

fn post(victim: &Victim, qps: &[Arc<Qp>], input: &mut Input) {
    let qp = &qps[input.below(qps.len())];
    let opcode = OPCODES[input.below(OPCODES.len())];
    let len = match opcode {
        WrOpcode::AtomicCmpAndSwp | WrOpcode::AtomicFetchAndAdd => 8,
        _ => usize::from(input.u16()) % 5000,
    };
    let sges = [victim.piece(len)];
    let ah = victim.ah_attr();
    let wr = SendWr {
        flags: send_flags::SIGNALED,
        sges: &sges,
        remote_addr: input.u64(),
        rkey: input.u32(),
        xrc_srqn: 1,
        ud: (qp.qp_type() == QpType::Ud).then_some(UdDestination {
            ah: &ah,
            qpn: PEER_QPN,
            qkey: QKEY,
        }),
        ..SendWr::new(opcode, 1)
    };
    let _ = qp.post_send(&wr);
}
