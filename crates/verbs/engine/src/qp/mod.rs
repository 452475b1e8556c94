//! Queue pairs: making and ending them, posting, completing.

mod create;
mod local;
mod modify;
pub mod responder;
mod transport;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};

use sluice_verbs_model::error::{Error, Result};
use sluice_verbs_model::gids::GidEntry;
use sluice_verbs_model::limits::GROUPS_PER_QP;
use sluice_verbs_model::report::QpCounters;
use sluice_verbs_model::states::{Posting, receiving};
use sluice_verbs_model::transport::{Posted, QpChange, SendDone};
use sluice_verbs_model::types::{
    EventType, Gid, QpAttr, QpCap, QpState, QpType, Sge, Wc, WcOpcode, WcStatus, qp_mask,
};

use crate::adapter::Adapter;
use crate::aftermath::{Aftermath, Concerned, with_aftermath};
use crate::cq::{Completion, Cq, Credit, DatagramSender, Overrun, Owner, Release};
use crate::domain::{Domain, Opened};
use crate::events::{About, Acks};
use crate::front::Front;
use crate::locks::{Guard, lock};
use crate::pair::{After, Pair, SendTally};
use crate::records::LentRecords;
use crate::report::Counted;
use crate::rq::RecvQueue;
use crate::sq::{Ended, SendQueue, end_lent};
use crate::srq::{Srq, Srqs, Starved};
use crate::wr::{Handed, SendWr, Wqe};
use crate::xrcd::Xrcd;

pub use create::QpInit;
pub use local::LocalMemory;
pub use transport::{NewQp, QpTransport};

/// Whom messages and programs name by a number, on one device.
#[derive(Default)]
pub(crate) struct Directory {
    pub srqs: Arc<Srqs>,
    /// XRC targets.
    targets: Mutex<HashMap<u32, Weak<Qp>>>,
}

impl Directory {
    pub fn target(&self, qpn: u32) -> Option<Arc<Qp>> {
        self.lock_targets().get(&qpn)?.upgrade()
    }

    fn lock_targets(&self) -> Guard<'_, HashMap<u32, Weak<Qp>>> {
        lock(&self.targets)
    }
}

/// A queue pair.
pub struct Qp {
    me: Weak<Qp>,
    opened: Arc<Opened>,
    directory: Arc<Directory>,
    /// None for an XRC target.
    domain: Option<Arc<Domain>>,
    pd_id: u32,
    qp_type: QpType,
    num: u32,
    cap: QpCap,
    sq_sig_all: bool,
    block_multicast_loopback: bool,
    transport: Box<dyn QpTransport>,
    /// With the QP's place in the CQ.
    send_cq: Option<(Arc<Cq>, Owner)>,
    recv_cq: Option<(Arc<Cq>, Owner)>,
    srq: Option<Arc<Srq>>,
    xrcd: Option<Arc<Xrcd>>,
    credit: Arc<Credit>,
    send: Mutex<SendQueue>,
    front: Arc<Front>,
    /// Until the transport takes it.
    lent: Mutex<Option<LentRecords>>,
    receive: Mutex<RecvQueue>,
    /// What messages are checked against without a lock.
    state: AtomicU32,
    remote_access: AtomicU32,
    qkey: AtomicU32,
    control: Mutex<ControlState>,
    transition_over: Condvar,
    groups: Mutex<Vec<Gid>>,
    acks: Arc<Acks>,
    /// It is to move to ERR, and the program knows.
    breaking: AtomicBool,
    /// How often it was in RESET.
    incarnation: AtomicU32,
    pub(crate) communicating: AtomicBool,
    pub(crate) tally: Tally,
    pub(crate) sent: SendTally,
}

/// What a transition works with.
#[derive(Clone, Copy)]
pub(crate) struct Control {
    pub attr: QpAttr,
    pub destroyed: bool,
}

struct ControlState {
    now: Control,
    in_transition: bool,
    /// The QP broke during a transition.
    wanted: Option<QpState>,
}

