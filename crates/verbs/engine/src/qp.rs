//! Queue pairs: making and ending them, posting, completing.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};

use crate::aftermath::{Aftermath, settled};
use crate::cq::{Completion, Credit, Overrun, Release};
use crate::device::{GROUPS_PER_QP, QUEUE_MAX};
use crate::events::{About, Acks};
use crate::rq::RecvQueue;
use crate::sq::{After, SendQueue, SendTally};
use crate::wr::{SendWr, Wqe};
use crate::{Context, Cq, Error, Pd, QpTransport, Result, Srq, Xrcd};
use sluice_verbs_model::report::QpCounters;
use sluice_verbs_model::responder::MAX_SGE;
use sluice_verbs_model::states::{Posting, receiving};
use sluice_verbs_model::transport::{QpChange, QpParams, SendDone, TransportCaps};
use sluice_verbs_model::types::{
    EventType, Gid, QpAttr, QpCap, QpState, QpType, Sge, Wc, WcOpcode, WcStatus, qp_mask,
};

/// A queue pair.
pub struct Qp {
    me: Weak<Qp>,
    context: Arc<Context>,
    pd: Option<Arc<Pd>>,
    pd_id: u32,
    qp_type: QpType,
    num: u32,
    cap: QpCap,
    sq_sig_all: bool,
    block_multicast_loopback: bool,
    transport: Box<dyn QpTransport>,
    /// With the QP's place in the CQ.
    send_cq: Option<(Arc<Cq>, u32)>,
    recv_cq: Option<(Arc<Cq>, u32)>,
    srq: Option<Arc<Srq>>,
    xrcd: Option<Arc<Xrcd>>,
    credit: Arc<Credit>,
    send: Mutex<SendQueue>,
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

/// What [`crate::Pd::create_qp`] makes.
pub struct QpInit {
    pub qp_type: QpType,
    pub send_cq: Option<Arc<Cq>>,
    pub recv_cq: Option<Arc<Cq>>,
    pub srq: Option<Arc<Srq>>,
    /// The domain of an XRC target; needs no CQs and no PD.
    pub xrcd: Option<Arc<Xrcd>>,
    pub cap: QpCap,
    /// Every send is signalled, whatever its flags.
    pub sq_sig_all: bool,
    /// Multicast messages that this QP sends do not come back to it.
    pub block_multicast_loopback: bool,
    /// The program's own word (`qp_context`), kept and given back.
    pub cookie: u64,
}

impl QpInit {
    pub fn new(qp_type: QpType) -> QpInit {
        QpInit {
            qp_type,
            send_cq: None,
            recv_cq: None,
            srq: None,
            xrcd: None,
            cap: QpCap::default(),
            sq_sig_all: false,
            block_multicast_loopback: false,
            cookie: 0,
        }
    }
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
    queue: Option<MutexGuard<'a, SendQueue>>,
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
        self.queue = None;
        self.qp.act(self.after);
    }
}

/// Looks at what is asked for, and says what it becomes.
fn check_cap(init: &QpInit, caps: &TransportCaps) -> Result<QpCap> {
    let cap = &init.cap;
    let sges = MAX_SGE as u32;
    if cap.max_send_wr > QUEUE_MAX
        || cap.max_recv_wr > QUEUE_MAX
        || cap.max_send_sge > sges
        || cap.max_recv_sge > sges
        || cap.max_inline_data > caps.max_inline
    {
        return Err(Error::BadCapability);
    }
    let target = init.qp_type == QpType::XrcRecv;
    let no_sends = target;
    let no_receives = target || init.srq.is_some() || init.qp_type == QpType::XrcSend;
    Ok(QpCap {
        max_send_wr: if no_sends { 0 } else { cap.max_send_wr },
        max_recv_wr: if no_receives { 0 } else { cap.max_recv_wr },
        max_send_sge: if no_sends { 0 } else { cap.max_send_sge.max(1) },
        max_recv_sge: if no_receives {
            0
        } else {
            cap.max_recv_sge.max(1)
        },
        max_inline_data: if no_sends { 0 } else { cap.max_inline_data },
    })
}

