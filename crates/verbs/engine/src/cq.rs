//! Completion queues.

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use sluice_verbs_model::error::{Error, Result};
use sluice_verbs_model::limits::CQES_MAX;
use sluice_verbs_model::types::{EventType, Wc, WcStatus};

use crate::aftermath::{Aftermath, settled};
use crate::channel::Channel;
use crate::domain::Opened;
use crate::events::{About, Acks};
use crate::moderator::Timed;

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

    /// The program armed the CQ: from now on somebody must make progress for it without being
    /// polled, until [`CqTransport::disarmed`]. Both come with the CQ's lock held, so that they
    /// are in order: no call into this CQ from there.
    fn armed(&self) {}

    /// The event that it was armed for has happened.
    fn disarmed(&self) {}

    fn destroy(&self) {}
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
    id: u32,
    ring: Mutex<Ring>,
    /// Completions in the ring, for those who look without the lock.
    filled: AtomicU32,
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

#[derive(Clone, Copy, Default)]
struct Entry {
    wc: Wc,
    /// Index in [`Ring::owners`].
    owner: u32,
    release: Release,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Armed {
    No,
    Solicited,
    Any,
}

struct Ring {
    entries: Box<[Entry]>,
    /// Counts completions ever taken and ever put; the place is the count modulo the length,
    /// which is a power of two.
    head: u64,
    tail: u64,
    owners: Vec<Option<Arc<Credit>>>,
    armed: Armed,
    /// Moderation: an event waits for so many completions, but not longer than that.
    wait_for: u16,
    wait: Duration,
    /// Completions that an event waits with.
    held_back: u16,
    overrun: bool,
    /// Polls that found something.
    polls: u32,
}

impl Ring {
    fn len(&self) -> usize {
        (self.tail - self.head) as usize
    }

    fn at(&self, count: u64) -> usize {
        count as usize & (self.entries.len() - 1)
    }

    #[inline]
    fn pop(&mut self) -> Option<Wc> {
        if self.head == self.tail {
            return None;
        }
        let entry = &self.entries[self.at(self.head)];
        let wc = entry.wc;
        self.give_back(entry.owner, entry.release);
        self.head += 1;
        Some(wc)
    }

    #[inline]
    fn give_back(&self, owner: u32, release: Release) {
        let Some(Some(credit)) = self.owners.get(owner as usize) else {
            return;
        };
        match release {
            Release::Nothing => {}
            Release::SendsTo(seq) => credit.sends.store(seq, Ordering::Release),
            // Only under this ring's lock, so no other writer.
            Release::Receive => {
                let polled = credit.receives.load(Ordering::Relaxed);
                credit.receives.store(polled + 1, Ordering::Release);
            }
            Release::SharedReceive => {
                if let Some(srq) = &credit.srq {
                    srq.fetch_add(1, Ordering::Release);
                }
            }
        }
    }
}

/// A completion to be put, and what it brings with it.
pub(crate) struct Completion {
    pub wc: Wc,
    pub owner: u32,
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
            transport,
            id,
            ring: Mutex::new(Ring {
                entries: vec![Entry::default(); entries].into_boxed_slice(),
                head: 0,
                tail: 0,
                owners: Vec::new(),
                armed: Armed::No,
                wait_for: 1,
                wait: Duration::ZERO,
                held_back: 0,
                overrun: false,
                polls: 0,
            }),
            filled: AtomicU32::new(0),
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
        self.lock().entries.len() as u32
    }

    /// Takes completions, oldest first, and says how many. The first so many of `out` are
    /// written. Never blocks; asks the transport for progress when there is nothing.
    #[inline]
    pub fn poll(&self, out: &mut [MaybeUninit<Wc>]) -> usize {
        let mut taken = 0;
        self.take(|ring| {
            for place in out {
                let Some(wc) = ring.pop() else { break };
                place.write(wc);
                taken += 1;
            }
        });
        taken
    }

    #[inline]
    pub fn poll_one(&self) -> Option<Wc> {
        let mut wc = None;
        self.take(|ring| wc = ring.pop());
        wc
    }

    #[inline]
    fn take(&self, from: impl FnOnce(&mut Ring)) {
        if self.filled.load(Ordering::Acquire) == 0 {
            settled(|after| self.transport.progress(self, after));
            if self.filled.load(Ordering::Acquire) == 0 {
                return;
            }
        }
        let mut ring = self.lock();
        from(&mut ring);
        self.filled.store(ring.len() as u32, Ordering::Release);
        ring.polls = ring.polls.wrapping_add(1);
        let busy = ring.polls.is_multiple_of(PROGRESS_EVERY);
        drop(ring);
        if busy {
            settled(|after| self.transport.progress(self, after));
        }
    }

    /// Completions that wait to be polled.
    pub fn filled(&self) -> u32 {
        self.filled.load(Ordering::Acquire)
    }

    /// The next completion (only a solicited or failed one, if so wished) makes one event on the
    /// channel. Asking for any after asking for solicited counts as any (IBTA 11.4.2.2).
    pub fn arm(&self, solicited_only: bool) -> Result<()> {
        let mut ring = self.lock();
        let before = ring.armed;
        if !solicited_only {
            ring.armed = Armed::Any;
        } else if before == Armed::No {
            ring.armed = Armed::Solicited;
        }
        // Under the lock: the transport hears of arming and event in their order.
        if before == Armed::No {
            self.transport.armed();
        }
        Ok(())
    }