/// Counts of the responder's side.
#[derive(Default)]
pub(crate) struct Tally {
    pub receives_done: AtomicU64,
    pub receive_bytes: AtomicU64,
    pub rnr: AtomicU64,
    pub refused: AtomicU64,
}

/// The send half, locked for posting several requests at once.
pub struct Sender<'a> {
    qp: &'a Qp,
    queue: Option<Guard<'a, SendQueue>>,
    after: After,
}

impl Sender<'_> {
    /// What [`Sender::post`] would refuse if `ahead` requests were posted before this one.
    /// While this sender lives, room only grows: after these checks nothing is refused.
    pub fn check(&self, wr: &SendWr<'_>, ahead: usize) -> Result<()> {
        match &self.queue {
            Some(queue) => queue.check_post(&self.qp.credit, wr, ahead as u64),
            None => Ok(()),
        }
    }

    /// As [`Qp::post_send`]; what a failure leads to happens when the sender is dropped.
    #[inline]
    pub fn post(&mut self, wr: &SendWr<'_>) -> Result<()> {
        if let Some(queue) = &mut self.queue {
            self.after.and(queue.post(self.qp, &self.qp.credit, wr)?);
        }
        Ok(())
    }
}

impl Drop for Sender<'_> {
    fn drop(&mut self) {
        let lent = self.queue.as_mut().map(|queue| queue.take_lent());
        self.queue = None;
        self.qp.tell_of(lent.unwrap_or_default());
        self.qp.act(self.after);
    }
}

/// For the program.
impl Qp {
    /// An address of the device that the QP is of, as `Device::gid`.
    pub fn gid(&self, port: u8, index: u32) -> Result<GidEntry> {
        self.adapter().gid(port, index)
    }

    pub fn num(&self) -> u32 {
        self.num
    }

    pub fn qp_type(&self) -> QpType {
        self.qp_type
    }

    pub fn state(&self) -> QpState {
        // Only states are ever stored.
        QpState::try_from(self.state.load(Ordering::Acquire)).unwrap_or(QpState::Err)
    }

    pub fn send_cq(&self) -> Option<&Arc<Cq>> {
        self.send_cq.as_ref().map(|(cq, _)| cq)
    }

    pub fn recv_cq(&self) -> Option<&Arc<Cq>> {
        self.recv_cq.as_ref().map(|(cq, _)| cq)
    }

    pub fn srq(&self) -> Option<&Arc<Srq>> {
        self.srq.as_ref()
    }

    pub fn xrcd(&self) -> Option<&Arc<Xrcd>> {
        self.xrcd.as_ref()
    }

    pub fn cap(&self) -> QpCap {
        self.cap
    }

    pub fn sq_sig_all(&self) -> bool {
        self.sq_sig_all
    }

    pub fn blocks_multicast_loopback(&self) -> bool {
        self.block_multicast_loopback
    }

    pub fn cookie(&self) -> u64 {
        self.acks.cookie()
    }

    pub fn set_cookie(&self, cookie: u64) {
        self.acks.set_cookie(cookie);
    }

    /// All attributes as they are (`ibv_query_qp`), the state and `sq_draining` among them.
    pub fn query(&self) -> QpAttr {
        let attr = self.lock_control().now.attr;
        let draining = self.lock_send().is_draining();
        let state = self.state() as u32;
        QpAttr {
            qp_state: state,
            cur_qp_state: state,
            sq_draining: u8::from(draining),
            ..attr
        }
    }

    /// Posts one request. The C interface gives the first one that fails as `bad_wr`.
    ///
    /// EINVAL for what the QP, its state or its capabilities do not allow, ENOMEM when the queue
    /// is full. No allocation and no system call, unless somebody sleeps on the completion.
    #[inline]
    pub fn post_send(&self, wr: &SendWr<'_>) -> Result<()> {
        let mut queue = self.lock_send();
        let after = queue.post(self, &self.credit, wr)?;
        let lent = queue.take_lent();
        drop(queue);
        self.tell_of(lent);
        self.act(after);
        Ok(())
    }