/// Which objects each type needs, and that they belong together.
fn check_objects(context: &Arc<Context>, init: &QpInit, caps: &TransportCaps) -> Result<()> {
    let (has, needs) = match init.qp_type {
        QpType::Rc => (true, true),
        QpType::Uc => (caps.uc, true),
        QpType::Ud => (caps.ud, true),
        QpType::XrcSend => (caps.xrc, false),
        QpType::XrcRecv => (caps.xrc, false),
    };
    if !has {
        return Err(Error::NotSupported);
    }
    let target = init.qp_type == QpType::XrcRecv;
    let sends_without_cq = !target && init.send_cq.is_none();
    let receives_without_cq = needs && init.recv_cq.is_none();
    let strange_srq = !needs && init.srq.is_some();
    let xrc_srq = init.srq.as_ref().is_some_and(|srq| srq.xrcd().is_some());
    let strange_domain = target != init.xrcd.is_some();
    if sends_without_cq || receives_without_cq || strange_srq || xrc_srq || strange_domain {
        return Err(Error::WrongObject);
    }
    let cqs = [&init.send_cq, &init.recv_cq];
    let foreign_cq = |cq: &Arc<Cq>| !Arc::ptr_eq(cq.context(), context);
    if cqs.into_iter().flatten().any(foreign_cq) {
        return Err(Error::WrongObject);
    }
    let foreign_srq = |srq: &Arc<Srq>| !Arc::ptr_eq(srq.pd().context(), context);
    if init.srq.as_ref().is_some_and(foreign_srq) {
        return Err(Error::WrongObject);
    }
    Ok(())
}

const fn mtu_bytes(code: u32) -> u64 {
    128 << code
}

/// For the program.
impl Qp {
    pub(crate) fn create(
        context: &Arc<Context>,
        pd: Option<&Arc<Pd>>,
        init: &QpInit,
    ) -> Result<Arc<Qp>> {
        let device = context.device();
        let caps = device.transport().caps();
        check_objects(context, init, &caps)?;
        let cap = check_cap(init, &caps)?;
        let target = init.qp_type == QpType::XrcRecv;
        let (send_cq, recv_cq) = match target {
            true => (None, None),
            false => (init.send_cq.as_ref(), init.recv_cq.as_ref()),
        };
        let pd_id = pd.map_or(0, |pd| pd.id());
        let new = device.transport().create_qp(&QpParams {
            qp_type: init.qp_type,
            cap,
            pd: pd_id,
            send_cq: send_cq.map(|cq| cq.id()),
            recv_cq: recv_cq.map(|cq| cq.id()),
            has_srq: init.srq.is_some(),
        })?;
        let credit = Credit::new(init.srq.as_ref().map(|srq| srq.polled.clone()));
        let attach = |cq: Option<&Arc<Cq>>| cq.map(|cq| (cq.clone(), cq.attach(&credit)));
        let max_length = match init.qp_type {
            QpType::Ud => mtu_bytes(caps.mtu),
            _ => u64::from(caps.max_msg_sz),
        };
        let attr = QpAttr {
            cap,
            ..QpAttr::default()
        };
        if let Some(pd) = pd {
            pd.add_user();
        }
        for users in [
            init.srq.as_ref().map(|srq| &srq.users),
            init.xrcd.as_ref().map(|xrcd| &xrcd.users),
        ] {
            users.map(|users| users.fetch_add(1, Ordering::AcqRel));
        }
        let qp = Arc::new_cyclic(|me| Qp {
            me: me.clone(),
            context: context.clone(),
            pd: pd.cloned(),
            pd_id,
            qp_type: init.qp_type,
            num: new.qpn,
            cap,
            sq_sig_all: init.sq_sig_all,
            block_multicast_loopback: init.block_multicast_loopback,
            transport: new.transport,
            send_cq: attach(send_cq),
            recv_cq: attach(recv_cq),
            srq: init.srq.clone(),
            xrcd: init.xrcd.clone(),
            credit: credit.clone(),
            send: Mutex::new(SendQueue::new(
                init.qp_type,
                &cap,
                init.sq_sig_all,
                max_length,
            )),
            receive: Mutex::new(RecvQueue::new(cap.max_recv_wr, cap.max_recv_sge)),
            state: AtomicU32::new(QpState::Reset as u32),
            remote_access: AtomicU32::new(0),
            qkey: AtomicU32::new(0),
            control: Mutex::new(ControlState {
                now: Control {
                    attr,
                    destroyed: false,
                },
                in_transition: false,
                wanted: None,
            }),
            transition_over: Condvar::new(),
            groups: Mutex::default(),
            acks: Acks::new(init.cookie),
            breaking: AtomicBool::new(false),
            incarnation: AtomicU32::new(0),
            communicating: AtomicBool::new(false),
            tally: Tally::default(),
            sent: SendTally::default(),
        });
        if qp.qp_type == QpType::Ud {
            let _ = credit.datagrams.set(qp.me.clone());
        }
        if target {
            device.lock_targets().insert(qp.num, Arc::downgrade(&qp));
        }
        qp.transport.bind(&qp);
        device.census.add(&qp);
        Ok(qp)
    }

