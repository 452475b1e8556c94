//! Completion queues.

#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

use sluice_verbs_model::error::{Error, Result};
use sluice_verbs_model::limits::CQES_MAX;
use sluice_verbs_model::types::{EventType, Wc, WcStatus};

use crate::aftermath::{Aftermath, with_aftermath};
use crate::channel::Channel;
use crate::domain::Opened;
use crate::events::{About, Acks};
use crate::locks::{Guard, lock};
use crate::moderator::Timed;
use crate::shared_ring::{Full, Ring};

/// A program that always finds completions still lets the transport work, once in so many polls:
/// peers must not starve because this side is busy.
const PROGRESS_EVERY: u32 = 64;

/// When a queue that is to become smaller stops waiting for datagrams, unless it waits already.
const LINGER_MAX: Duration = Duration::from_secs(1);

/// A transport's part of a completion queue.
pub trait CqTransport: Send + Sync {
    /// [`Cq::poll`] found nothing, or was called often and always found something: do what can
    /// be done now for the QPs of this CQ, without waiting. Called without any lock, by any
    /// number of threads at once.
    fn progress(&self, cq: &Cq, after: &mut Aftermath);

    /// Where the engine counts the armed CQs of the transport: as long as there is one, somebody must make
    /// progress without being polled.
    fn armed_queues(&self) -> Option<&Arc<ArmedQueues>> {
        None
    }

    /// The program armed the CQ, and it is counted: whoever is to make progress may sleep and must hear of it.
    /// Comes with a lock of the CQ held: no call into this CQ from there.
    fn armed(&self) {}

    fn destroy(&self) {}
}

/// How many completion queues of a transport wait for an event. The engine counts and the transport looks, so
/// that an event, which comes up in the middle of the transport's work, leads to no call into it.
#[derive(Debug, Default)]
pub struct ArmedQueues(AtomicU32);

impl ArmedQueues {
    pub fn count(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }

    fn one_more(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    fn one_less(&self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A queue pair of datagrams, as far as a queue of its completions knows it.
pub(crate) trait DatagramSender: Send + Sync {
    /// Whether its sends complete in the CQ of this number.
    fn completes_in(&self, cq: u32) -> bool;

    /// Gives datagrams that wait for a way to their receiver a moment to go.
    fn linger(&self);
}

/// A completion queue.
pub struct Cq {
    me: Weak<Cq>,
    opened: Arc<Opened>,
    channel: Option<Arc<Channel>>,
    transport: Box<dyn CqTransport>,
    /// Of the transport.
    armed_queues: Option<Arc<ArmedQueues>>,
    id: u32,
    ring: Ring<Entry>,
    /// Polls that found something.
    polls: AtomicU32,
    /// [`ARMED_NO`] or how it is armed, for those who put something. Changed by whoever has `notice`.
    armed: AtomicU32,
    notice: Mutex<Notice>,
    /// It has lost a completion.
    overrun: AtomicBool,
    /// Whose completions come here, while they are attached.
    owners: Mutex<Vec<Option<Arc<Credit>>>>,
    /// QPs and SRQs that use it.
    pub(crate) users: AtomicU32,
    channel_acks: Arc<Acks>,
    async_acks: Arc<Acks>,
    destroyed: AtomicBool,
}

/// The room that a queue has got back: completions of its requests that were polled.
pub(crate) struct Credit {
    /// Sends: the number of the first that is not polled.
    pub sends: AtomicU64,
    /// Receives that were polled.
    pub receives: AtomicU64,
    /// The QP's SRQ gets its room back from here.
    pub srq: Option<Arc<AtomicU64>>,
    /// The QP, if it is one of datagrams.
    pub datagrams: OnceLock<Weak<dyn DatagramSender>>,
}

impl Credit {
    pub fn new(srq: Option<Arc<AtomicU64>>) -> Arc<Credit> {
        Arc::new(Credit {
            sends: AtomicU64::new(0),
            receives: AtomicU64::new(0),
            srq,
            datagrams: OnceLock::new(),
        })
    }
}

/// What polling a completion gives back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Release {
    #[default]
    Nothing,
    /// Room of the send queue, up to this number.
    SendsTo(u64),
    Receive,
    SharedReceive,
}

/// A queue whose completions come to a CQ, from [`Cq::attach`] to [`Cq::detach`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owner {
    /// Its place in [`Cq::owners`].
    index: u32,
    /// What is there.
    credit: NonNull<Credit>,
}

// SAFETY: reached as a `&Credit` only, which threads may share.
unsafe impl Send for Owner {}
// SAFETY: a shared `Owner` gives out no more than a `&Credit`, which threads may share.
unsafe impl Sync for Owner {}

#[derive(Clone, Copy, Default)]
struct Entry {
    wc: Wc,
    owner: Option<Owner>,
    release: Release,
}

impl Owner {
    /// # Safety
    /// An entry of the owner's is in the ring, or is being taken out of it right now: `Cq::owners` has the
    /// credit until the owner is detached, which takes its entries out and waits for those who are polling one.
    unsafe fn credit<'a>(self) -> &'a Credit {
        // SAFETY: the caller's promise.
        unsafe { self.credit.as_ref() }
    }
}

const ARMED_NO: u32 = 0;
const ARMED_SOLICITED: u32 = 1;
const ARMED_ANY: u32 = 2;

/// When the program is to hear of completions.
struct Notice {
    /// Moderation: an event waits for so many completions, but not longer than that.
    wait_for: u16,
    wait: Duration,
    /// Completions that an event waits with.
    held_back: u16,
}

/// What a few polled completions give back.
#[derive(Default)]
struct Room {
    owner: Option<Owner>,
    sends_to: u64,
    receives: u64,
    shared: u64,
}

impl Room {
    #[inline]
    fn add(&mut self, entry: &Entry) {
        let index = |owner: Option<Owner>| owner.map(|owner| owner.index);
        if index(self.owner) != index(entry.owner) {
            self.give_back();
            self.owner = entry.owner;
        }
        match entry.release {
            Release::Nothing => {}
            Release::SendsTo(seq) => self.sends_to = self.sends_to.max(seq),
            Release::Receive => self.receives += 1,
            Release::SharedReceive => self.shared += 1,
        }
    }

