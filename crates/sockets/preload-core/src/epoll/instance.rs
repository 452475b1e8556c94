//! The instances of the process, and what happens to their registrations.
#![allow(unsafe_code)]

use super::item::{Item, Kind};
use super::sleepers::join_sleepers;
use super::state::{State, tag, untag};
use crate::conn::Conn;
use crate::fds::{self, Entry};
use crate::io::LOWEST_ADDRESS;
use crate::lock::{SpinGuard, SpinLock};
use crate::real::{real, set_errno};
use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use sluice_lane::end::State as EndState;
use sluice_lane::reason::Reason;
use sluice_lane::spin::Gaps;
use sluice_shmem::board::Board;

/// Instances that a process can have under our eyes; connections in others stay on TCP.
const INSTANCES_MAX: usize = 1024;
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
    /// When the kernel was last asked, on the monotonic clock.
    pub asked_ns: AtomicU64,
    /// The same in ticks, once it is through.
    pub asked_ticks: AtomicU64,
    /// Rings may have something for who waits here. Set under the lock, and not taken back before the
    /// last descriptor is closed.
    heeds_rings: AtomicBool,
    /// Threads in the kernel's wait that are not in [`State::asleep`]: they found nobody to tell that
    /// they sleep. Who takes the lock counts them there.
    plain_sleepers: AtomicU32,
}

impl Instance {
    pub(super) const fn new() -> Self {
        Self {
            state: SpinLock::new(State::new()),
            refs: AtomicU32::new(0),
            epfd: AtomicI32::new(-1),
            item_count: AtomicU32::new(0),
            is_inherited: AtomicBool::new(false),
            gaps: Gaps::new(),
            turn: AtomicU32::new(0),
            asked_ns: AtomicU64::new(0),
            asked_ticks: AtomicU64::new(0),
            heeds_rings: AtomicBool::new(false),
            plain_sleepers: AtomicU32::new(0),
        }
    }

    /// Changes the number of items; to be called by the holder of the lock.
    pub(super) fn set_item_count(&self, by: i32) {
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
        let mut state = self.state.lock()?;
        self.count_plain_sleepers(&mut state);
        Some(state)
    }

    fn count_plain_sleepers(&self, state: &mut State) {
        if self.plain_sleepers.load(Ordering::Relaxed) != 0 {
            for _ in 0..self.plain_sleepers.swap(0, Ordering::SeqCst) {
                state.announce_sleep();
            }
        }
    }

    /// From here on every sleep is announced, as well as those that last; to be called by the holder
    /// of the lock.
    pub(super) fn start_to_heed_rings(&self, state: &mut State) {
        if !self.heeds_rings.swap(true, Ordering::SeqCst) {
            self.count_plain_sleepers(state);
        }
    }

    /// Whether rings may have something for who waits here.
    #[inline]
    pub(super) fn heeds_rings(&self) -> bool {
        self.heeds_rings.load(Ordering::SeqCst)
    }

    /// A thread is about to sleep in the kernel, which nobody has to be told. False where somebody
    /// has to.
    #[inline]
    pub(super) fn sleep_plainly(&self) -> bool {
        if self.heeds_rings() {
            return false;
        }
        // Either it sees what `start_to_heed_rings` stores, or that sees this.
        self.plain_sleepers.fetch_add(1, Ordering::SeqCst);
        !self.heeds_rings() || !self.wake_plainly()
    }