    /// Locks the send half for several posts.
    pub fn sender(&self) -> Sender<'_> {
        Sender {
            qp: self,
            queue: Some(self.lock_send()),
            after: After::default(),
        }
    }

    /// EINVAL in RESET, for too many pieces, or with an SRQ; ENOMEM when the queue is full.
    #[inline]
    pub fn post_recv(&self, wr_id: u64, sges: &[Sge]) -> Result<()> {
        let mut queue = self.lock_receive();
        let posting = receiving(queue.state);
        if posting == Posting::Refused {
            return Err(Error::WrongState);
        }
        if self.cap.max_recv_sge == 0 {
            return Err(Error::WrongObject);
        }
        let polled = self.credit.receives.load(Ordering::Acquire);
        queue.post(polled, wr_id, sges)?;
        let starved = core::mem::take(&mut queue.starved);
        if queue.flushed {
            self.flush_queue(&mut queue);
        }
        drop(queue);
        if starved {
            with_aftermath(|after| self.transport.receives_posted(after));
        }
        Ok(())
    }

    /// UD only. The same group twice is one membership.
    pub fn attach_multicast(&self, gid: &Gid, _lid: u16) -> Result<()> {
        if self.qp_type != QpType::Ud || !gid.is_multicast() {
            return Err(Error::BadValue);
        }
        let mut groups = lock(&self.groups);
        if groups.contains(gid) {
            return Ok(());
        }
        if groups.len() >= GROUPS_PER_QP {
            return Err(Error::NoResources);
        }
        self.transport.attach_multicast(gid)?;
        groups.push(*gid);
        Ok(())
    }

    /// EINVAL when it is not in the group.
    pub fn detach_multicast(&self, gid: &Gid, _lid: u16) -> Result<()> {
        let mut groups = lock(&self.groups);
        let at = groups.iter().position(|group| group == gid);
        groups.swap_remove(at.ok_or(Error::NotFound)?);
        self.transport.detach_multicast(gid);
        Ok(())
    }

    pub fn counters(&self) -> QpCounters {
        QpCounters {
            receives_posted: self.lock_receive().posted,
            ..Counted::counters(self)
        }
    }

    pub fn ack_async_event(&self) {
        self.acks.acknowledge(1);
    }

    /// Waits until its asynchronous events are acknowledged. EBUSY while it is attached to
    /// multicast groups. Completions that were not polled are gone afterwards.
    pub fn destroy(&self) -> Result<()> {
        let groups = lock(&self.groups);
        if !groups.is_empty() {
            return Err(Error::Busy);
        }
        drop(groups);
        DatagramSender::linger(self);
        let control = self.begin_transition();
        if !control.destroyed {
            let attr = QpAttr {
                cap: self.cap,
                ..QpAttr::default()
            };
            self.reset(&QpChange {
                from: self.state(),
                to: QpState::Reset,
                mask: qp_mask::STATE,
                attr: &attr,
                by_itself: false,
            });
            self.lock_control().now.destroyed = true;
            with_aftermath(|after| self.transport.destroy(after));
            self.leave();
        }
        self.end_transition(None);
        self.acks.wait();
        Ok(())
    }

    /// Lets go of everything that the QP used.
    fn leave(&self) {
        for (cq, owner) in [&self.send_cq, &self.recv_cq].into_iter().flatten() {
            cq.detach(*owner);
        }
        if let Some(srq) = &self.srq {
            srq.users.fetch_sub(1, Ordering::AcqRel);
        }
        if let Some(xrcd) = &self.xrcd {
            xrcd.users.fetch_sub(1, Ordering::AcqRel);
        }
        if let Some(domain) = &self.domain {
            domain.drop_user();
        }
        self.directory.lock_targets().remove(&self.num);
        self.adapter().census.remove(self);
        self.opened.async_queue.purge_of(&self.acks);
    }
}

/// For the transport, requester's side.
impl Qp {
    pub fn transport(&self) -> &dyn QpTransport {
        &*self.transport
    }