    pub fn context(&self) -> &Arc<Context> {
        &self.context
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

    /// None for an XRC target.
    pub fn pd(&self) -> Option<&Arc<Pd>> {
        self.pd.as_ref()
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
        drop(queue);
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
            settled(|after| self.transport.receives_posted(after));
        }
        Ok(())
    }

    /// UD only. The same group twice is one membership.
    pub fn attach_multicast(&self, gid: &Gid, _lid: u16) -> Result<()> {
        if self.qp_type != QpType::Ud || !gid.is_multicast() {
            return Err(Error::BadValue);
        }
        let mut groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
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
        let mut groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        let at = groups.iter().position(|group| group == gid);
        groups.swap_remove(at.ok_or(Error::NotFound)?);
        self.transport.detach_multicast(gid);
        Ok(())
    }

    pub fn counters(&self) -> QpCounters {
        QpCounters {
            receives_posted: self.lock_receive().posted,
            ..self.counters_without_lock()
        }
    }

    /// All but the receives posted, which are counted where the program holds a lock.
    pub(crate) fn counters_without_lock(&self) -> QpCounters {
        let (sent, tally) = (&self.sent, &self.tally);
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        QpCounters {
            sends_posted: read(&sent.posted),
            send_bytes: read(&sent.bytes),
            sends_failed: read(&sent.failed),
            receives_posted: 0,
            receives_done: read(&tally.receives_done),
            receive_bytes: read(&tally.receive_bytes),
            rnr: read(&tally.rnr),
            refused: read(&tally.refused),
        }
    }

    pub fn ack_async_event(&self) {
        self.acks.acknowledge(1);
    }

    /// Waits until its asynchronous events are acknowledged. EBUSY while it is attached to
    /// multicast groups. Completions that were not polled are gone afterwards.
    pub fn destroy(&self) -> Result<()> {
        let groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        if !groups.is_empty() {
            return Err(Error::Busy);
        }
        drop(groups);
        self.linger();
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
            settled(|after| self.transport.destroy(after));
            self.leave();
        }
        self.end_transition(None);
        self.acks.wait();
        Ok(())
    }

    /// Gives datagrams that wait for a way to their receiver a moment to go.
    pub(crate) fn linger(&self) {
        if self.qp_type == QpType::Ud && self.lock_send().holds_requests() {
            self.transport.linger();
            // Whoever clears the way may not have got to it yet.
            settled(|after| self.resume(after));
        }
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
        if let Some(pd) = &self.pd {
            pd.drop_user();
        }
        let device = self.context.device();
        device.lock_targets().remove(&self.num);
        device.census.remove(self);
        self.context.async_queue.purge_of(&self.acks);
    }
}

