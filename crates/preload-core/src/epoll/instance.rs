//! The instances: which descriptors each watches, and through which slots of which boards its
//! sleep is announced.
#![allow(unsafe_code)]

use super::item::{Glance, Item, KERNEL_INTEREST, Kind};
use super::wait::join_sleepers;
use crate::conn::Conn;
use crate::fds::{self, Entry};
use crate::io::LOWEST_ADDRESS;
use crate::lock::{SpinGuard, SpinLock};
use crate::real::{errno, real, set_errno};
use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use sluice_lane::end::State as EndState;
use sluice_lane::reason::Reason;
use sluice_lane::spin::Gaps;
use sluice_shmem::board::Board;
use sluice_shmem::chunk::Chunk;
use sluice_shmem::geometry::LANES_MAX;
use std::collections::VecDeque;

/// Instances that a process can have under our eyes; connections in others stay on TCP.
const INSTANCES_MAX: usize = 1024;
/// Upper half of the data of a registration of ours. No user-space pointer and no small
/// integer looks like this.
const TAG: u64 = 0xd15c_51e7_0000_0000;
const TAG_MASK: u64 = 0xffff_ffff_0000_0000;

/// The lanes of one chunk that an instance watches, at least one. The instance takes the bits of
/// its ready line, so this goes with the last lane: another peer's chunk may come to lie at the
/// same address, and there the same line may be the peer's.
pub(super) struct Watched {
    chunk: Chunk,
    side: u32,
    slot: u32,
    /// Lanes with an item.
    count: u32,
    /// Item number plus one, for each lane; 0 for none.
    items: Box<[u32; LANES_MAX as usize]>,
}

/// What an instance knows.
#[derive(Default)]
pub(super) struct State {
    pub items: Vec<Option<Item>>,
    free: Vec<u32>,
    /// Item number plus one, by descriptor; 0 for none.
    by_fd: Vec<u32>,
    /// Items to look at.
    pub queue: VecDeque<u32>,
    /// Where sleep is announced.
    slots: Vec<(Board, u32)>,
    watched: Vec<Watched>,
    /// Threads in the kernel's wait. Every slot counts exactly these.
    asleep: u32,
    /// Items that are instances.
    pub children: Vec<u32>,
    /// Items that `by_fd` does not know, because the descriptor they were added by is closed.
    renamed: u32,
}

/// One epoll instance.
pub(super) struct Instance {
    state: SpinLock<State>,
    /// Descriptors that name it; 0: unused.
    refs: AtomicU32,
    /// One of them.
    epfd: AtomicI32,
    /// Items; without any the kernel alone is asked.
    pub item_count: AtomicU32,
    /// Came from the process that forked this one: its kernel side is shared.
    is_inherited: AtomicBool,
    pub gaps: Gaps,
    pub turn: AtomicU32,
}

impl Instance {
    const fn new() -> Self {
        Self {
            state: SpinLock::new(State::new()),
            refs: AtomicU32::new(0),
            epfd: AtomicI32::new(-1),
            item_count: AtomicU32::new(0),
            is_inherited: AtomicBool::new(false),
            gaps: Gaps::new(),
            turn: AtomicU32::new(0),
        }
    }

    /// Changes the number of items; to be called by the holder of the lock.
    fn set_item_count(&self, by: i32) {
        let count = self.item_count.load(Ordering::Relaxed);
        self.item_count
            .store(count.wrapping_add_signed(by), Ordering::Release);
    }

    /// A descriptor that names the instance.
    pub(super) fn epfd(&self) -> c_int {
        self.epfd.load(Ordering::Relaxed)
    }

    /// `None` only in a signal handler that interrupted a holder of such a lock.
    pub(super) fn lock(&self) -> Option<SpinGuard<'_, State>> {
        self.state.lock()
    }
}

static INSTANCES: [Instance; INSTANCES_MAX] = [const { Instance::new() }; INSTANCES_MAX];
/// No instance at or behind this number was ever used.
static USED: AtomicU32 = AtomicU32::new(0);

pub(super) fn instance(index: u32) -> &'static Instance {
    &INSTANCES[index as usize % INSTANCES_MAX]
}

fn instances() -> impl Iterator<Item = (u32, &'static Instance)> {
    INSTANCES[..(USED.load(Ordering::Acquire) as usize).min(INSTANCES_MAX)]
        .iter()
        .enumerate()
        .filter(|(_, instance)| instance.refs.load(Ordering::Acquire) != 0)
        .map(|(index, instance)| (index as u32, instance))
}