    /// It has left the kernel. False if it is counted among those that others know of.
    #[inline]
    pub(super) fn wake_plainly(&self) -> bool {
        let fewer = |sleepers: u32| sleepers.checked_sub(1);
        self.plain_sleepers
            .fetch_update(Ordering::SeqCst, Ordering::Relaxed, fewer)
            .is_ok()
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
        instance.turn.store(0, Ordering::Relaxed);
        instance.asked_ns.store(0, Ordering::Relaxed);
        instance.asked_ticks.store(0, Ordering::Relaxed);
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
        state.close();
        this.item_count.store(0, Ordering::Relaxed);
        this.heeds_rings.store(false, Ordering::SeqCst);
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
        entry => {
            // SAFETY: the program's own arguments.
            let result = unsafe { (real().epoll_ctl)(epfd, op, fd, event) };
            if result == 0 && matches!(entry, Entry::Settled { .. }) {
                forget_label(index, fd);
            }
            return result;
        }
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
    let mut label = None;
    let mut labelled;
    let mut given = event;
    if op != libc::EPOLL_CTL_DEL && event as usize >= LOWEST_ADDRESS {
        let number = known.unwrap_or_else(|| state.next_number());
        // SAFETY: as above.
        labelled = unsafe { *event };
        // What the kernel has is shared with the process that this one was forked from, which would not know
        // its labels.
        if !this.is_inherited.load(Ordering::Relaxed) {
            label = state.label(this, number, kind, labelled.events);
        }
        if let Some(data) = label {
            labelled.u64 = data;
            given = &raw mut labelled;
        }
    }
    // SAFETY: as above.
    let result = unsafe { (real().epoll_ctl)(epfd, op, fd, given) };
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
            if let Some(number) = state.number(fd) {
                state.note_label(number, label);
            }
            let is_oneshot = events & libc::EPOLLONESHOT as u32 != 0;
            if is_oneshot
                && label.is_none()
                && let Some(conn) = crate::conn::get(fd)
            {
                // Nobody would know of the kernel's report when there is a lane.
                conn.pin(Reason::TooManyWatchers);
            }
            if let Kind::Instance(inner) = kind
                && state.asleep > 0
            {
                let sleepers = state.asleep;
                drop(state);
                join_sleepers(this, inner, sleepers);
                return 0;
            }
            if let Some(conn) = crate::conn::get(fd) {
                conn.end.note_wait();
                state.watch_attached(this, &conn);
                if state.asleep > 0
                    && conn.end.has_usable_lane()
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

/// The kernel has a registration of a connection that is left to it as the program made it: without a label.
fn forget_label(index: u32, fd: c_int) {
    let this = instance(index);
    if let Some(mut state) = this.lock()
        && let Some(number) = state.number(fd)
        && state.item(number).is_some_and(|item| !item.is_tagged)
    {
        state.forget(this, number);
    }
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
    for_watchers_of(fd, |this, state, _| {
        mask = match (mask, state.slot(this, board)) {
            (Some(mask), Some(slot)) => Some(mask | 1 << slot),
            _ => None,
        };
    });
    mask
}

/// Whether an instance watches `fd`.
pub fn is_watched(fd: i32) -> bool {
    let mut found = false;
    for_watchers_of(fd, |_, _, _| found = true);
    found
}

/// A watched connection has got its lane.
pub fn conn_attached(conn: &Conn) {
    for_watchers_of(conn.fd, |this, state, _| state.watch_attached(this, conn));
}

/// A connection is left to the kernel from now on, which knows its registrations as the program
/// made them. `entry` is what `fd` has just become: another thread may close it and register
/// another connection under the same number.
pub fn settle(fd: i32, entry: Entry) {
    for_watchers_of(fd, |this, state, number| {
        let is_that_one = fds::get(fd) == entry;
        let is_the_kernels = |item: &mut Item| !item.is_tagged && item.armed.is_none();
        if is_that_one && state.item(number).is_some_and(is_the_kernels) {
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
            } else if conn.end.has_usable_lane() {
                state.adopt(epfd, number);
            }
        }
    });
}

/// A socket descriptor is being closed or given another meaning. A registration lasts as long as
/// the socket does: while it has another name in this process it is kept under that.
pub fn forget_socket(fd: i32) {
    // sluiced, which has been given the socket, may have it open for a moment longer than the
    // program. The kernel would go on to report it, with the data of who is gone.
    let state = crate::conn::get(fd).map(|conn| conn.end.state());
    let is_given = state == Some(EndState::Announced);
    let was_given = is_given || state == Some(EndState::Attached);
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
            let is_inherited = this.is_inherited.load(Ordering::Relaxed);
            match twin_of(fd) {
                Some(twin) if !is_removed => {
                    if was_given && !is_tagged && !is_inherited {
                        // Only by the number that is closed now the kernel could be told to forget it.
                        state.adopt(this.epfd(), number);
                    }
                    state.rename(this, number, twin);
                }
                _ => {
                    let is_known = is_tagged || is_given && !is_removed;
                    if is_known && !is_inherited {
                        // Another process that has the socket keeps the registration alive.
                        untag(this.epfd(), fd);
                    }
                    state.forget(this, number);
                }
            }
        }
    }
}

