//! A transport between the QPs of one process, to try the engine's rules: what is posted is
//! carried out during the post. It can keep completions back, to be given in any order, and can
//! have no room.
#![allow(unsafe_code, dead_code)]

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use sluice_verbs::keys::KeyInfo;
use sluice_verbs::opcode::facts;
use sluice_verbs::responder::{RecvDone, RecvWqe, RemoteMemory, RemoteRequest, TakeError};
use sluice_verbs::transport::{ArmedQueues, NewQp, QpChange, QpParams, TransportCaps};
use sluice_verbs::*;

pub const MTU_4096: u32 = 5;
pub const INLINE_MAX: u32 = 256;
pub const DEPTH_MAX: u8 = 16;

#[derive(Default)]
pub struct Fabric {
    qps: Mutex<HashMap<u32, Arc<LoopQp>>>,
    numbers: AtomicU32,
    /// Every key that peers may use now.
    pub keys: Mutex<Vec<KeyInfo>>,
    pub armed: Arc<ArmedQueues>,
    pub progressed: Arc<AtomicU64>,
    /// The next transition is refused.
    pub refuse_transition: AtomicBool,
    /// Keys that are refused from now on.
    pub refuse_keys: AtomicU32,
}

pub struct Loopback(pub Arc<Fabric>);

#[derive(Default)]
pub struct LoopQp {
    qpn: u32,
    fabric: Option<Arc<Fabric>>,
    engine: Mutex<Option<Arc<Qp>>>,
    peer: AtomicU32,
    /// How far a request that finds no receive waits: as rnr_retry 7.
    patient: AtomicBool,
    /// Keep completions back.
    pub hold: AtomicBool,
    /// Requests that still have room; negative: as many as come.
    pub room: AtomicI64,
    pub held: Mutex<Vec<(u64, SendDone)>>,
    /// Requests of others that found no receive here.
    starved: Mutex<Vec<(u32, u64)>>,
    recv: Mutex<RecvWqe>,
    groups: Mutex<Vec<Gid>>,
    pub states: Mutex<Vec<(QpState, QpState)>>,
    /// Numbers of the requests as they were handed over.
    pub order: Mutex<Vec<u64>>,
    pub keep_order: AtomicBool,
    /// Happens once, inside the next state change.
    pub on_modify: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

struct LoopCq {
    armed: Arc<ArmedQueues>,
    progressed: Arc<AtomicU64>,
}

impl CqTransport for LoopCq {
    fn progress(&self, _: &Cq, _: &mut Aftermath) {
        let seen = self.progressed.load(Ordering::Relaxed);
        self.progressed.store(seen + 1, Ordering::Relaxed);
    }

    fn armed_queues(&self) -> Option<&Arc<ArmedQueues>> {
        Some(&self.armed)
    }
}

impl Fabric {
    pub fn qp(&self, qpn: u32) -> Option<Arc<LoopQp>> {
        self.qps.lock().unwrap().get(&qpn).cloned()
    }
}

impl Transport for Loopback {
    fn caps(&self) -> TransportCaps {
        TransportCaps {
            max_msg_sz: 1 << 30,
            mtu: MTU_4096,
            max_inline: INLINE_MAX,
            max_rd_atomic: DEPTH_MAX,
            ..TransportCaps::EVERYTHING
        }
    }

    fn create_qp(&self, _: &QpParams) -> Result<NewQp> {
        let qpn = 0x100 + self.0.numbers.fetch_add(1, Ordering::Relaxed);
        let qp = Arc::new(LoopQp {
            qpn,
            fabric: Some(self.0.clone()),
            room: AtomicI64::new(-1),
            ..LoopQp::default()
        });
        self.0.qps.lock().unwrap().insert(qpn, qp.clone());
        let transport = Box::new(Handle(qp));
        Ok(NewQp { qpn, transport })
    }

    fn create_cq(&self, _: u32) -> Result<Box<dyn CqTransport>> {
        Ok(Box::new(LoopCq {
            armed: self.0.armed.clone(),
            progressed: self.0.progressed.clone(),
        }))
    }

