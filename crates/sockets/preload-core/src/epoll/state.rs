//! What an epoll instance knows: registrations, their queue, the lanes it watches, and where its
//! sleep is announced.
#![allow(unsafe_code)]

use super::granted::{CHECKED, Granted};
use super::item::{Glance, Item, KERNEL_INTEREST, Kind};
use super::unlocked::Unlocked;
use super::writers::Writers;
use crate::conn::Conn;
use crate::real::{errno, real, set_errno};
use core::ffi::c_int;
use sluice_lane::clock::now_ns;
use sluice_lane::reason::Reason;
use sluice_shmem::chunk::Chunk;
use sluice_shmem::direction::Direction;
use sluice_shmem::geometry::LANES_MAX;
use sluice_shmem::handover::{announce_watcher, withdraw_watcher};
use sluice_shmem::parking::ParkingTable;
use std::collections::VecDeque;

mod slots;

/// Upper half of the data of a registration of ours. No user-space pointer and no small
/// integer looks like this.
const TAG: u64 = 0xd15c_51e7_0000_0000;
const TAG_MASK: u64 = 0xffff_ffff_0000_0000;

/// For how long a number is not given again that the kernel may still report for who is gone. sluiced
/// has a socket that it was given for milliseconds.
const RETIREMENT_NS: u64 = 60_000_000_000;

/// The lanes of one chunk that an instance watches, at least one. The instance takes the bits of
/// its ready line, so this goes with the last lane: another peer's chunk may come to lie at the
/// same address, and there the same line may be the peer's.
struct Watched {
    chunk: Chunk,
    side: u32,
    parking: ParkingTable,
    /// Of this instance, on `parking`.
    slot: u32,
    /// Lanes with an item.
    count: u32,
    /// The peer is on another host and sees none of this host's parking tables: who sleeps on the instance is
    /// counted in each lane itself.
    direct: bool,
    /// Item number plus one, for each lane; 0 for none.
    items: Box<[u32; LANES_MAX as usize]>,
}

impl Watched {
    /// The lanes, and the number of each one's item.
    fn lanes(&self) -> impl Iterator<Item = (u32, u32)> {
        let numbers = self.items.iter().enumerate();
        let used = numbers.filter_map(|(lane, item)| Some((lane as u32, item.checked_sub(1)?)));
        // So many, and no more, are there to be found.
        used.take(self.count as usize)
    }

    /// The lanes in which this instance's sleep is announced.
    fn direct_lanes(&self) -> impl Iterator<Item = Direction> {
        let used = self.direct.then(|| self.lanes()).into_iter().flatten();
        used.map(|(lane, _)| self.receiving(lane))
    }

    /// The direction that this side receives.
    fn receiving(&self, lane: u32) -> Direction {
        self.chunk.direction(lane, 1 - self.side)
    }
}

/// What an instance knows.
#[derive(Default)]
pub(crate) struct State {
    items: Vec<Option<Item>>,
    free: Vec<u32>,
    /// Item number plus one, by descriptor; 0 for none.
    by_fd: Vec<u32>,
    /// Items to look at.
    pub queue: VecDeque<u32>,
    granted: Granted,
    /// Where sleep is announced.
    slots: Vec<(ParkingTable, u32)>,
    watched: Vec<Watched>,
    /// The slots, and with them the bits by which lanes know who watches them, belong to the process that forked
    /// this one. They are not touched; [`State::take_slots`] gets slots of this process's own.
    is_foreign: bool,
    /// Threads in the kernel's wait, on this instance or one that it is in or was in when they
    /// went to sleep. Every slot counts exactly these.
    pub asleep: u32,
    /// Instances that came into this one under its sleepers, who do not know of them, and how many
    /// sleepers were counted on each. The last sleeper to leave takes that back.
    joined: Vec<(u32, u32)>,
    /// Items that are instances.
    pub children: Vec<u32>,
    /// Calls that have taken reports.
    calls: u64,
    pub writers: Writers,
    /// Items that `by_fd` does not know, because the descriptor they were added by is closed.
    renamed: u32,
    /// Numbers of such that had our tag and are gone, and when; the oldest first. While another process
    /// has the socket the kernel goes on to report them.
    retired: VecDeque<(u64, u32)>,
    /// How often one-shot registrations were armed, see [`super::oneshot`].
    pub armings: u32,
}