    /// The records of the requests that the transport works on, for one that is
    /// [by record](QpTransport::is_by_record). Only the first call has them.
    pub fn lent_records(&self) -> Option<LentRecords> {
        lock(&self.lent).take()
    }

    /// All attributes; a snapshot. Not from [`QpTransport::post`], which runs with the send
    /// half's lock held.
    pub fn attr(&self) -> QpAttr {
        self.query()
    }

    /// The key that datagrams must carry.
    pub fn qkey(&self) -> u32 {
        self.qkey.load(Ordering::Acquire)
    }

    /// Ends the request `seq` that was [`crate::Posted::Pending`]. Requests may end in any
    /// order; an unknown or flushed `seq` is ignored.
    pub fn complete_send(&self, seq: u64, done: SendDone, after: &mut Aftermath) {
        self.complete_sends(&[(seq, done)], after);
    }

    /// Ends several requests, each as [`Qp::complete_send`] does.
    pub fn complete_sends(&self, all: &[(u64, SendDone)], after: &mut Aftermath) {
        let mut queue = self.lock_send();
        let (mut any, mut ended) = (false, After::default());
        for (seq, done) in all {
            any |= queue.end_pending(self, *seq, *done, &mut ended);
        }
        if any {
            self.retire(queue, ended, after);
        }
    }

    /// Ends a request of a transport that works [by record](QpTransport::is_by_record), and all before it have
    /// ended. Mostly without a lock. Does not come twice for one request.
    pub fn complete_lent(
        &self,
        records: &mut LentRecords,
        seq: u64,
        done: SendDone,
        after: &mut Aftermath,
    ) {
        // One that is lent no more has been flushed.
        let Some(name) = records.name(seq) else {
            return;
        };
        records.ended(seq);
        match end_lent(self, &self.front, &name, self.sq_sig_all, seq, done) {
            Ended::Complete(retired) => self.leave_to(after, retired),
            Ended::Followed(retired) => {
                let queue = self.lock_send();
                self.retire(queue, retired, after);
            }
            Ended::NotYet => self.complete_send(seq, done, after),
        }
    }

    /// Behind requests that have ended, of which that came.
    fn retire(&self, mut queue: Guard<'_, SendQueue>, mut retired: After, after: &mut Aftermath) {
        retired.and(queue.retire_ended(self));
        let hands_over = queue.can_hand_over();
        drop(queue);
        self.leave_to(after, retired);
        if hands_over {
            after.hand_over(&self.me, self.incarnation());
        }
    }

    /// There is room again after [`crate::Posted::Busy`].
    pub fn resume(&self, after: &mut Aftermath) {
        let mut queue = self.lock_send();
        queue.no_longer_busy();
        if queue.can_hand_over() {
            after.hand_over(&self.me, self.incarnation());
        }
    }

    /// Looks at a pending request again; None when it is complete or flushed. Runs with the
    /// send half's lock held.
    pub fn with_wqe<R>(&self, seq: u64, look: impl FnOnce(&Wqe<'_>) -> R) -> Option<R> {
        self.lock_send().look(seq, look)
    }

    /// The QP breaks by itself: it raises `event` if there is one, and moves to ERR and flushes when
    /// the aftermath is run (a transport whose peer died completes the oldest request with
    /// RETRY_EXC_ERR instead, if there is a request).
    pub fn fail(&self, event: Option<EventType>, after: &mut Aftermath) {
        let is_over = matches!(self.state(), QpState::Err | QpState::Reset);
        if is_over || self.breaking.swap(true, Ordering::Relaxed) {
            return;
        }
        if let Some(event) = event {
            self.raise(event);
        }
        after.break_down(&self.me, self.incarnation(), QpState::Err);
    }
}

/// Inside the engine.
impl Qp {
    pub(crate) fn weak(&self) -> Weak<dyn Starved> {
        self.me.clone()
    }

    #[inline]
    pub(crate) fn adapter(&self) -> &Adapter {
        &self.opened.adapter
    }

    pub(crate) fn remote_access(&self) -> u32 {
        self.remote_access.load(Ordering::Acquire)
    }