    fn key_published(&self, key: &KeyInfo) -> Result<()> {
        let refuse = &self.0.refuse_keys;
        let less = |left: u32| left.checked_sub(1);
        if refuse
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, less)
            .is_ok()
        {
            return Err(Error::NoResources);
        }
        self.0.keys.lock().unwrap().push(*key);
        Ok(())
    }

    fn key_withdrawn(&self, key: &KeyInfo) {
        self.0.keys.lock().unwrap().retain(|known| known != key);
    }

    fn create_srq(&self, _: bool) -> Result<u32> {
        Ok(0x100 + self.0.numbers.fetch_add(1, Ordering::Relaxed))
    }
}

struct Handle(Arc<LoopQp>);

impl QpTransport for Handle {
    fn bind(&self, qp: &Arc<Qp>) {
        *self.0.engine.lock().unwrap() = Some(qp.clone());
    }

    fn post(&self, qp: &Qp, wqe: &Wqe<'_>) -> Posted {
        self.0.post(qp, wqe)
    }

    fn modify(&self, _: &Qp, change: &QpChange<'_>, _: &mut Aftermath) -> Result<()> {
        let fabric = self.0.fabric.as_ref().unwrap();
        if fabric.refuse_transition.swap(false, Ordering::SeqCst) {
            return Err(Error::NoResources);
        }
        self.0.peer.store(change.attr.dest_qp_num, Ordering::SeqCst);
        let patient = change.attr.rnr_retry == 7;
        self.0.patient.store(patient, Ordering::SeqCst);
        self.0.states.lock().unwrap().push((change.from, change.to));
        let hook = self.0.on_modify.lock().unwrap().take();
        if let Some(hook) = hook {
            hook();
        }
        Ok(())
    }

    fn receives_posted(&self, _: &mut Aftermath) {
        let waiting = std::mem::take(&mut *self.0.starved.lock().unwrap());
        let fabric = self.0.fabric.as_ref().unwrap();
        for (qpn, seq) in waiting {
            if let Some(sender) = fabric.qp(qpn) {
                sender.again(seq);
            }
        }
    }

    fn linger(&self) {
        self.0.room.store(-1, Ordering::SeqCst);
    }

    fn attach_multicast(&self, gid: &Gid) -> Result<()> {
        self.0.groups.lock().unwrap().push(*gid);
        Ok(())
    }

    fn detach_multicast(&self, gid: &Gid) {
        self.0.groups.lock().unwrap().retain(|group| group != gid);
    }

    fn destroy(&self, _: &mut Aftermath) {
        *self.0.engine.lock().unwrap() = None;
        let fabric = self.0.fabric.as_ref().unwrap();
        fabric.qps.lock().unwrap().remove(&self.0.qpn);
    }
}

/// What the responder's side says.
enum Outcome {
    Done(SendDone),
    NoReceive,
}

impl LoopQp {
    pub fn engine(&self) -> Option<Arc<Qp>> {
        self.engine.lock().unwrap().clone()
    }

    /// Gives a completion that was kept back.
    pub fn release(&self, seq: u64) -> bool {
        let done = {
            let mut held = self.held.lock().unwrap();
            match held.iter().position(|(of, _)| *of == seq) {
                Some(at) => held.swap_remove(at).1,
                None => return false,
            }
        };
        with_aftermath(|after| self.engine().unwrap().complete_send(seq, done, after));
        true
    }

    pub fn make_room(&self, requests: i64) {
        self.room.store(requests, Ordering::SeqCst);
        with_aftermath(|after| self.engine().unwrap().resume(after));
    }

    fn post(&self, qp: &Qp, wqe: &Wqe<'_>) -> Posted {
        let room = self.room.load(Ordering::Relaxed);
        if room == 0 {
            return Posted::Busy;
        }
        if room > 0 {
            self.room.store(room - 1, Ordering::Relaxed);
        }
        if self.keep_order.load(Ordering::Relaxed) {
            self.order.lock().unwrap().push(wqe.seq);
        }
        match self.carry_out(qp, wqe) {
            Outcome::Done(done) if self.hold.load(Ordering::Relaxed) => {
                self.held.lock().unwrap().push((wqe.seq, done));
                Posted::Pending
            }
            Outcome::Done(done) => Posted::Done(done),
            Outcome::NoReceive => Posted::Pending,
        }
    }