impl State {
    /// Nothing registered yet.
    pub const fn new() -> Self {
        Self {
            items: Vec::new(),
            free: Vec::new(),
            by_fd: Vec::new(),
            queue: VecDeque::new(),
            granted: Granted::new(),
            slots: Vec::new(),
            watched: Vec::new(),
            is_foreign: false,
            asleep: 0,
            joined: Vec::new(),
            children: Vec::new(),
            calls: 0,
            writers: Writers::new(),
            renamed: 0,
            retired: VecDeque::new(),
            armings: 0,
        }
    }

    /// From here on every sleep is announced, as well as those that last.
    pub fn start_to_heed_rings(&mut self, this: &Unlocked) {
        if this.start_to_heed_rings() {
            self.count_plain_sleepers(this);
        }
    }

    /// Counts threads that sleep and have told nobody.
    #[inline]
    pub fn count_plain_sleepers(&mut self, this: &Unlocked) {
        for _ in 0..this.take_plain_sleepers() {
            self.announce_sleep();
        }
    }

    /// A number for a call that takes reports, never 0: it takes one of an item at most.
    pub fn next_call(&mut self) -> u64 {
        self.calls += 1;
        self.calls
    }

    /// The instance is closed. Whoever sleeps on it still takes its announcement back, when
    /// another instance may have this place.
    pub fn close(&mut self) {
        self.give_slots_back();
        *self = Self {
            asleep: self.asleep,
            joined: core::mem::take(&mut self.joined),
            ..Self::new()
        };
    }

    /// An item of the descriptor, be it registered by it or renamed to it.
    pub fn any_number(&self, fd: i32) -> Option<u32> {
        let renamed = |item: &Option<Item>| item.as_ref().is_some_and(|item| item.fd == fd);
        match self.number(fd) {
            None if self.renamed > 0 => {
                let number = self.items.iter().position(renamed)?;
                Some(number as u32)
            }
            number => number,
        }
    }

    /// The item's connection goes on under the name `twin`. The kernel, and epoll_ctl, know the
    /// registration by the closed number still (epoll(7), questions and answers, 6).
    pub fn rename(&mut self, this: &Unlocked, number: u32, twin: i32) {
        // What stands under our tag is ours to report, with or without a lane.
        self.start_to_heed_rings(this);
        let Some(item) = self.item(number) else {
            return;
        };
        let (fd, is_attached) = (item.fd, item.is_attached());
        item.fd = twin;
        if self.number(fd) == Some(number) {
            self.by_fd[fd as usize] = 0;
            self.renamed += 1;
        }
        if !is_attached && let Some(conn) = crate::conn::get(fd) {
            // A lane that comes later would not find whom to wake.
            conn.pin(Reason::KernelCall);
        }
    }

    /// The item of the descriptor that the kernel knows by this number.
    pub fn number(&self, fd: i32) -> Option<u32> {
        self.by_fd.get(fd as u32 as usize)?.checked_sub(1)
    }

    /// The item with this number.
    pub fn item(&mut self, number: u32) -> Option<&mut Item> {
        self.items.get_mut(number as usize)?.as_mut()
    }

    /// The registrations of sockets, and their descriptors.
    pub fn sockets(&self) -> Vec<(u32, i32)> {
        let all = self.items.iter().enumerate();
        all.filter_map(|(number, item)| item.as_ref().map(|item| (number, item)))
            .filter(|(_, item)| item.kind == Kind::Socket)
            .map(|(number, item)| (number as u32, item.fd))
            .collect()
    }