/// An instance was created.
pub fn created(epfd: c_int) {
    for (index, instance) in INSTANCES.iter().enumerate() {
        if instance
            .refs
            .compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed)
            .is_err()
        {
            continue;
        }
        USED.fetch_max(index as u32 + 1, Ordering::AcqRel);
        instance.epfd.store(epfd, Ordering::Relaxed);
        instance.is_inherited.store(false, Ordering::Relaxed);
        instance.gaps.reset();
        let index = index as u32;
        if !fds::set(epfd, Entry::Epoll { index }) {
            instance.refs.store(0, Ordering::Release);
        }
        return;
    }
}

/// Another descriptor names the instance.
pub fn add_descriptor(index: u32, fd: i32) {
    instance(index).refs.fetch_add(1, Ordering::AcqRel);
    fds::set(fd, Entry::Epoll { index });
}

/// A descriptor of the instance is being closed.
pub fn close_descriptor(index: u32, fd: i32) {
    let this = instance(index);
    let is_another_left = this
        .refs
        .fetch_update(Ordering::AcqRel, Ordering::Acquire, |refs| {
            (refs > 1).then(|| refs - 1)
        });
    if is_another_left.is_ok() {
        if this.epfd.load(Ordering::Relaxed) == fd {
            fds::for_each(0, i32::MAX, |other, entry| {
                if other != fd && entry == (Entry::Epoll { index }) {
                    this.epfd.store(other, Ordering::Relaxed);
                }
            });
        }
        return;
    }
    if let Some(mut state) = this.lock() {
        for number in 0..state.items.len() as u32 {
            state.unwatch(number);
        }
        for (board, slot) in &state.slots {
            for _ in 0..state.asleep {
                board.withdraw_sleep(*slot);
            }
            board.free_slot(*slot);
        }
        *state = State {
            // Whoever sleeps still takes it back, when another instance may have this place.
            asleep: state.asleep,
            ..State::new()
        };
        this.item_count.store(0, Ordering::Relaxed);
    }
    this.refs.store(0, Ordering::Release);
}

/// `epoll_ctl` with `epfd` one of ours. `fd` is the target.
///
/// # Safety
/// As epoll_ctl(2).
pub unsafe fn ctl(
    index: u32,
    epfd: c_int,
    op: c_int,
    fd: c_int,
    event: *mut libc::epoll_event,
) -> c_int {
    let kind = match fds::get(fd) {
        Entry::Socket | Entry::Conn { .. } => Kind::Socket,
        Entry::Epoll { index: inner } if inner != index => Kind::Instance(inner),
        // SAFETY: the program's own arguments.
        _ => return unsafe { (real().epoll_ctl)(epfd, op, fd, event) },
    };
    let this = instance(index);
    let Some(mut state) = this.lock() else {
        // A handler on top of epoll_ctl or epoll_wait of this very thread.
        set_errno(libc::EINTR);
        return -1;
    };
    let known = state.number(fd);
    if let Some(number) = known
        && state.item(number).is_some_and(|item| item.is_tagged)
    {
        let event = if (event as usize) < LOWEST_ADDRESS {
            core::ptr::null_mut()
        } else {
            event
        };
        // SAFETY: the program's own arguments.
        return match unsafe { event.as_ref() } {
            _ if op == libc::EPOLL_CTL_DEL => state.remove_tagged(number),
            Some(event) => state.change_tagged(epfd, number, op, *event),
            None => {
                set_errno(libc::EFAULT);
                -1
            }
        };
    }
    // SAFETY: as above.
    let result = unsafe { (real().epoll_ctl)(epfd, op, fd, event) };
    if result != 0 {
        return result;
    }
    match op {
        libc::EPOLL_CTL_DEL => state.remove(this, fd),
        _ => {
            // SAFETY: the call succeeded, so the event is readable.
            let (events, data) = unsafe { ((*event).events, (*event).u64) };
            match known {
                Some(number) if op == libc::EPOLL_CTL_MOD => {
                    if let Some(item) = state.item(number) {
                        item.modify(events, data);
                    }
                    state.enqueue(number);
                }
                _ => {
                    state.remove(this, fd);
                    state.add(this, Item::new(fd, events, data, kind));
                }
            }
            if let Kind::Instance(inner) = kind
                && state.asleep > 0
            {
                let sleepers = state.asleep;
                drop(state);
                join_sleepers(inner, sleepers);
                return 0;
            }
            if let Some(conn) = crate::conn::get(fd) {
                state.watch_attached(&conn);
                if state.asleep > 0
                    && conn.end.state() == EndState::Attached
                    && let Some(number) = state.number(fd)
                {
                    // Whoever sleeps has to look at it: the ring may have something already.
                    state.adopt(epfd, number);
                }
            }
        }
    }
    0
}