/// Another descriptor of this process for the connection of `fd`.
fn twin_of(fd: i32) -> Option<i32> {
    let entry = fds::get(fd);
    let (Entry::Conn { index, generation } | Entry::Settled { index, generation }) = entry else {
        return None;
    };
    if crate::conn::from_entry(fd, index, generation)?.end.refs() < 2 {
        return None;
    }
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
        this.plain_sleepers.store(0, Ordering::Relaxed);
        this.is_inherited.store(true, Ordering::Relaxed);
        if let Some(mut state) = this.lock() {
            state.forget_sleepers();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::sleepers::{enter_sleep, leave_sleep};
    use super::*;
    use core::ptr::NonNull;
    use sluice_shmem::board::BOARD_BYTES;
    use std::sync::Mutex;

    /// A number that no descriptor of the test has.
    const EPFD: c_int = 70_001;

    /// Instances have places of the process, and one test needs the same place twice.
    static PLACES: Mutex<()> = Mutex::new(());

    fn board() -> Board {
        let memory: NonNull<u8> = crate::memory::zeroed(BOARD_BYTES).unwrap();
        // SAFETY: zeroed memory of that size, page aligned, never unmapped.
        unsafe { Board::from_raw(memory) }
    }

    /// An instance that the kernel has, too, with a slot on the board.
    fn make_real(board: &Board) -> (u32, c_int, u64) {
        // SAFETY: takes and returns numbers.
        let epfd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        assert!(epfd >= 0);
        created(epfd);
        let Entry::Epoll { index } = fds::get(epfd) else {
            panic!("not an instance");
        };
        let slot = {
            let this = instance(index);
            this.lock().unwrap().slot(this, board).unwrap()
        };
        (index, epfd, 1 << slot)
    }

    fn change((index, epfd): (u32, c_int), op: c_int, fd: c_int) {
        let mut event = libc::epoll_event {
            events: libc::EPOLLIN as u32,
            u64: 0,
        };
        // SAFETY: the event lives on this stack.
        let done = unsafe { ctl(index, epfd, op, fd, &raw mut event) };
        assert_eq!(done, 0);
    }

    fn close_real(index: u32, epfd: c_int) {
        fds::take(epfd);
        close_descriptor(index, epfd);
        // SAFETY: a descriptor of this test.
        unsafe { libc::close(epfd) };
    }

    #[test]
    fn grandchildren_that_come_and_go_under_a_sleeper() {
        let _places = PLACES.lock().unwrap();
        fds::init();
        let board = board();
        let (outer, outer_fd, outer_slot) = make_real(&board);
        let (inner, inner_fd, inner_slot) = make_real(&board);
        let (first, first_fd, first_slot) = make_real(&board);
        let (second, second_fd, second_slot) = make_real(&board);
        change((outer, outer_fd), libc::EPOLL_CTL_ADD, inner_fd);
        change((inner, inner_fd), libc::EPOLL_CTL_ADD, first_fd);

        let sleepers = [enter_sleep(outer), enter_sleep(outer)];
        change((inner, inner_fd), libc::EPOLL_CTL_DEL, first_fd);
        change((inner, inner_fd), libc::EPOLL_CTL_ADD, second_fd);
        for slot in [outer_slot, inner_slot, second_slot] {
            assert!(board.any_asleep(slot), "both sleep on what is inside");
        }
        leave_sleep(&sleepers[0]);
        assert!(board.any_asleep(second_slot), "one sleeps still");
        leave_sleep(&sleepers[1]);
        assert!(!board.any_asleep(first_slot), "the one that was taken out");
        assert!(!board.any_asleep(second_slot), "the one that was put in");
        assert!(!board.any_asleep(u64::MAX));

        // Closed under a sleeper.
        change((inner, inner_fd), libc::EPOLL_CTL_ADD, first_fd);
        let sleeper = enter_sleep(outer);
        close_real(inner, inner_fd);
        leave_sleep(&sleeper);
        assert!(!board.any_asleep(u64::MAX));
        for (index, epfd) in [(outer, outer_fd), (first, first_fd), (second, second_fd)] {
            close_real(index, epfd);
        }
    }

    #[test]
    fn sleepers_that_had_nobody_to_tell_are_told_of_when_there_is_somebody() {
        let _places = PLACES.lock().unwrap();
        fds::init();
        let board = board();
        let this = make();
        assert!(this.sleep_plainly() && this.sleep_plainly());
        assert!(this.wake_plainly(), "nobody has asked");
        let slot = this.lock().unwrap().slot(this, &board).unwrap();
        assert!(board.any_asleep(1 << slot), "the one that sleeps still");
        assert!(!this.sleep_plainly(), "there is somebody to tell");
        assert!(!this.wake_plainly(), "it is counted");
        assert!(this.lock().unwrap().withdraw_sleep().is_empty());
        assert!(!board.any_asleep(u64::MAX));

        let Entry::Epoll { index } = fds::take(EPFD) else {
            panic!("not an instance");
        };
        close_descriptor(index, EPFD);
        let next = make();
        assert!(core::ptr::eq(this, next), "the test needs the same place");
        assert!(next.sleep_plainly() && next.wake_plainly());
        fds::take(EPFD);
        close_descriptor(index, EPFD);
    }

    #[test]
    fn more_children_than_fit_a_small_array() {
        const CHILDREN: usize = 60;
        let _places = PLACES.lock().unwrap();
        fds::init();
        // A board has 64 slots, so two of them.
        let boards = [board(), board()];
        let (outer, outer_fd, _) = make_real(&boards[0]);
        let mut inner = Vec::new();
        for board in &boards {
            for _ in 0..CHILDREN {
                inner.push((board, make_real(board)));
            }
        }
        for (_, (_, epfd, _)) in &inner {
            change((outer, outer_fd), libc::EPOLL_CTL_ADD, *epfd);
        }
        let sleeper = enter_sleep(outer);
        for (board, (_, _, slot)) in &inner {
            assert!(board.any_asleep(*slot), "its peers must ring");
        }
        leave_sleep(&sleeper);
        for (board, (index, epfd, _)) in inner {
            assert!(!board.any_asleep(u64::MAX));
            close_real(index, epfd);
        }
        close_real(outer, outer_fd);
    }

    fn make() -> &'static Instance {
        created(EPFD);
        match fds::get(EPFD) {
            Entry::Epoll { index } => instance(index),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn instance_closed_under_a_sleeper_and_its_place_reused() {
        let _places = PLACES.lock().unwrap();
        fds::init();
        let board = board();
        let sleep = |this: &Instance| {
            let mut state = this.lock().unwrap();
            let slot = state.slot(this, &board).unwrap();
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
        let _ = second.lock().unwrap().withdraw_sleep();
        assert!(board.any_asleep(1 << slot), "the second one's sleeper");
        let _ = second.lock().unwrap().withdraw_sleep();
        assert!(!board.any_asleep(u64::MAX));
    }
}