    /// Has the item looked at in the next round.
    pub fn enqueue(&mut self, number: u32) {
        if let Some(item) = self.item(number)
            && !item.is_queued
        {
            item.is_queued = true;
            self.queue.push_back(number);
        }
    }

    /// A new registration.
    pub fn add(&mut self, this: &Unlocked, item: Item) {
        let fd = item.fd as usize;
        let kind = item.kind;
        let number = self.next_number();
        let _ = self.free.pop();
        match self.items.get_mut(number as usize) {
            Some(place) => *place = Some(item),
            None => self.items.push(Some(item)),
        }
        if self.by_fd.len() <= fd {
            self.by_fd.resize(fd + 1, 0);
        }
        self.by_fd[fd] = number + 1;
        if let Kind::Instance(_) = kind {
            self.start_to_heed_rings(this);
            self.children.push(number);
        }
        this.set_item_count(1);
        // A socket is looked at once it has a lane: `watch_attached`.
        if kind != Kind::Socket {
            self.enqueue(number);
        }
    }

    /// `EPOLL_CTL_ADD` and `EPOLL_CTL_MOD` of a connection that the kernel knows by our tag.
    pub fn change_tagged(
        &mut self,
        epfd: c_int,
        number: u32,
        op: c_int,
        event: libc::epoll_event,
    ) -> c_int {
        let Some(item) = self.item(number) else {
            return -1;
        };
        let exclusive = event.events & libc::EPOLLEXCLUSIVE as u32 != 0;
        let error = match op {
            libc::EPOLL_CTL_ADD if !item.is_removed => libc::EEXIST,
            libc::EPOLL_CTL_MOD if item.is_removed => libc::ENOENT,
            libc::EPOLL_CTL_MOD if exclusive => libc::EINVAL,
            libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD => 0,
            _ => libc::EINVAL,
        };
        if error != 0 {
            set_errno(error);
            return -1;
        }
        item.is_removed = false;
        item.modify(event.events, event.u64);
        let fd = item.fd;
        self.enqueue(number);
        if self.asleep > 0 {
            // Whoever sleeps has to look at it.
            tag(epfd, libc::EPOLL_CTL_MOD, fd, number);
        }
        0
    }

    /// `EPOLL_CTL_DEL` of such a connection.
    pub fn remove_tagged(&mut self, number: u32) -> c_int {
        match self.item(number) {
            Some(item) if !item.is_removed => {
                item.is_removed = true;
                0
            }
            _ => {
                set_errno(libc::ENOENT);
                -1
            }
        }
    }

    /// Forgets what is registered by this number, if anything.
    pub fn remove(&mut self, this: &Unlocked, fd: i32) {
        if let Some(number) = self.number(fd) {
            self.forget(this, number);
        }
    }

    /// Forgets a registration, and gives its number to another one.
    pub fn forget(&mut self, this: &Unlocked, number: u32) {
        self.unwatch(number);
        let Some(item) = self.items[number as usize].take() else {
            return;
        };
        let is_renamed = self.number(item.fd) != Some(number);
        if is_renamed {
            self.renamed = self.renamed.saturating_sub(1);
        } else {
            self.by_fd[item.fd as usize] = 0;
        }
        if item.is_queued {
            self.queue.retain(|queued| *queued != number);
        }
        if item.is_granted {
            self.granted.forget(number);
        }
        if item.kind != Kind::Socket {
            self.children.retain(|child| *child != number);
        }
        if is_renamed && item.is_tagged {
            self.retired.push_back((now_ns(), number));
        } else {
            self.free.push(number);
        }
        this.set_item_count(-1);
    }

    /// The number that the next registration gets.
    pub fn next_number(&mut self) -> u32 {
        // One that was retired long ago is free again.
        if self.free.is_empty()
            && let Some((since_ns, number)) = self.retired.front()
            && now_ns().saturating_sub(*since_ns) >= RETIREMENT_NS
        {
            self.free.push(*number);
            self.retired.pop_front();
        }
        self.free.last().copied().unwrap_or(self.items.len() as u32)
    }

