//! Shared receive queues.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::aftermath::settled;
use crate::cq::Credit;
use crate::device::QUEUE_MAX;
use crate::events::{About, Acks};
use crate::rq::RecvQueue;
use crate::{Cq, Error, Pd, Qp, Result, Xrcd};
use sluice_verbs_model::responder::MAX_SGE;
use sluice_verbs_model::types::{EventType, QpState, Sge, SrqAttr, srq_mask};

/// What [`crate::Pd::create_srq`] makes.
#[derive(Default)]
pub struct SrqInit {
    pub attr: SrqAttr,
    /// With a domain and a CQ it is an XRC SRQ.
    pub xrcd: Option<Arc<Xrcd>>,
    pub cq: Option<Arc<Cq>>,
    pub cookie: u64,
}

/// A shared receive queue, plain or for XRC.
pub struct Srq {
    pd: Arc<Pd>,
    num: u32,
    /// Of an XRC SRQ: domain, CQ, and its place there.
    xrc: Option<(Arc<Xrcd>, Arc<Cq>, u32)>,
    state: Mutex<State>,
    /// Receives whose completion was polled, through whatever CQ.
    pub(crate) polled: Arc<AtomicU64>,
    pub(crate) users: AtomicU32,
    acks: Arc<Acks>,
    destroyed: AtomicBool,
}

struct State {
    queue: RecvQueue,
    limit: u32,
    /// QPs with messages for which there was no receive.
    starved: Vec<Weak<Qp>>,
}

impl Srq {
    pub(crate) fn create(pd: &Arc<Pd>, init: &SrqInit) -> Result<Arc<Srq>> {
        let SrqAttr {
            max_wr, max_sge, ..
        } = init.attr;
        if max_wr == 0 || max_wr > QUEUE_MAX || max_sge as usize > MAX_SGE {
            return Err(Error::BadCapability);
        }
        let device = pd.context().device();
        let caps = device.transport().caps();
        let xrc = match (&init.xrcd, &init.cq) {
            (None, None) => None,
            (Some(_), Some(_)) if !caps.xrc => return Err(Error::NotSupported),
            (Some(xrcd), Some(cq)) => Some((xrcd, cq)),
            _ => return Err(Error::WrongObject),
        };
        let num = device.transport().create_srq(xrc.is_some())?;
        let polled = Arc::new(AtomicU64::new(0));
        let xrc = xrc.map(|(xrcd, cq)| {
            let owner = cq.attach(&Credit::new(Some(polled.clone())));
            xrcd.users.fetch_add(1, Ordering::AcqRel);
            (xrcd.clone(), cq.clone(), owner)
        });
        pd.add_user();
        let srq = Arc::new(Srq {
            pd: pd.clone(),
            num,
            xrc,
            state: Mutex::new(State {
                queue: RecvQueue::new(max_wr, max_sge.max(1)),
                limit: 0,
                starved: Vec::new(),
            }),
            polled,
            users: AtomicU32::new(0),
            acks: Acks::new(init.cookie),
            destroyed: AtomicBool::new(false),
        });
        device.add_srq(num, &srq);
        device.transport().bind_srq(&srq);
        Ok(srq)
    }

    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// The number by which XRC peers name it (`ibv_get_srq_num`).
    pub fn num(&self) -> u32 {
        self.num
    }

    pub fn xrcd(&self) -> Option<&Arc<Xrcd>> {
        self.xrc.as_ref().map(|(xrcd, _, _)| xrcd)
    }

    /// The CQ of an XRC SRQ.
    pub fn cq(&self) -> Option<&Arc<Cq>> {
        self.xrc.as_ref().map(|(_, cq, _)| cq)
    }

    pub fn cookie(&self) -> u64 {
        self.acks.cookie()
    }

    pub fn set_cookie(&self, cookie: u64) {
        self.acks.set_cookie(cookie);
    }