    fn again(&self, seq: u64) {
        let qp = self.engine().unwrap();
        let outcome = qp.with_wqe(seq, |wqe| self.carry_out(&qp, wqe));
        if let Some(Outcome::Done(done)) = outcome {
            with_aftermath(|after| qp.complete_send(seq, done, after));
        }
    }

    fn carry_out(&self, qp: &Qp, wqe: &Wqe<'_>) -> Outcome {
        let fabric = self.fabric.as_ref().unwrap();
        let ud = qp.qp_type() == QpType::Ud;
        let peer = match wqe.wr.ud {
            Some(ud) if ud.ah.grh.dgid.is_multicast() => {
                self.multicast(fabric, wqe, ud.ah.grh.dgid);
                return Outcome::Done(SendDone::ok(wqe.length as u32));
            }
            Some(ud) => ud.qpn,
            None => self.peer.load(Ordering::Relaxed),
        };
        let target = fabric.qp(peer);
        let Some(target) = target.filter(|target| target.engine().is_some()) else {
            return Outcome::Done(match ud || qp.qp_type() == QpType::Uc {
                true => SendDone::ok(wqe.length as u32),
                false => SendDone::failed(WcStatus::RetryExcErr),
            });
        };
        match target.receive(self.qpn, wqe) {
            Ok(bytes) => Outcome::Done(SendDone::ok(bytes)),
            Err(_) if ud || qp.qp_type() == QpType::Uc => {
                Outcome::Done(SendDone::ok(wqe.length as u32))
            }
            Err(Refusal::Nak(reason)) => {
                with_aftermath(|after| target.engine().unwrap().responder_failed(reason, after));
                Outcome::Done(SendDone::failed(reason.requester_status()))
            }
            Err(Refusal::NotReady) => Outcome::Done(SendDone::failed(WcStatus::RetryExcErr)),
            Err(Refusal::Rnr) if self.patient.load(Ordering::Relaxed) => {
                target.starved.lock().unwrap().push((self.qpn, wqe.seq));
                Outcome::NoReceive
            }
            Err(Refusal::Rnr) => Outcome::Done(SendDone::failed(WcStatus::RnrRetryExcErr)),
        }
    }

    fn multicast(&self, fabric: &Fabric, wqe: &Wqe<'_>, group: Gid) {
        let all: Vec<Arc<LoopQp>> = fabric.qps.lock().unwrap().values().cloned().collect();
        for target in all {
            if target.groups.lock().unwrap().contains(&group) {
                let _ = target.receive(self.qpn, wqe);
            }
        }
    }

    /// The responder's side.
    fn receive(&self, from: u32, wqe: &Wqe<'_>) -> std::result::Result<u32, Refusal> {
        let qp = self.engine().unwrap();
        let facts = facts(wqe.wr.opcode);
        let mut bytes = wqe.length as u32;
        if qp.qp_type() == QpType::Ud && wqe.wr.ud.is_none_or(|ud| ud.qkey != qp.qkey()) {
            return Err(Refusal::NotReady);
        }
        if let Some(op) = facts.remote {
            let request = RemoteRequest {
                op,
                rkey: wqe.wr.rkey,
                addr: wqe.wr.remote_addr,
                len: wqe.length,
                srqn: wqe.wr.xrc_srqn,
            };
            let memory = qp.check_remote(&request).map_err(Refusal::Nak)?;
            touch(&memory, wqe);
            if facts.atomic {
                bytes = 8;
            }
        }
        if !facts.takes_receive {
            return Ok(bytes);
        }
        let mut recv = self.recv.lock().unwrap();
        let taken = match qp.qp_type() {
            QpType::XrcRecv => {
                with_aftermath(|after| qp.take_recv_xrc(wqe.wr.xrc_srqn, &mut recv, after))
            }
            _ => with_aftermath(|after| qp.take_recv(&mut recv, after)),
        };
        taken.map_err(|error| match error {
            TakeError::Empty => Refusal::Rnr,
            TakeError::NotReady => Refusal::NotReady,
            TakeError::Bad(reason) => Refusal::Nak(reason),
        })?;
        self.deliver(&qp, from, wqe, &mut recv)?;
        Ok(bytes)
    }