    /// While the entries are being taken.
    #[inline]
    fn give_back(&mut self) {
        let Room {
            owner,
            sends_to,
            receives,
            shared,
        } = core::mem::take(self);
        let Some(owner) = owner else { return };
        // SAFETY: the entries that this was added from are being taken.
        let credit = unsafe { owner.credit() };
        if sends_to > 0 {
            // Who polls later completions may be faster.
            credit.sends.fetch_max(sends_to, Ordering::Release);
        }
        if receives > 0 {
            credit.receives.fetch_add(receives, Ordering::Release);
        }
        if shared > 0
            && let Some(srq) = &credit.srq
        {
            srq.fetch_add(shared, Ordering::Release);
        }
    }
}

/// A completion to be put, and what it brings with it.
pub(crate) struct Completion {
    pub wc: Wc,
    pub release: Release,
    pub solicited: bool,
}

/// The completion queue was full: the completion is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Overrun;

impl Cq {
    pub(crate) fn new(
        opened: &Arc<Opened>,
        entries: u32,
        cookie: u64,
        channel: Option<&Arc<Channel>>,
        make: impl FnOnce(u32) -> Result<Box<dyn CqTransport>>,
    ) -> Result<Arc<Cq>> {
        let entries = capacity(entries)?;
        if channel.is_some_and(|channel| !Arc::ptr_eq(channel.opened(), opened)) {
            return Err(Error::WrongObject);
        }
        let id = opened.adapter.cq_ids.take()?;
        let transport = match make(id) {
            Ok(transport) => transport,
            Err(error) => {
                opened.adapter.cq_ids.give_back(id);
                return Err(error);
            }
        };
        if let Some(channel) = channel {
            channel.users.fetch_add(1, Ordering::AcqRel);
        }
        Ok(Arc::new_cyclic(|me| Cq {
            me: me.clone(),
            opened: opened.clone(),
            channel: channel.cloned(),
            armed_queues: transport.armed_queues().cloned(),
            transport,
            id,
            ring: Ring::new(entries),
            polls: AtomicU32::new(0),
            armed: AtomicU32::new(ARMED_NO),
            notice: Mutex::new(Notice {
                wait_for: 1,
                wait: Duration::ZERO,
                held_back: 0,
            }),
            overrun: AtomicBool::new(false),
            owners: Mutex::default(),
            users: AtomicU32::new(0),
            channel_acks: Acks::new(cookie),
            async_acks: Acks::new(cookie),
            destroyed: AtomicBool::new(false),
        }))
    }

    pub(crate) fn opened(&self) -> &Arc<Opened> {
        &self.opened
    }

    pub fn channel(&self) -> Option<&Arc<Channel>> {
        self.channel.as_ref()
    }

    /// Small and unique among the CQs of the device that exist.
    pub fn id(&self) -> u32 {
        self.id
    }

    pub fn cookie(&self) -> u64 {
        self.async_acks.cookie()
    }

    pub fn set_cookie(&self, cookie: u64) {
        self.channel_acks.set_cookie(cookie);
        self.async_acks.set_cookie(cookie);
    }

    pub fn transport(&self) -> &dyn CqTransport {
        &*self.transport
    }

    pub fn entries(&self) -> u32 {
        self.ring.capacity() as u32
    }