    /// EINVAL for too many pieces, ENOMEM when the queue is full.
    pub fn post_recv(&self, wr_id: u64, sges: &[Sge]) -> Result<()> {
        let starved = {
            let mut state = self.lock();
            let polled = self.polled.load(Ordering::Acquire);
            state.queue.post(polled, wr_id, sges)?;
            core::mem::take(&mut state.starved)
        };
        for qp in starved.iter().filter_map(Weak::upgrade) {
            // One that was reset or destroyed meanwhile has nothing to try again.
            if qp.state() != QpState::Reset {
                settled(|after| qp.transport().receives_posted(after));
            }
        }
        Ok(())
    }

    /// `mask` of [`sluice_verbs_model::types::srq_mask`].
    pub fn modify(&self, attr: &SrqAttr, mask: u32) -> Result<()> {
        if mask == 0 || mask & !(srq_mask::MAX_WR | srq_mask::LIMIT) != 0 {
            return Err(Error::BadMask);
        }
        let mut state = self.lock();
        let max_wr = match mask & srq_mask::MAX_WR {
            0 => state.queue.max_wr(),
            _ if attr.max_wr == 0 || attr.max_wr > QUEUE_MAX => {
                return Err(Error::BadCapability);
            }
            _ => attr.max_wr,
        };
        if mask & srq_mask::LIMIT != 0 && attr.srq_limit > max_wr {
            return Err(Error::BadValue);
        }
        if max_wr != state.queue.max_wr() {
            let polled = self.polled.load(Ordering::Acquire);
            state.queue = state.queue.resized(max_wr, polled)?;
        }
        if mask & srq_mask::LIMIT != 0 {
            state.limit = attr.srq_limit;
        }
        // Armed below what is there already: at once (IBTA 10.2.9.2).
        let reached = self.limit_reached(&mut state);
        drop(state);
        if reached {
            self.raise(EventType::SrqLimitReached);
        }
        Ok(())
    }

    pub fn query(&self) -> SrqAttr {
        let state = self.lock();
        SrqAttr {
            max_wr: state.queue.max_wr(),
            max_sge: state.queue.max_sge(),
            srq_limit: state.limit,
        }
    }

    pub fn ack_async_event(&self) {
        self.acks.acknowledge(1);
    }

    /// EBUSY while QPs use it.
    pub fn destroy(&self) -> Result<()> {
        if self.users.load(Ordering::Acquire) != 0 {
            return Err(Error::Busy);
        }
        if self.destroyed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let context = self.pd.context();
        context.device().remove_srq(self.num);
        context.device().transport().destroy_srq(self.num);
        if let Some((xrcd, cq, owner)) = &self.xrc {
            cq.detach(*owner);
            xrcd.users.fetch_sub(1, Ordering::AcqRel);
        }
        context.async_queue.purge_of(&self.acks);
        self.acks.wait();
        self.pd.drop_user();
        Ok(())
    }

    /// The oldest receive for a message to `qp`, given to `fill`; None, and the QP is
    /// remembered, when there is none.
    pub(crate) fn take<R>(&self, qp: &Qp, fill: impl FnOnce(u64, &[Sge]) -> R) -> Option<R> {
        let mut state = self.lock();
        let Some((wr_id, pieces)) = state.queue.take() else {
            let me = qp.weak();
            if !state.starved.iter().any(|known| known.ptr_eq(me)) {
                state.starved.push(me.clone());
            }
            return None;
        };
        let result = fill(wr_id, pieces);
        let reached = state.limit != 0 && self.limit_reached(&mut state);
        drop(state);
        if reached {
            self.raise(EventType::SrqLimitReached);
        }
        Some(result)
    }

    /// The place of an XRC SRQ in its CQ.
    pub(crate) fn cq_place(&self) -> Option<(&Arc<Cq>, u32)> {
        self.xrc.as_ref().map(|(_, cq, owner)| (cq, *owner))
    }

    fn limit_reached(&self, state: &mut State) -> bool {
        let reached = state.queue.waiting() < u64::from(state.limit);
        if reached {
            state.limit = 0;
        }
        reached
    }

    fn raise(&self, event: EventType) {
        let about = About::Srq(self.acks.clone());
        self.pd.context().async_queue.push((event, about));
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