    /// Copies what messages are checked against.
    pub(crate) fn mirror(&self, attr: &QpAttr) {
        self.remote_access
            .store(attr.qp_access_flags, Ordering::Release);
        self.qkey.store(attr.qkey, Ordering::Release);
    }

    pub(crate) fn store_state(&self, state: QpState) {
        self.state.store(state as u32, Ordering::Release);
        if state == QpState::Reset {
            self.communicating.store(false, Ordering::Relaxed);
            self.breaking.store(false, Ordering::Relaxed);
            self.incarnation.fetch_add(1, Ordering::Release);
        }
    }

    /// Counts the times that it was in RESET.
    pub(crate) fn incarnation(&self) -> u32 {
        self.incarnation.load(Ordering::Acquire)
    }

    pub(crate) fn raise(&self, event: EventType) {
        // Under the lock, so that none comes after `leave` has taken them out.
        let control = self.lock_control();
        if !control.now.destroyed {
            let about = About::Qp(self.acks.clone());
            self.opened.async_queue.push((event, about));
        }
    }

    /// What a locked queue asked for.
    #[inline]
    pub(crate) fn act(&self, after: After) {
        if !after.is_nothing() {
            self.act_slowly(after);
        }
    }

    /// Requests have been lent to the transport.
    #[inline]
    fn tell_of(&self, handed: Handed) {
        if handed.count > 0 {
            with_aftermath(|after| {
                if let Some(done) = self.transport.posted(&handed, after) {
                    self.complete_send(handed.seq, done, after);
                }
            });
        }
    }

    #[cold]
    fn act_slowly(&self, what: After) {
        with_aftermath(|after| self.leave_slowly(after, what));
    }

    /// The same where the transport's locks may be held.
    #[inline]
    fn leave_to(&self, after: &mut Aftermath, what: After) {
        if !what.is_nothing() {
            self.leave_slowly(after, what);
        }
    }

    #[cold]
    fn leave_slowly(&self, after: &mut Aftermath, what: After) {
        if what.drained {
            self.raise(EventType::SqDrained);
        }
        if what.overrun {
            self.overrun(after);
        } else if what.broken {
            after.break_down(&self.me, self.incarnation(), self.after_failed_send());
        }
    }

    /// A completion was lost: the work queue is beyond repair (IBTA 11.6.3.2).
    pub(crate) fn overrun(&self, after: &mut Aftermath) {
        self.fail(Some(EventType::QpFatal), after);
    }

    /// Completes and hands over what can be.
    pub(crate) fn pump(&self) {
        let (after, lent) = {
            let mut queue = self.lock_send();
            (queue.pump(self), queue.take_lent())
        };
        self.tell_of(lent);
        self.act(after);
    }

    pub(crate) fn recv_place(&self) -> Option<(&Arc<Cq>, Owner)> {
        self.recv_cq.as_ref().map(|(cq, owner)| (cq, *owner))
    }

    pub(crate) fn flush_sends(&self) {
        self.lock_send().flush(self);
    }

    pub(crate) fn flush_receives(&self) {
        let mut queue = self.lock_receive();
        queue.flushed = true;
        self.flush_queue(&mut queue);
    }

    fn flush_queue(&self, queue: &mut RecvQueue) {
        let Some((cq, owner)) = self.recv_place() else {
            return;
        };
        while let Some((wr_id, _)) = queue.take() {
            let flushed = Completion {
                wc: Wc {
                    wr_id,
                    status: WcStatus::WrFlushErr as u32,
                    opcode: WcOpcode::Recv as u32,
                    qp_num: self.num,
                    ..Wc::default()
                },
                release: Release::Receive,
                solicited: false,
            };
            let _ = cq.push(owner, &flushed);
        }
    }

    /// RESET: completions of before are taken out, and all room is free.
    pub(crate) fn purge_completions(&self) {
        for (cq, owner) in [&self.send_cq, &self.recv_cq].into_iter().flatten() {
            cq.purge(*owner);
        }
        self.credit.sends.store(0, Ordering::Release);
        self.credit.receives.store(0, Ordering::Release);
    }