    /// Takes completions, oldest first, and says how many. The first so many of `out` are
    /// written. Never blocks; asks the transport for progress when there is nothing.
    #[inline]
    pub fn poll(&self, out: &mut [MaybeUninit<Wc>]) -> usize {
        let mut places = out.iter_mut();
        let most = places.len();
        self.take(most, |wc| {
            if let Some(place) = places.next() {
                place.write(*wc);
            }
        })
    }

    #[inline]
    pub fn poll_one(&self) -> Option<Wc> {
        let mut found = None;
        self.take(1, |wc| found = Some(*wc));
        found
    }

    #[inline]
    fn take(&self, most: usize, mut each: impl FnMut(&Wc)) -> usize {
        if self.ring.is_empty() {
            with_aftermath(|after| self.transport.progress(self, after));
            if self.ring.is_empty() {
                return 0;
            }
        }
        let mut taken = 0;
        while taken < most {
            match self.take_some(most - taken, &mut each) {
                0 => break,
                some => taken += some,
            }
        }
        if taken > 0 {
            // Threads that poll the same queue may lose some, which does no harm.
            let polls = self.polls.load(Ordering::Relaxed).wrapping_add(1);
            self.polls.store(polls, Ordering::Relaxed);
            if polls.is_multiple_of(PROGRESS_EVERY) {
                with_aftermath(|after| self.transport.progress(self, after));
            }
        }
        taken
    }

    #[inline]
    fn take_some(&self, most: usize, each: &mut impl FnMut(&Wc)) -> usize {
        self.ring.take(
            most,
            &mut Room::default(),
            |room, entry| {
                each(&entry.wc);
                room.add(entry);
            },
            Room::give_back,
        )
    }

    /// Completions that wait to be polled.
    pub fn filled(&self) -> u32 {
        self.ring.len() as u32
    }

    /// The next completion (only a solicited or failed one, if so wished) makes one event on the
    /// channel. Asking for any after asking for solicited counts as any (IBTA 11.4.2.2).
    pub fn arm(&self, solicited_only: bool) -> Result<()> {
        let _notice = lock(&self.notice);
        let before = self.armed.load(Ordering::Relaxed);
        if !solicited_only {
            self.armed.store(ARMED_ANY, Ordering::SeqCst);
        } else if before == ARMED_NO {
            self.armed.store(ARMED_SOLICITED, Ordering::SeqCst);
        }
        if before == ARMED_NO {
            if let Some(all) = &self.armed_queues {
                all.one_more();
            }
            self.transport.armed();
        }
        // Whoever puts something looks behind that whether the queue is armed, and the program looks
        // behind this whether something is there: one of them finds the other.
        self.ring.wait_for_putters();
        Ok(())
    }

    pub fn is_armed(&self) -> bool {
        self.armed.load(Ordering::Acquire) != ARMED_NO
    }

    /// At least `entries`; EINVAL if more completions than that wait. Datagrams that were posted
    /// count as sent: where they wait for a way to their receiver, this call waits a moment too
    /// (`QpTransport::linger`) before it makes the queue smaller.
    pub fn resize(&self, entries: u32) -> Result<()> {
        let wanted = capacity(entries)?;
        if wanted < self.entries() as usize {
            let start = Instant::now();
            for qp in self.datagram_senders() {
                if start.elapsed() > LINGER_MAX {
                    break;
                }
                qp.linger();
            }
        }
        self.ring.alone(|all, len| {
            if all.len() > entries as usize {
                return Err(Error::BadValue);
            }
            *len = wanted;
            Ok(())
        })
    }

    fn datagram_senders(&self) -> Vec<Arc<dyn DatagramSender>> {
        let mut qps: Vec<Arc<dyn DatagramSender>> = {
            let owners = lock(&self.owners);
            let credits = owners.iter().flatten();
            credits
                .filter_map(|credit| credit.datagrams.get()?.upgrade())
                .collect()
        };
        // Without the lock: letting go of a QP may be its end, which comes back here.
        qps.retain(|qp| qp.completes_in(self.id));
        qps
    }

    /// `ibv_modify_cq`: an event waits for `count` completions, but not longer than `period_us`
    /// microseconds after the first. With a count of 0 or 1, or a period of 0, it comes at once.
    pub fn moderate(&self, count: u16, period_us: u16) -> Result<()> {
        let mut notice = lock(&self.notice);
        notice.wait_for = count;
        notice.wait = Duration::from_micros(period_us.into());
        Ok(())
    }

    /// The program is done with so many events from the channel.
    pub fn ack_events(&self, count: u32) {
        self.channel_acks.acknowledge(u64::from(count));
    }

    pub fn ack_async_event(&self) {
        self.async_acks.acknowledge(1);
    }