    fn deliver(
        &self,
        qp: &Qp,
        from: u32,
        wqe: &Wqe<'_>,
        recv: &mut RecvWqe,
    ) -> std::result::Result<(), Refusal> {
        let facts = facts(wqe.wr.opcode);
        let datagram = qp.qp_type() == QpType::Ud;
        let mut at = if datagram { 40 } else { 0 };
        let mut done = RecvDone::ok(wqe.length as u32 + at as u32);
        done.opcode = facts.receive.unwrap();
        done.solicited = wqe.wr.flags & send_flags::SOLICITED != 0;
        if datagram {
            done.src_qp = from;
            done.wc_flags |= wc_flags::GRH;
        }
        if facts.immediate || facts.invalidates {
            done.imm = wqe.wr.imm;
            done.wc_flags |= match facts.immediate {
                true => wc_flags::WITH_IMM,
                false => wc_flags::WITH_INV,
            };
        }
        if facts.remote.is_none() {
            if wqe.length + at > recv.room() {
                with_aftermath(|after| {
                    qp.complete_recv(recv, &RecvDone::failed(WcStatus::LocLenErr), after)
                });
                return Err(Refusal::Nak(NakReason::InvalidRequest));
            }
            for piece in wqe.wr.sges {
                // SAFETY: the engine checked the piece; the test's memory outlives the post.
                let bytes = unsafe {
                    std::slice::from_raw_parts(piece.addr as *const u8, piece.length as usize)
                };
                assert!(recv.scatter(at, bytes));
                at += bytes.len() as u64;
            }
        }
        if facts.invalidates
            && let Err(reason) = qp.invalidate(wqe.wr.imm)
        {
            with_aftermath(|after| {
                qp.complete_recv(recv, &RecvDone::failed(WcStatus::WrFlushErr), after)
            });
            return Err(Refusal::Nak(reason));
        }
        with_aftermath(|after| qp.complete_recv(recv, &done, after));
        Ok(())
    }
}

enum Refusal {
    Nak(NakReason),
    Rnr,
    NotReady,
}

/// RDMA and atomics on checked memory.
fn touch(memory: &RemoteMemory<'_>, wqe: &Wqe<'_>) {
    if memory.is_empty() {
        return;
    }
    let old = match wqe.wr.opcode {
        WrOpcode::AtomicCmpAndSwp | WrOpcode::AtomicFetchAndAdd => {
            // SAFETY: check_remote has looked at length and alignment.
            let word = unsafe { AtomicU64::from_ptr(memory.as_ptr().cast()) };
            let (compare_add, swap) = (wqe.wr.compare_add, wqe.wr.swap);
            Some(match wqe.wr.opcode {
                WrOpcode::AtomicFetchAndAdd => word.fetch_add(compare_add, Ordering::SeqCst),
                _ => match word.compare_exchange(
                    compare_add,
                    swap,
                    Ordering::SeqCst,
                    Ordering::SeqCst,
                ) {
                    Ok(old) | Err(old) => old,
                },
            })
        }
        _ => None,
    };
    let old_bytes = old.map(u64::to_ne_bytes);
    let mut at = 0;
    for piece in wqe.wr.sges {
        let len = piece.length as usize;
        let (local, remote) = (piece.addr as *mut u8, memory.as_ptr().wrapping_add(at));
        // SAFETY: both sides were checked by the engine to have that many bytes.
        unsafe {
            match (wqe.wr.opcode, &old_bytes) {
                (_, Some(old)) => std::ptr::copy(old.as_ptr().add(at), local, len),
                (WrOpcode::RdmaRead, _) => std::ptr::copy(remote, local, len),
                _ => std::ptr::copy(local, remote, len),
            }
        }
        at += len;
    }
}