    #[inline]
    pub(crate) fn lock_send(&self) -> Guard<'_, SendQueue> {
        lock(&self.send)
    }

    #[inline]
    pub(crate) fn lock_receive(&self) -> Guard<'_, RecvQueue> {
        lock(&self.receive)
    }

    fn lock_control(&self) -> MutexGuard<'_, ControlState> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One transition at a time. Waits for the one under way.
    pub(crate) fn begin_transition(&self) -> Control {
        let mut control = self.lock_control();
        while control.in_transition {
            control = self
                .transition_over
                .wait(control)
                .unwrap_or_else(PoisonError::into_inner);
        }
        control.in_transition = true;
        control.now
    }

    /// None, and remembered, when another one is under way.
    pub(crate) fn try_begin_transition(&self, to: QpState) -> Option<Control> {
        let mut control = self.lock_control();
        if control.in_transition {
            // ERR is the worst that can be wanted.
            if control.wanted != Some(QpState::Err) {
                control.wanted = Some(to);
            }
            return None;
        }
        control.in_transition = true;
        Some(control.now)
    }

    /// Also does what was wanted in the meantime.
    pub(crate) fn end_transition(&self, attr: Option<QpAttr>) {
        let mut control = self.lock_control();
        if let Some(attr) = attr {
            control.now.attr = attr;
        }
        while let Some(to) = control.wanted.take() {
            let now = control.now;
            drop(control);
            self.break_down_now(&now, to);
            control = self.lock_control();
        }
        control.in_transition = false;
        drop(control);
        self.transition_over.notify_all();
    }
}

impl Pair for Qp {
    #[inline]
    fn num(&self) -> u32 {
        self.num
    }

    #[inline]
    fn pd_id(&self) -> u32 {
        self.pd_id
    }

    #[inline]
    fn qkey(&self) -> u32 {
        Qp::qkey(self)
    }

    #[inline]
    fn adapter(&self) -> &Adapter {
        &self.opened.adapter
    }

    #[inline]
    fn sent(&self) -> &SendTally {
        &self.sent
    }

    #[inline]
    fn hand(&self, wqe: &Wqe<'_>) -> Posted {
        self.transport.post(self, wqe)
    }

    #[inline]
    fn push_send(&self, completion: &Completion) -> Result<(), Overrun> {
        match &self.send_cq {
            Some((cq, owner)) => cq.push(*owner, completion),
            None => Ok(()),
        }
    }
}

impl DatagramSender for Qp {
    fn completes_in(&self, cq: u32) -> bool {
        self.send_cq().is_some_and(|own| own.id() == cq)
    }

    fn linger(&self) {
        if self.qp_type == QpType::Ud && self.lock_send().holds_requests() {
            self.transport.linger();
            // Whoever clears the way may not have got to it yet.
            with_aftermath(|after| self.resume(after));
        }
    }
}

impl Concerned for Qp {
    fn hand_over(&self) {
        self.pump();
    }

    fn break_down(&self, to: QpState, incarnation: u32) {
        self.break_down_if(to, incarnation);
    }
}

impl Starved for Qp {
    /// One that was reset or destroyed meanwhile has nothing to try again.
    fn receives_posted(&self) {
        if self.state() != QpState::Reset {
            with_aftermath(|after| self.transport.receives_posted(after));
        }
    }
}

impl Counted for Qp {
    fn num(&self) -> u32 {
        self.num
    }

    fn state(&self) -> QpState {
        Qp::state(self)
    }

    fn counters(&self) -> QpCounters {
        let (sent, tally) = (&self.sent, &self.tally);
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        QpCounters {
            sends_posted: read(&sent.posted),
            send_bytes: read(&sent.bytes) + read(&sent.lent_bytes),
            sends_failed: read(&sent.failed),
            receives_posted: 0,
            receives_done: read(&tally.receives_done),
            receive_bytes: read(&tally.receive_bytes),
            rnr: read(&tally.rnr),
            refused: read(&tally.refused),
        }
    }
}