    /// EBUSY while QPs or SRQs use it. Waits until all its events are acknowledged.
    pub fn destroy(&self) -> Result<()> {
        if self.users.load(Ordering::Acquire) != 0 {
            return Err(Error::Busy);
        }
        if self.destroyed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        {
            let _notice = lock(&self.notice);
            self.disarm();
        }
        self.transport.destroy();
        if let Some(channel) = &self.channel {
            channel.queue.purge_of(&self.channel_acks);
            channel.users.fetch_sub(1, Ordering::AcqRel);
        }
        self.opened.async_queue.purge_of(&self.async_acks);
        self.channel_acks.wait();
        self.async_acks.wait();
        self.opened.adapter.cq_ids.give_back(self.id);
        Ok(())
    }

    /// A queue whose completions come here, until it is detached.
    pub(crate) fn attach(&self, credit: &Arc<Credit>) -> Owner {
        self.users.fetch_add(1, Ordering::AcqRel);
        let mut owners = lock(&self.owners);
        let free = owners.iter().position(Option::is_none);
        let index = free.unwrap_or_else(|| {
            owners.push(None);
            owners.len() - 1
        });
        owners[index] = Some(credit.clone());
        Owner {
            index: index as u32,
            credit: NonNull::from(&**credit),
        }
    }

    /// The queue is gone, and what it completed and nobody polled with it. It completes nothing any more.
    pub(crate) fn detach(&self, owner: Owner) {
        self.purge(owner);
        lock(&self.owners)[owner.index as usize] = None;
        self.users.fetch_sub(1, Ordering::AcqRel);
    }

    /// Takes an owner's completions out of the queue.
    pub(crate) fn purge(&self, owner: Owner) {
        self.ring.alone(|all, _| {
            all.retain(|entry| {
                let stays = entry.owner.is_none_or(|own| own.index != owner.index);
                // A receive of an SRQ gives its room back, whoever took it.
                if !stays && entry.release == Release::SharedReceive {
                    let mut room = Room::default();
                    room.add(entry);
                    room.give_back();
                }
                stays
            });
        });
    }

    /// Puts a completion, and wakes who asked to be woken.
    #[inline]
    pub(crate) fn push(&self, owner: Owner, completion: &Completion) -> Result<(), Overrun> {
        let put = self.ring.put(|| Entry {
            wc: completion.wc,
            owner: Some(owner),
            release: completion.release,
        });
        if put == Err(Full) {
            self.overrun();
            return Err(Overrun);
        }
        if self.armed.load(Ordering::Acquire) != ARMED_NO {
            self.notify(completion);
        }
        Ok(())
    }

    #[cold]
    fn notify(&self, completion: &Completion) {
        let mut notice = lock(&self.notice);
        let failed = completion.wc.status != WcStatus::Success as u32;
        match self.armed.load(Ordering::Relaxed) {
            ARMED_NO => return,
            ARMED_SOLICITED if !completion.solicited && !failed => return,
            _ => {}
        }
        notice.held_back = notice.held_back.saturating_add(1);
        if notice.held_back < notice.wait_for && !notice.wait.is_zero() {
            let moderator = &self.opened.adapter.moderator;
            if notice.held_back > 1 || moderator.schedule(notice.wait, self.me.clone()) {
                return;
            }
        }
        self.fire(notice);
    }

    /// By who has `notice`.
    fn disarm(&self) {
        if self.armed.swap(ARMED_NO, Ordering::SeqCst) != ARMED_NO
            && let Some(all) = &self.armed_queues
        {
            all.one_less();
        }
    }

    fn fire(&self, mut notice: Guard<'_, Notice>) {
        self.disarm();
        notice.held_back = 0;
        drop(notice);
        if let Some(channel) = &self.channel {
            channel.queue.push(self.channel_acks.clone());
        }
    }

    /// IBTA 11.6.3.2: an asynchronous error of the CQ; the QP whose completion is lost breaks.
    #[cold]
    fn overrun(&self) {
        if !self.overrun.swap(true, Ordering::Relaxed) {
            let about = About::Cq(self.async_acks.clone());
            self.opened.async_queue.push((EventType::CqErr, about));
        }
    }
}

impl Timed for Cq {
    /// The moderation's time is over. An earlier event may have been for these completions
    /// already; one event too early does no harm.
    fn period_over(&self) {
        let notice = lock(&self.notice);
        if self.armed.load(Ordering::Relaxed) != ARMED_NO && notice.held_back > 0 {
            self.fire(notice);
        }
    }
}

fn capacity(entries: u32) -> Result<usize> {
    if entries == 0 || entries > CQES_MAX {
        return Err(Error::BadCapability);
    }
    Ok(entries.next_power_of_two() as usize)
}