    fn unwatch(&mut self, number: u32) {
        let Some((chunk, lane)) = self.item(number).and_then(|item| item.lane.take()) else {
            return;
        };
        let place = lane as usize % LANES_MAX as usize;
        for watched in &mut self.watched {
            if watched.chunk.address() == chunk && watched.items[place] == number + 1 {
                watched.items[place] = 0;
                watched.count -= 1;
                if self.is_foreign {
                    continue;
                }
                let into = watched.receiving(lane);
                into.unwatch(watched.slot);
                for _ in 0..if watched.direct { self.asleep } else { 0 } {
                    withdraw_watcher(&into);
                }
            }
        }
        self.watched.retain(|watched| watched.count > 0);
    }

    /// The slot that announces this instance's sleep on `parking`.
    pub fn slot(&mut self, this: &Unlocked, parking: &ParkingTable) -> Option<u32> {
        if let Some((_, slot)) = self.slots.iter().find(|(known, _)| known == parking) {
            return Some(*slot);
        }
        self.start_to_heed_rings(this);
        let slot = parking.take_slot()?;
        for _ in 0..self.asleep {
            parking.announce_sleep(slot);
        }
        self.slots.push((*parking, slot));
        Some(slot)
    }

    /// Watches the lane of a connection that is registered here, if it has one to be used.
    pub fn watch_attached(&mut self, this: &Unlocked, conn: &Conn) {
        if !conn.end.has_usable_lane() {
            return;
        }
        let (Some(number), Some(own_parking)) = (self.number(conn.fd), conn.end.own_parking())
        else {
            return;
        };
        let (Some(slot), Some(place)) = (self.slot(this, &own_parking), conn.end.place()) else {
            conn.pin(Reason::TooManyWatchers);
            return;
        };
        let lane = (place.chunk.address(), place.lane);
        if self
            .item(number)
            .is_some_and(|item| item.lane != Some(lane))
        {
            // The lane it had before was never used.
            self.unwatch(number);
        }
        let index = match self.watched.iter().position(|watched| {
            watched.chunk.address() == place.chunk.address()
                && watched.side == place.side
                && watched.slot == slot
        }) {
            Some(index) => index,
            None => {
                self.watched.push(Watched {
                    chunk: place.chunk,
                    side: place.side,
                    parking: own_parking,
                    slot,
                    count: 0,
                    direct: conn.end.is_direct(),
                    items: Box::new([0; LANES_MAX as usize]),
                });
                self.watched.len() - 1
            }
        };
        let watched = &mut self.watched[index];
        let holder = &mut watched.items[place.lane as usize % LANES_MAX as usize];
        if ![0, number + 1].contains(holder) {
            // Registered here by another name, too. A sender names the lane, and one of them.
            conn.pin(Reason::TooManyWatchers);
            return;
        }
        let is_new = *holder == 0;
        *holder = number + 1;
        watched.count += u32::from(is_new);
        let into = watched.receiving(place.lane);
        for _ in 0..if is_new && watched.direct {
            self.asleep
        } else {
            0
        } {
            announce_watcher(&into);
        }
        into.watch(slot);
        if let Some(item) = self.item(number) {
            item.watch(lane);
        }
        self.enqueue(number);
    }

    /// Whether any connection here has a lane, or had one that the kernel alone cannot report.
    pub fn has_lanes(&self) -> bool {
        !self.watched.is_empty() || !self.children.is_empty() || self.renamed > 0
    }

    /// Whether a sender has named an item since [`State::collect`].
    pub fn is_anyone_named(&self) -> bool {
        let is_named = |it: &Watched| it.chunk.ready(it.side, it.slot).any();
        self.watched.iter().any(is_named)
    }

