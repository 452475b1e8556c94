//! Shared receive queues.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock, Weak};

use sluice_verbs_model::error::{Error, Result};
use sluice_verbs_model::limits::{MAX_SGE, QUEUE_MAX};
use sluice_verbs_model::types::{EventType, Sge, SrqAttr, srq_mask};

use crate::cq::{Cq, Credit, Owner};
use crate::domain::Domain;
use crate::events::{About, Acks};
use crate::locks::{Guard, lock, read, write};
use crate::rq::RecvQueue;
use crate::xrcd::Xrcd;

/// A queue pair that found no receive.
pub(crate) trait Starved: Send + Sync {
    fn receives_posted(&self);
}

/// The SRQs of a device by their numbers, for messages that name them.
#[derive(Default)]
pub(crate) struct Srqs(RwLock<HashMap<u32, Weak<Srq>>>);

impl Srqs {
    fn add(&self, srq: &Arc<Srq>) {
        let mut srqs = write(&self.0);
        srqs.insert(srq.num, Arc::downgrade(srq));
    }

    fn remove(&self, srqn: u32) {
        let mut srqs = write(&self.0);
        srqs.remove(&srqn);
    }

    pub fn get(&self, srqn: u32) -> Option<Arc<Srq>> {
        let srqs = read(&self.0);
        srqs.get(&srqn)?.upgrade()
    }
}

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
    domain: Arc<Domain>,
    all: Arc<Srqs>,
    num: u32,
    /// Of an XRC SRQ: domain, CQ, and its place there.
    xrc: Option<(Arc<Xrcd>, Arc<Cq>, Owner)>,
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
    starved: Vec<Weak<dyn Starved>>,
}

impl Srq {
    /// `make` asks the transport for a number.
    pub(crate) fn create(
        domain: &Arc<Domain>,
        all: &Arc<Srqs>,
        init: &SrqInit,
        make: impl FnOnce(bool) -> Result<u32>,
    ) -> Result<Arc<Srq>> {
        let SrqAttr {
            max_wr, max_sge, ..
        } = init.attr;
        if max_wr == 0 || max_wr > QUEUE_MAX || max_sge as usize > MAX_SGE {
            return Err(Error::BadCapability);
        }
        let caps = domain.adapter().medium.caps();
        let xrc = match (&init.xrcd, &init.cq) {
            (None, None) => None,
            (Some(_), Some(_)) if !caps.xrc => return Err(Error::NotSupported),
            (Some(xrcd), Some(cq)) => Some((xrcd, cq)),
            _ => return Err(Error::WrongObject),
        };
        let num = make(xrc.is_some())?;
        let polled = Arc::new(AtomicU64::new(0));
        let xrc = xrc.map(|(xrcd, cq)| {
            let owner = cq.attach(&Credit::new(Some(polled.clone())));
            xrcd.users.fetch_add(1, Ordering::AcqRel);
            (xrcd.clone(), cq.clone(), owner)
        });
        domain.add_user();
        let srq = Arc::new(Srq {
            domain: domain.clone(),
            all: all.clone(),
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
        all.add(&srq);
        Ok(srq)
    }

    pub(crate) fn domain(&self) -> &Arc<Domain> {
        &self.domain
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
            qp.receives_posted();
        }
        Ok(())
    }

    /// `mask` of [`crate::types::srq_mask`].
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
        self.all.remove(self.num);
        self.domain.adapter().medium.destroy_srq(self.num);
        if let Some((xrcd, cq, owner)) = &self.xrc {
            cq.detach(*owner);
            xrcd.users.fetch_sub(1, Ordering::AcqRel);
        }
        self.domain.opened.async_queue.purge_of(&self.acks);
        self.acks.wait();
        self.domain.drop_user();
        Ok(())
    }

    /// The oldest receive for a message to `qp`, given to `fill`; None, and the QP is
    /// remembered, when there is none.
    pub(crate) fn take<R>(
        &self,
        qp: impl FnOnce() -> Weak<dyn Starved>,
        fill: impl FnOnce(u64, &[Sge]) -> R,
    ) -> Option<R> {
        let mut state = self.lock();
        let Some((wr_id, pieces)) = state.queue.take() else {
            let qp = qp();
            if !state.starved.iter().any(|known| known.ptr_eq(&qp)) {
                state.starved.push(qp);
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
    pub(crate) fn cq_place(&self) -> Option<(&Arc<Cq>, Owner)> {
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
        self.domain.opened.async_queue.push((event, about));
    }

    fn lock(&self) -> Guard<'_, State> {
        lock(&self.state)
    }
}