    pub fn is_armed(&self) -> bool {
        self.lock().armed != Armed::No
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
        let mut ring = self.lock();
        if ring.len() > entries as usize {
            return Err(Error::BadValue);
        }
        let mut moved = vec![Entry::default(); wanted].into_boxed_slice();
        for count in ring.head..ring.tail {
            moved[count as usize & (wanted - 1)] = ring.entries[ring.at(count)];
        }
        ring.entries = moved;
        Ok(())
    }

    fn datagram_senders(&self) -> Vec<Arc<dyn DatagramSender>> {
        let mut qps: Vec<Arc<dyn DatagramSender>> = {
            let ring = self.lock();
            let credits = ring.owners.iter().flatten();
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
        let mut ring = self.lock();
        ring.wait_for = count;
        ring.wait = Duration::from_micros(period_us.into());
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
        let armed = core::mem::replace(&mut self.lock().armed, Armed::No);
        if armed != Armed::No {
            self.transport.disarmed();
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

    /// A queue whose completions come here.
    pub(crate) fn attach(&self, credit: &Arc<Credit>) -> u32 {
        self.users.fetch_add(1, Ordering::AcqRel);
        let mut ring = self.lock();
        let free = ring.owners.iter().position(Option::is_none);
        let index = free.unwrap_or_else(|| {
            ring.owners.push(None);
            ring.owners.len() - 1
        });
        ring.owners[index] = Some(credit.clone());
        index as u32
    }

    /// The queue is gone, and what it completed and nobody polled with it.
    pub(crate) fn detach(&self, owner: u32) {
        self.purge(owner);
        self.lock().owners[owner as usize] = None;
        self.users.fetch_sub(1, Ordering::AcqRel);
    }

    /// Takes an owner's completions out of the queue.
    pub(crate) fn purge(&self, owner: u32) {
        let mut ring = self.lock();
        let mut to = ring.head;
        for from in ring.head..ring.tail {
            let entry = ring.entries[ring.at(from)];
            if entry.owner == owner {
                // A receive of an SRQ gives its room back, whoever took it.
                if entry.release == Release::SharedReceive {
                    ring.give_back(owner, entry.release);
                }
            } else {
                let place = ring.at(to);
                ring.entries[place] = entry;
                to += 1;
            }
        }
        ring.tail = to;
        self.filled.store(ring.len() as u32, Ordering::Release);
    }

    /// Puts a completion, and wakes who asked to be woken.
    #[inline]
    pub(crate) fn push(&self, completion: &Completion) -> Result<(), Overrun> {
        let mut ring = self.lock();
        if ring.len() == ring.entries.len() {
            self.overrun(ring);
            return Err(Overrun);
        }
        let place = ring.at(ring.tail);
        ring.entries[place] = Entry {
            wc: completion.wc,
            owner: completion.owner,
            release: completion.release,
        };
        ring.tail += 1;
        self.filled.store(ring.len() as u32, Ordering::Release);
        if ring.armed != Armed::No {
            self.notify(ring, completion);
        }
        Ok(())
    }

    #[cold]
    fn notify(&self, mut ring: MutexGuard<'_, Ring>, completion: &Completion) {
        let failed = completion.wc.status != WcStatus::Success as u32;
        if ring.armed == Armed::Solicited && !completion.solicited && !failed {
            return;
        }
        ring.held_back = ring.held_back.saturating_add(1);
        if ring.held_back < ring.wait_for && !ring.wait.is_zero() {
            let moderator = &self.opened.adapter.moderator;
            if ring.held_back > 1 || moderator.schedule(ring.wait, self.me.clone()) {
                return;
            }
        }
        self.fire(ring);
    }

    fn fire(&self, mut ring: MutexGuard<'_, Ring>) {
        ring.armed = Armed::No;
        ring.held_back = 0;
        self.transport.disarmed();
        drop(ring);
        if let Some(channel) = &self.channel {
            channel.queue.push(self.channel_acks.clone());
        }
    }

    /// IBTA 11.6.3.2: an asynchronous error of the CQ; the QP whose completion is lost breaks.
    #[cold]
    fn overrun(&self, mut ring: MutexGuard<'_, Ring>) {
        if !core::mem::replace(&mut ring.overrun, true) {
            drop(ring);
            let about = About::Cq(self.async_acks.clone());
            self.opened.async_queue.push((EventType::CqErr, about));
        }
    }

    #[inline]
    fn lock(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Timed for Cq {
    /// The moderation's time is over. An earlier event may have been for these completions
    /// already; one event too early does no harm.
    fn period_over(&self) {
        let ring = self.lock();
        if ring.armed != Armed::No && ring.held_back > 0 {
            self.fire(ring);
        }
    }
}

fn capacity(entries: u32) -> Result<usize> {
    if entries == 0 || entries > CQES_MAX {
        return Err(Error::BadCapability);
    }
    Ok(entries.next_power_of_two() as usize)
}