    /// Queues the items that senders named.
    pub fn collect(&mut self) {
        let State {
            watched,
            items,
            queue,
            ..
        } = self;
        for watched in watched.iter() {
            watched
                .chunk
                .ready(watched.side, watched.slot)
                .take(|lane| {
                    let number = watched.items[lane as usize % LANES_MAX as usize];
                    let Some(number) = number.checked_sub(1) else {
                        return;
                    };
                    if let Some(Some(item)) = items.get_mut(number as usize) {
                        item.note_news();
                        if !item.is_queued {
                            item.is_queued = true;
                            queue.push_back(number);
                        }
                    }
                });
        }
    }

    /// The ring of this registration's connection is granted.
    pub fn note_granted(&mut self, number: u32) {
        if let Some(item) = self.item(number)
            && !core::mem::replace(&mut item.is_granted, true)
        {
            self.granted.add(number);
        }
    }

    /// Queues what it finds to be granted no more. Whether anything is left.
    pub fn check_granted(&mut self) -> bool {
        for _ in 0..CHECKED.min(self.granted.numbers().len()) {
            let Some(number) = self.granted.take_turn() else {
                break;
            };
            match self.item(number) {
                Some(item) if item.is_grant_standing() => {}
                item => {
                    if let Some(item) = item {
                        item.is_granted = false;
                        // A read may have found nothing although the kernel had something, perhaps
                        // the end of the stream, whose event was reported before.
                        item.note_news();
                    }
                    self.granted.drop_turn();
                    self.enqueue(number);
                }
            }
        }
        !self.granted.numbers().is_empty()
    }

    /// Puts a connection whose lane is in use under our tag.
    pub fn start_tagging(&mut self, epfd: c_int, number: u32) {
        let Some(item) = self.item(number) else {
            return;
        };
        let (fd, exclusive) = (item.fd, item.events & libc::EPOLLEXCLUSIVE as u32 != 0);
        let done = if exclusive {
            // SAFETY: DEL takes no event.
            unsafe {
                (real().epoll_ctl)(epfd, libc::EPOLL_CTL_DEL, fd, core::ptr::null_mut());
            }
            tag(epfd, libc::EPOLL_CTL_ADD, fd, number)
        } else {
            tag(epfd, libc::EPOLL_CTL_MOD, fd, number)
        };
        if done {
            item.start_tagged();
        } else if let Some(conn) = crate::conn::get(fd) {
            conn.pin(Reason::KernelCall);
        }
    }

    /// Makes the kernel report the connections whose rings have, or are about to have, something.
    pub fn rouse(&mut self, epfd: c_int) {
        self.collect();
        let queue = self.queue.iter().chain(self.granted.numbers());
        let numbers: Vec<u32> = queue.copied().collect();
        for number in numbers {
            let Some(item) = self.item(number) else {
                continue;
            };
            if item.kind != Kind::Socket || item.peek() == Glance::Nothing {
                continue;
            }
            let fd = item.fd;
            if !item.is_tagged {
                self.start_tagging(epfd, number);
            } else {
                tag(epfd, libc::EPOLL_CTL_MOD, fd, number);
            }
        }
    }

    /// A call ends. Where other threads are asleep, the kernel wakes one of them by something that the call leaves
    /// behind of an edge-triggered registration: that one looks at all that is left.
    pub fn pass_on(&mut self, epfd: c_int) {
        if self.asleep == 0 {
            return;
        }
        for at in 0..self.queue.len() {
            let number = self.queue[at];
            if let Some(item) = self.item(number)
                && item.is_left_behind()
                && item.is_ready_to_kernel()
                && tag(epfd, libc::EPOLL_CTL_MOD, item.fd, number)
            {
                return;
            }
        }
    }

    /// One more thread is about to enter the kernel's wait.
    pub fn announce_sleep(&mut self) {
        self.asleep += 1;
        for (parking, slot) in &self.slots {
            parking.announce_sleep(*slot);
        }
        for into in self.watched.iter().flat_map(Watched::direct_lanes) {
            announce_watcher(&into);
        }
    }

    /// The sleepers are counted on `instance`, too.
    pub fn note_joined(&mut self, instance: u32, sleepers: u32) {
        match self.joined.iter_mut().find(|(known, _)| *known == instance) {
            Some((_, count)) => *count += sleepers,
            None => self.joined.push((instance, sleepers)),
        }
    }