/// Everything that a test needs: two connected QPs and memory on both sides.
pub struct World {
    pub fabric: Arc<Fabric>,
    pub device: Arc<Device>,
    pub context: Arc<Context>,
    pub pd: Arc<Pd>,
    pub channel: Arc<Channel>,
    pub cq: Arc<Cq>,
    pub peer_cq: Arc<Cq>,
    pub memory: Memory,
    pub peer_memory: Memory,
}

/// A buffer that is registered.
pub struct Memory {
    pub words: Box<[u64]>,
    pub mr: Arc<Mr>,
}

pub const MEMORY: usize = 4096;

impl Memory {
    pub fn new(pd: &Arc<Pd>, access: u32) -> Memory {
        let mut words = vec![0u64; MEMORY / 8].into_boxed_slice();
        let addr = words.as_mut_ptr() as u64;
        let mr = pd.reg_mr(addr, MEMORY as u64, addr, access).unwrap();
        Memory { words, mr }
    }

    pub fn addr(&self) -> u64 {
        self.words.as_ptr() as u64
    }

    pub fn sge(&self, offset: u64, length: u32) -> Sge {
        Sge {
            addr: self.addr() + offset,
            length,
            lkey: self.mr.lkey(),
        }
    }

    pub fn bytes(&self) -> Vec<u8> {
        let at = self.words.as_ptr().cast::<u8>();
        // SAFETY: the whole buffer; volatile, because transfers wrote to it by its address.
        (0..MEMORY)
            .map(|offset| unsafe { at.add(offset).read_volatile() })
            .collect()
    }

    pub fn fill(&mut self, byte: u8) {
        self.words.fill(u64::from_ne_bytes([byte; 8]));
    }
}

pub const ALL: u32 = access::LOCAL_WRITE | access::REMOTE_ANY | access::MW_BIND;

pub fn world() -> World {
    let fabric = Arc::new(Fabric::default());
    let device = Device::new("sluice0", Arc::new(Loopback(fabric.clone())));
    let context = device.open().unwrap();
    let pd = context.alloc_pd().unwrap();
    let channel = context.create_channel().unwrap();
    let cq = context.create_cq(256, 1, Some(&channel), 0).unwrap();
    let peer_cq = context.create_cq(256, 2, Some(&channel), 0).unwrap();
    World {
        memory: Memory::new(&pd, ALL),
        peer_memory: Memory::new(&pd, ALL),
        fabric,
        device,
        context,
        pd,
        channel,
        cq,
        peer_cq,
    }
}

pub const CAP: QpCap = QpCap {
    max_send_wr: 16,
    max_recv_wr: 16,
    max_send_sge: 4,
    max_recv_sge: 4,
    max_inline_data: 64,
};

impl World {
    pub fn init(&self, qp_type: QpType, cq: &Arc<Cq>) -> QpInit {
        let mut init = QpInit::new(qp_type);
        init.send_cq = Some(cq.clone());
        init.recv_cq = Some(cq.clone());
        init.cap = CAP;
        init.cookie = 77;
        init
    }

    /// A QP in RESET.
    pub fn qp(&self, qp_type: QpType) -> Arc<Qp> {
        self.pd.create_qp(&self.init(qp_type, &self.cq)).unwrap()
    }

    /// Two QPs in RTS, connected with each other.
    pub fn pair(&self, qp_type: QpType) -> (Arc<Qp>, Arc<Qp>) {
        let a = self.qp(qp_type);
        let b = self
            .pd
            .create_qp(&self.init(qp_type, &self.peer_cq))
            .unwrap();
        for (qp, peer) in [(&a, &b), (&b, &a)] {
            to_state(qp, peer.num(), QpState::Rts);
        }
        (a, b)
    }

    pub fn transport(&self, qp: &Qp) -> Arc<LoopQp> {
        self.fabric.qp(qp.num()).unwrap()
    }
}