/// For the transport, requester's side.
impl Qp {
    pub fn transport(&self) -> &dyn QpTransport {
        &*self.transport
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
    pub fn complete_sends(&self, ended: &[(u64, SendDone)], after: &mut Aftermath) {
        let mut queue = self.lock_send();
        let mut any = false;
        for (seq, done) in ended {
            any |= queue.end_pending(*seq, *done);
        }
        if !any {
            return;
        }
        let retired = queue.retire_ended(self);
        let hands_over = queue.can_hand_over();
        drop(queue);
        self.leave_to(after, retired);
        if hands_over {
            after.hand_over(self);
        }
    }

    /// There is room again after [`crate::Posted::Busy`].
    pub fn resume(&self, after: &mut Aftermath) {
        let mut queue = self.lock_send();
        queue.no_longer_busy();
        if queue.can_hand_over() {
            after.hand_over(self);
        }
    }

    /// Looks at a pending request again; None when it is complete or flushed. Runs with the
    /// send half's lock held.
    pub fn with_wqe<R>(&self, seq: u64, look: impl FnOnce(&Wqe<'_>) -> R) -> Option<R> {
        self.lock_send().look(seq, look)
    }

    /// The QP breaks by itself: it raises `event` if there is one, and moves to ERR and flushes when
    /// the aftermath is settled (a transport whose peer died completes the oldest request with
    /// RETRY_EXC_ERR instead, if there is a request).
    pub fn fail(&self, event: Option<EventType>, after: &mut Aftermath) {
        let is_over = matches!(self.state(), QpState::Err | QpState::Reset);
        if is_over || self.breaking.swap(true, Ordering::Relaxed) {
            return;
        }
        if let Some(event) = event {
            self.raise(event);
        }
        after.break_down(self, QpState::Err);
    }
}

/// Inside the engine.
impl Qp {
    pub(crate) fn weak(&self) -> &Weak<Qp> {
        &self.me
    }

    #[inline]
    pub(crate) fn pd_id(&self) -> u32 {
        self.pd_id
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
            self.context.async_queue.push((event, about));
        }
    }

    /// What a locked queue asked for.
    #[inline]
    pub(crate) fn act(&self, after: After) {
        if !after.is_nothing() {
            self.act_slowly(after);
        }
    }

    #[cold]
    fn act_slowly(&self, what: After) {
        settled(|after| self.leave_slowly(after, what));
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
            after.break_down(self, self.after_failed_send());
        }
    }

    /// A completion was lost: the work queue is beyond repair (IBTA 11.6.3.2).
    pub(crate) fn overrun(&self, after: &mut Aftermath) {
        self.fail(Some(EventType::QpFatal), after);
    }

    /// Completes and hands over what can be.
    pub(crate) fn pump(&self) {
        let after = self.lock_send().pump(self);
        self.act(after);
    }

    #[inline]
    pub(crate) fn push_send(&self, completion: &Completion) -> Result<(), Overrun> {
        match &self.send_cq {
            Some((cq, owner)) => cq.push(&Completion {
                owner: *owner,
                ..*completion
            }),
            None => Ok(()),
        }
    }

    pub(crate) fn recv_place(&self) -> Option<(&Arc<Cq>, u32)> {
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
            let _ = cq.push(&Completion {
                wc: Wc {
                    wr_id,
                    status: WcStatus::WrFlushErr as u32,
                    opcode: WcOpcode::Recv as u32,
                    qp_num: self.num,
                    ..Wc::default()
                },
                owner,
                release: Release::Receive,
                solicited: false,
            });
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
    pub(crate) fn lock_send(&self) -> MutexGuard<'_, SendQueue> {
        self.send.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    pub(crate) fn lock_receive(&self) -> MutexGuard<'_, RecvQueue> {
        self.receive.lock().unwrap_or_else(PoisonError::into_inner)
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