fn tag(epfd: c_int, op: c_int, fd: c_int, number: u32) -> bool {
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
pub(super) fn tagged(data: u64) -> Option<u32> {
    (data & TAG_MASK == TAG).then_some(data as u32)
}

/// Calls `each` with every instance that watches `fd`, locked, and its item number.
fn for_watchers_of(fd: i32, mut each: impl FnMut(&'static Instance, &mut State, u32)) {
    for (_, this) in instances() {
        if this.item_count.load(Ordering::Acquire) == 0 {
            continue;
        }
        if let Some(mut state) = this.lock()
            && let Some(number) = state.number(fd)
        {
            each(this, &mut state, number);
        }
    }
}

/// A slot on `board` for each instance that watches `fd`, as a mask. `None` when an instance
/// can get none.
pub fn watchers(fd: i32, board: &Board) -> Option<u64> {
    let mut mask = Some(0_u64);
    for_watchers_of(fd, |_, state, _| {
        mask = match (mask, state.slot(board)) {
            (Some(mask), Some(slot)) => Some(mask | 1 << slot),
            _ => None,
        };
    });
    mask
}

/// A watched connection has got its lane.
pub fn conn_attached(conn: &Conn) {
    for_watchers_of(conn.fd, |_, state, _| state.watch_attached(conn));
}

/// A connection is left to the kernel from now on, which knows its registrations as the program
/// made them. `entry` is what `fd` has just become: another thread may close it and register
/// another connection under the same number.
pub fn settle(fd: i32, entry: Entry) {
    for_watchers_of(fd, |this, state, number| {
        let is_that_one = fds::get(fd) == entry;
        if is_that_one && state.item(number).is_some_and(|item| !item.is_tagged) {
            state.forget(this, number);
        }
    });
}

/// A descriptor is added to an instance that we do not know: readiness must be the kernel's.
pub fn watched_from_outside(fd: i32) {
    match fds::get(fd) {
        Entry::Conn { .. } => {
            if let Some(conn) = crate::conn::get(fd) {
                conn.pin(Reason::TooManyWatchers);
            }
        }
        Entry::Socket => {
            fds::take(fd);
        }
        _ => {}
    }
}

/// A write on the connection found the ring full: whoever waits for room is told when there is.
pub fn write_blocked(conn: &Conn) {
    for_watchers_of(conn.fd, |this, state, number| {
        let Some(item) = state.item(number).filter(|item| !item.is_removed) else {
            return;
        };
        item.note_write_blocked();
        let is_tagged = item.is_tagged;
        state.enqueue(number);
        if state.asleep > 0 {
            // Whoever sleeps has to look at it.
            let epfd = this.epfd();
            if is_tagged {
                tag(epfd, libc::EPOLL_CTL_MOD, conn.fd, number);
            } else if conn.end.state() == EndState::Attached {
                state.adopt(epfd, number);
            }
        }
    });
}

/// A socket descriptor is being closed or given another meaning. A registration lasts as long as
/// the socket does: while it has another name in this process it is kept under that.
pub fn forget_socket(fd: i32) {
    for (_, this) in instances() {
        if this.item_count.load(Ordering::Acquire) == 0 {
            continue;
        }
        let Some(mut state) = this.lock() else {
            continue;
        };
        while let Some(number) = state.any_number(fd) {
            let Some((is_tagged, is_removed)) = state
                .item(number)
                .map(|item| (item.is_tagged, item.is_removed))
            else {
                break;
            };
            match twin_of(fd) {
                Some(twin) if !is_removed => state.rename(number, twin),
                _ => {
                    if is_tagged && !this.is_inherited.load(Ordering::Relaxed) {
                        // Another process that has the socket keeps the registration alive.
                        untag(this.epfd(), fd);
                    }
                    state.forget(this, number);
                }
            }
        }
    }
}

fn untag(epfd: c_int, fd: i32) {
    let before = errno();
    // SAFETY: DEL takes no event.
    unsafe {
        (real().epoll_ctl)(epfd, libc::EPOLL_CTL_DEL, fd, core::ptr::null_mut());
    }
    set_errno(before);
}

/// Another descriptor of this process for the connection of `fd`.
fn twin_of(fd: i32) -> Option<i32> {
    let conn = crate::conn::get(fd)?;
    if conn.end.refs() < 2 {
        return None;
    }
    let entry = fds::get(fd);
    let mut twin = None;
    fds::for_each(0, i32::MAX, |other, same| {
        if other != fd && same == entry {
            twin = Some(other);
        }
    });
    twin
}

/// Locks all instances across a fork, so that the child finds them whole.
pub fn before_fork() {
    for (_, instance) in instances() {
        core::mem::forget(instance.state.try_lock_fork());
    }
}

/// Undoes [`before_fork`] in the parent.
pub fn release_after_fork() {
    for (_, instance) in instances() {
        instance.state.force_open();
    }
}

/// In a forked child: no thread sleeps, no lock is held, and the kernel's side is shared with
/// the parent.
pub fn after_fork() {
    for (_, this) in instances() {
        this.state.force_open();
        this.is_inherited.store(true, Ordering::Relaxed);
        if let Some(mut state) = this.lock() {
            // The parent's sleepers stay announced on the shared boards; a slot of ours would
            // count them.
            state.asleep = 0;
        }
    }
}

impl State {
    const fn new() -> Self {
        Self {
            items: Vec::new(),
            free: Vec::new(),
            by_fd: Vec::new(),
            queue: VecDeque::new(),
            slots: Vec::new(),
            watched: Vec::new(),
            asleep: 0,
            children: Vec::new(),
            renamed: 0,
        }
    }

    /// An item of the descriptor, be it registered by it or renamed to it.
    fn any_number(&self, fd: i32) -> Option<u32> {
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
    fn rename(&mut self, number: u32, twin: i32) {
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

    fn number(&self, fd: i32) -> Option<u32> {
        self.by_fd.get(fd as u32 as usize)?.checked_sub(1)
    }

    pub fn item(&mut self, number: u32) -> Option<&mut Item> {
        self.items.get_mut(number as usize)?.as_mut()
    }

    pub fn enqueue(&mut self, number: u32) {
        if let Some(item) = self.item(number)
            && !item.is_queued
        {
            item.is_queued = true;
            self.queue.push_back(number);
        }
    }

    fn add(&mut self, this: &Instance, item: Item) {
        let fd = item.fd as usize;
        let kind = item.kind;
        let number = match self.free.pop() {
            Some(number) => {
                self.items[number as usize] = Some(item);
                number
            }
            None => {
                self.items.push(Some(item));
                self.items.len() as u32 - 1
            }
        };
        if self.by_fd.len() <= fd {
            self.by_fd.resize(fd + 1, 0);
        }
        self.by_fd[fd] = number + 1;
        if let Kind::Instance(_) = kind {
            self.children.push(number);
        }
        this.set_item_count(1);
        // A socket is looked at once it has a lane: `watch_attached`.
        if kind != Kind::Socket {
            self.enqueue(number);
        }
    }

    /// `EPOLL_CTL_ADD` and `EPOLL_CTL_MOD` of a connection that the kernel knows by our tag.
    fn change_tagged(
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
    fn remove_tagged(&mut self, number: u32) -> c_int {
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

    fn remove(&mut self, this: &Instance, fd: i32) {
        if let Some(number) = self.number(fd) {
            self.forget(this, number);
        }
    }

    fn forget(&mut self, this: &Instance, number: u32) {
        self.unwatch(number);
        let Some(item) = self.items[number as usize].take() else {
            return;
        };
        if self.number(item.fd) == Some(number) {
            self.by_fd[item.fd as usize] = 0;
        } else {
            self.renamed = self.renamed.saturating_sub(1);
        }
        if item.is_queued {
            self.queue.retain(|queued| *queued != number);
        }
        if item.kind != Kind::Socket {
            self.children.retain(|child| *child != number);
        }
        self.free.push(number);
        this.set_item_count(-1);
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
                watched
                    .chunk
                    .direction(lane, 1 - watched.side)
                    .unwatch(watched.slot);
            }
        }
        self.watched.retain(|watched| watched.count > 0);
    }

    /// The slot that announces this instance's sleep on `board`.
    fn slot(&mut self, board: &Board) -> Option<u32> {
        if let Some((_, slot)) = self.slots.iter().find(|(known, _)| known == board) {
            return Some(*slot);
        }
        let slot = board.take_slot()?;
        for _ in 0..self.asleep {
            board.announce_sleep(slot);
        }
        self.slots.push((*board, slot));
        Some(slot)
    }

    /// Watches the lane of a connection that is registered here, if it has one.
    fn watch_attached(&mut self, conn: &Conn) {
        if conn.end.state() != EndState::Attached {
            return;
        }
        let (Some(number), Some(own_board)) = (self.number(conn.fd), conn.end.own_board()) else {
            return;
        };
        let (Some(slot), Some(place)) = (self.slot(&own_board), conn.end.place()) else {
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
                    slot,
                    count: 0,
                    items: Box::new([0; LANES_MAX as usize]),
                });
                self.watched.len() - 1
            }
        };
        let watched = &mut self.watched[index];
        let holder = &mut watched.items[place.lane as usize % LANES_MAX as usize];
        watched.count += u32::from(*holder == 0);
        *holder = number + 1;
        place
            .chunk
            .direction(place.lane, 1 - place.side)
            .watch(slot);
        if let Some(item) = self.item(number) {
            item.lane = Some(lane);
            item.note_news();
        }
        self.enqueue(number);
    }

    /// Whether any connection here has a lane.
    pub fn has_lanes(&self) -> bool {
        !self.watched.is_empty() || !self.children.is_empty()
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

    /// Puts a connection whose lane is in use under our tag.
    pub fn adopt(&mut self, epfd: c_int, number: u32) {
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
        for at in 0..self.queue.len() {
            let number = self.queue[at];
            let Some(item) = self.item(number) else {
                continue;
            };
            if item.kind != Kind::Socket || item.peek() == Glance::Nothing {
                continue;
            }
            let fd = item.fd;
            if !item.is_tagged {
                self.adopt(epfd, number);
            } else {
                tag(epfd, libc::EPOLL_CTL_MOD, fd, number);
            }
        }
    }

    /// One more thread is about to enter the kernel's wait.
    pub fn announce_sleep(&mut self) {
        self.asleep += 1;
        for (board, slot) in &self.slots {
            board.announce_sleep(*slot);
        }
    }

    /// A thread has left the kernel's wait.
    pub fn withdraw_sleep(&mut self) {
        // In a forked child a wait that the parent's thread announced is not ours.
        if self.asleep == 0 {
            return;
        }
        self.asleep -= 1;
        for (board, slot) in &self.slots {
            board.withdraw_sleep(*slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::ptr::NonNull;
    use sluice_shmem::board::BOARD_BYTES;

    /// A number that no descriptor of the test has.
    const EPFD: c_int = 70_001;

    fn make() -> &'static Instance {
        created(EPFD);
        match fds::get(EPFD) {
            Entry::Epoll { index } => instance(index),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn instance_closed_under_a_sleeper_and_its_place_reused() {
        fds::init();
        let memory: NonNull<u8> = crate::memory::zeroed(BOARD_BYTES).unwrap();
        // SAFETY: zeroed memory of that size, page aligned, never unmapped.
        let board = unsafe { Board::from_raw(memory) };
        let sleep = |this: &Instance| {
            let mut state = this.lock().unwrap();
            let slot = state.slot(&board).unwrap();
            state.announce_sleep();
            slot
        };

        let first = make();
        sleep(first);
        let Entry::Epoll { index } = fds::take(EPFD) else {
            panic!("not an instance");
        };
        close_descriptor(index, EPFD);
        assert!(!board.any_asleep(u64::MAX), "nobody rings for a closed one");

        let second = make();
        assert!(
            core::ptr::eq(first, second),
            "the test needs the same place"
        );
        let slot = sleep(second);
        // The first one's sleeper wakes.
        second.lock().unwrap().withdraw_sleep();
        assert!(board.any_asleep(1 << slot), "the second one's sleeper");
        second.lock().unwrap().withdraw_sleep();
        assert!(!board.any_asleep(u64::MAX));
    }
}