/// Attributes that take a QP from RESET to where it can talk to `peer`.
pub fn attr_for(peer: u32) -> QpAttr {
    QpAttr {
        qp_access_flags: access::REMOTE_ANY,
        port_num: 1,
        qkey: 0x1111,
        path_mtu: 3,
        dest_qp_num: peer,
        ah_attr: AhAttr {
            port_num: 1,
            dlid: 1,
            ..AhAttr::default()
        },
        max_dest_rd_atomic: 4,
        max_rd_atomic: 4,
        min_rnr_timer: 12,
        timeout: 14,
        retry_cnt: 7,
        rnr_retry: 7,
        ..QpAttr::default()
    }
}

/// The masks of a type's way from RESET.
pub fn masks(qp_type: QpType) -> [(QpState, u32); 3] {
    use qp_mask as m;
    let init = m::STATE | m::PKEY_INDEX | m::PORT;
    let to_peer = m::STATE | m::AV | m::PATH_MTU | m::DEST_QPN | m::RQ_PSN;
    let responder = m::MAX_DEST_RD_ATOMIC | m::MIN_RNR_TIMER;
    let send = m::STATE | m::SQ_PSN;
    let requester = m::TIMEOUT | m::RETRY_CNT | m::RNR_RETRY | m::MAX_QP_RD_ATOMIC;
    let (init, rtr, rts) = match qp_type {
        QpType::Rc => (
            init | m::ACCESS_FLAGS,
            to_peer | responder,
            send | requester,
        ),
        QpType::Uc => (init | m::ACCESS_FLAGS, to_peer, send),
        QpType::Ud => (init | m::QKEY, m::STATE, send),
        QpType::XrcSend => (init | m::ACCESS_FLAGS, to_peer, send | requester),
        QpType::XrcRecv => (
            init | m::ACCESS_FLAGS,
            to_peer | responder,
            send | m::TIMEOUT,
        ),
    };
    [
        (QpState::Init, init),
        (QpState::Rtr, rtr),
        (QpState::Rts, rts),
    ]
}

pub fn to_state(qp: &Qp, peer: u32, wanted: QpState) {
    for (state, mask) in masks(qp.qp_type()) {
        if state > wanted {
            return;
        }
        let attr = QpAttr {
            qp_state: state as u32,
            ..attr_for(peer)
        };
        qp.modify(&attr, mask).unwrap();
    }
}

pub fn set_state(qp: &Qp, state: QpState) -> Result<()> {
    let attr = QpAttr {
        qp_state: state as u32,
        ..QpAttr::default()
    };
    qp.modify(&attr, qp_mask::STATE)
}

/// All completions that there are.
pub fn drain(cq: &Cq) -> Vec<Wc> {
    std::iter::from_fn(|| cq.poll_one()).collect()
}

/// The one completion that there is.
pub fn one(cq: &Cq) -> Wc {
    let all = drain(cq);
    assert_eq!(all.len(), 1, "{all:?}");
    all[0]
}

pub fn statuses(cq: &Cq) -> Vec<(u64, WcStatus)> {
    drain(cq)
        .iter()
        .map(|wc| (wc.wr_id, WcStatus::try_from(wc.status).unwrap()))
        .collect()
}

/// Asynchronous events that there are now.
pub fn events(context: &Context) -> Vec<AsyncEvent> {
    let mut events = Vec::new();
    while sluice_sys::unix::wait_readable(context.async_fd(), 0).unwrap() {
        events.push(context.get_async_event().unwrap());
    }
    events
}

pub fn write_byte(at: *mut u8) {
    // SAFETY: the caller holds a RemoteMemory over it.
    unsafe { at.write_volatile(1) }
}

/// A page of its own, whose end can be seen: a later access faults.
pub fn map_page() -> (u64, u64) {
    const LEN: usize = 4096;
    let (protection, flags) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
    );
    // SAFETY: a new mapping at an address of the kernel's choice.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), LEN, protection, flags, -1, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    (at as u64, LEN as u64)
}

pub fn unmap_page(addr: u64, len: u64) {
    // SAFETY: the mapping from `map_page`, whose region was deregistered.
    assert_eq!(unsafe { libc::munmap(addr as *mut _, len as usize) }, 0);
}