    /// A thread has left the kernel's wait. Where, and how often, a sleep is to be taken back now
    /// that nobody sleeps here.
    #[must_use]
    pub fn withdraw_sleep(&mut self) -> Vec<(u32, u32)> {
        // In a forked child a wait that the parent's thread announced is not ours.
        if self.asleep == 0 {
            return Vec::new();
        }
        self.asleep -= 1;
        for (parking, slot) in &self.slots {
            parking.withdraw_sleep(*slot);
        }
        for into in self.watched.iter().flat_map(Watched::direct_lanes) {
            withdraw_watcher(&into);
        }
        if self.asleep == 0 {
            core::mem::take(&mut self.joined)
        } else {
            Vec::new()
        }
    }
}

/// Registers a connection in the kernel under our tag.
pub(super) fn tag(epfd: c_int, op: c_int, fd: c_int, number: u32) -> bool {
    let mut event = libc::epoll_event {
        events: KERNEL_INTEREST,
        u64: TAG | u64::from(number),
    };
    let before = errno();
    // SAFETY: the event lives on this stack.
    let ok = unsafe { (real().epoll_ctl)(epfd, op, fd, &raw mut event) } == 0;
    set_errno(before);
    ok
}

/// The item that data of a kernel event names, if it is a tag.
pub(crate) fn tagged(data: u64) -> Option<u32> {
    (data & TAG_MASK == TAG).then_some(data as u32)
}

/// Takes such a registration out.
pub(super) fn untag(epfd: c_int, fd: i32) {
    let before = errno();
    // SAFETY: DEL takes no event.
    unsafe {
        (real().epoll_ctl)(epfd, libc::EPOLL_CTL_DEL, fd, core::ptr::null_mut());
    }
    set_errno(before);
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::ptr::NonNull;
    use sluice_shmem::geometry::Geometry;
    use sluice_shmem::parking::PARKING_BYTES;

    fn memory(bytes: usize) -> NonNull<u8> {
        crate::memory::zeroed(bytes).expect("memory")
    }

    #[test]
    fn who_sleeps_is_counted_in_the_direct_lanes_that_are_watched_and_in_no_others() {
        let geometry = Geometry::new(4, 4096).expect("a shape");
        let chunk = || {
            let base = memory(geometry.chunk_bytes() as usize);
            // SAFETY: zeroed memory of that size, page aligned, never unmapped.
            unsafe { Chunk::from_raw(base, geometry) }
        };
        // SAFETY: zeroed memory of a parking table's size, page aligned, never unmapped.
        let quiet = unsafe { ParkingTable::from_raw(memory(PARKING_BYTES)) };
        let (direct, local) = (chunk(), chunk());
        let mut state = State::new();
        for chunk in [direct, local] {
            let mut items = Box::new([0; LANES_MAX as usize]);
            (items[1], items[3]) = (1, 2);
            state.watched.push(Watched {
                chunk,
                side: 1,
                parking: quiet,
                slot: 5,
                count: 2,
                direct: chunk.address() == direct.address(),
                items,
            });
        }
        let asleep = |chunk: &Chunk| {
            let lanes = 0..4;
            let sleeps = |lane: &u32| !chunk.direction(*lane, 0).is_reader_awake(Some(quiet));
            lanes.filter(sleeps).collect::<Vec<u32>>()
        };
        state.announce_sleep();
        state.announce_sleep();
        assert_eq!(asleep(&direct), [1, 3]);
        assert_eq!(asleep(&local), []);
        let _ = state.withdraw_sleep();
        assert_eq!(asleep(&direct), [1, 3], "one sleeps still");
        let _ = state.withdraw_sleep();
        assert_eq!(asleep(&direct), []);
        let sending = direct.direction(1, 1);
        assert!(sending.is_reader_awake(Some(quiet)), "the other way");
    }
}
