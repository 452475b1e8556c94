//! What happens to registrations: `epoll_ctl`, and what becomes of the connections.
#![allow(unsafe_code)]

use super::instance::{Instance, instance, instances};
use super::item::{Item, Kind};
use super::sleepers::{is_heard_outside, is_instance_waited_for, join_sleepers};
use super::state::{State, tag, untag};
use crate::conn::Conn;
use crate::fds::{self, Entry};
use crate::memory::LOWEST_ADDRESS;
use crate::real::{real, set_errno};
use core::ffi::c_int;
use sluice_lane::end::State as EndState;
use sluice_lane::reason::Reason;
use sluice_shmem::parking::ParkingTable;

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
            if result == 0 && matches!(entry, Entry::Bypassed { .. }) {
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
        // SAFETY: the program's own event, which epoll_ctl(2) reads.
        labelled = unsafe { *event };
        // What the kernel has is shared with the process that this one was forked from, which would not know
        // its labels.
        if !this.is_inherited() {
            label = state.label(&this.unlocked, number, kind, labelled.events);
        }
        if let Some(data) = label {
            labelled.u64 = data;
            given = &raw mut labelled;
        }
    }
    // SAFETY: the program's own arguments, but for an event of ours that lives on this stack.
    let result = unsafe { (real().epoll_ctl)(epfd, op, fd, given) };
    if result != 0 {
        return result;
    }
    match op {
        libc::EPOLL_CTL_DEL => state.remove(&this.unlocked, fd),
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
                    state.remove(&this.unlocked, fd);
                    state.add(&this.unlocked, Item::new(fd, events, data, kind));
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
                && is_heard_outside(events)
            {
                let sleepers = state.asleep;
                drop(state);
                join_sleepers(this, inner, sleepers);
                return 0;
            }
            if let Some(conn) = crate::conn::get(fd) {
                state.watch_attached(&this.unlocked, &conn);
                if state.asleep > 0
                    && conn.end.has_usable_lane()
                    && let Some(number) = state.number(fd)
                {
                    // Whoever sleeps has to look at it: the ring may have something already.
                    state.start_tagging(epfd, number);
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
        state.forget(&this.unlocked, number);
    }
}

/// Calls `each` with every instance that watches `fd`, locked, and its item number.
fn for_watchers_of(fd: i32, mut each: impl FnMut(&'static Instance, &mut State, u32)) {
    for (_, this) in instances() {
        if this.unlocked.item_count() == 0 {
            continue;
        }
        if let Some(mut state) = this.lock()
            && let Some(number) = state.number(fd)
        {
            each(this, &mut state, number);
        }
    }
}

/// A slot on `parking` for each instance that watches `fd`, as a mask. `None` when an instance
/// can get none.
pub fn watchers(fd: i32, parking: &ParkingTable) -> Option<u64> {
    let mut mask = Some(0_u64);
    for_watchers_of(fd, |this, state, _| {
        mask = match (mask, state.slot(&this.unlocked, parking)) {
            (Some(mask), Some(slot)) => Some(mask | 1 << slot),
            _ => None,
        };
    });
    mask
}

/// Whether the program waits for `fd` by an instance, in calls that Sluice sees.
pub fn is_waited_for(fd: i32) -> bool {
    let mut found = Vec::new();
    for_watchers_of(fd, |this, _, _| found.push(this));
    found.into_iter().any(is_instance_waited_for)
}

/// A watched connection has got its lane.
pub fn conn_attached(conn: &Conn) {
    for_watchers_of(conn.fd, |this, state, _| {
        state.watch_attached(&this.unlocked, conn)
    });
}

/// A connection is left to the kernel from now on, which knows its registrations as the program
/// made them. `entry` is what `fd` has just become: another thread may close it and register
/// another connection under the same number.
pub fn bypass(fd: i32, entry: Entry) {
    for_watchers_of(fd, |this, state, number| {
        let is_that_one = fds::get(fd) == entry;
        let is_the_kernels = |item: &mut Item| !item.is_tagged && item.armed.is_none();
        if is_that_one && state.item(number).is_some_and(is_the_kernels) {
            state.forget(&this.unlocked, number);
        }
    });
}

/// A descriptor is added to an instance that we do not know: readiness must be the kernel's.
pub fn watched_from_outside(fd: i32) {
    match fds::get(fd) {
        Entry::Conn { .. } => {
            if let Some(conn) = crate::conn::get(fd) {
                crate::export::export(&conn, Reason::TooManyWatchers);
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
                state.start_tagging(epfd, number);
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
        if this.unlocked.item_count() == 0 {
            continue;
        }
        let Some(mut state) = this.lock_to_leave() else {
            continue;
        };
        while let Some(number) = state.any_number(fd) {
            let Some((is_tagged, is_removed)) = state
                .item(number)
                .map(|item| (item.is_tagged, item.is_removed))
            else {
                break;
            };
            let is_inherited = this.is_inherited();
            match twin_of(fd) {
                Some(twin) if !is_removed => {
                    if was_given && !is_tagged && !is_inherited {
                        // Only by the number that is closed now the kernel could be told to forget it.
                        state.start_tagging(this.epfd(), number);
                    }
                    state.rename(&this.unlocked, number, twin);
                }
                _ => {
                    let is_known = is_tagged || is_given && !is_removed;
                    if is_known && !is_inherited {
                        // Another process that has the socket keeps the registration alive.
                        untag(this.epfd(), fd);
                    }
                    state.forget(&this.unlocked, number);
                }
            }
        }
    }
}

/// Another descriptor of this process for the connection of `fd`.
fn twin_of(fd: i32) -> Option<i32> {
    let entry = fds::get(fd);
    let (Entry::Conn { index, generation } | Entry::Bypassed { index, generation }) = entry else {
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

#[cfg(test)]
mod tests {
    use super::super::instance::{close_descriptor, created};
    use super::super::sleepers::{enter_sleep, leave_sleep};
    use super::*;
    use crate::tests::PLACES;
    use core::ptr::NonNull;
    use sluice_shmem::parking::PARKING_BYTES;

    /// A number that no descriptor of the test has.
    const EPFD: c_int = 70_001;

    fn parking() -> ParkingTable {
        let memory: NonNull<u8> = crate::memory::zeroed(PARKING_BYTES).unwrap();
        // SAFETY: zeroed memory of that size, page aligned, never unmapped.
        unsafe { ParkingTable::from_raw(memory) }
    }

    /// An instance that the kernel has, too, with a slot in the parking table.
    fn make_real(parking: &ParkingTable) -> (u32, c_int, u64) {
        // SAFETY: takes and returns numbers.
        let epfd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        assert!(epfd >= 0);
        created(epfd);
        let Entry::Epoll { index } = fds::get(epfd) else {
            panic!("not an instance");
        };
        let slot = {
            let this = instance(index);
            this.lock().unwrap().slot(&this.unlocked, parking).unwrap()
        };
        (index, epfd, 1 << slot)
    }

    fn change(instance: (u32, c_int), op: c_int, fd: c_int) {
        change_for(libc::EPOLLIN as u32, instance, op, fd);
    }

    fn change_for(events: u32, (index, epfd): (u32, c_int), op: c_int, fd: c_int) {
        let mut event = libc::epoll_event { events, u64: 0 };
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
    fn nobody_sleeps_on_what_is_inside_for_no_events() {
        let _places = PLACES.lock().unwrap();
        fds::init();
        let parking = parking();
        let (outer, outer_fd, outer_slot) = make_real(&parking);
        let (inner, inner_fd, inner_slot) = make_real(&parking);
        change_for(0, (outer, outer_fd), libc::EPOLL_CTL_ADD, inner_fd);
        let sleeper = enter_sleep(outer);
        assert!(parking.any_asleep(outer_slot));
        assert!(!parking.any_asleep(inner_slot), "it would not be woken");
        change((outer, outer_fd), libc::EPOLL_CTL_MOD, inner_fd);
        assert!(parking.any_asleep(inner_slot), "it would from now on");
        leave_sleep(&sleeper);
        assert!(!parking.any_asleep(u64::MAX));
        for (index, epfd) in [(outer, outer_fd), (inner, inner_fd)] {
            close_real(index, epfd);
        }
    }

    #[test]
    fn grandchildren_that_come_and_go_under_a_sleeper() {
        let _places = PLACES.lock().unwrap();
        fds::init();
        let parking = parking();
        let (outer, outer_fd, outer_slot) = make_real(&parking);
        let (inner, inner_fd, inner_slot) = make_real(&parking);
        let (first, first_fd, first_slot) = make_real(&parking);
        let (second, second_fd, second_slot) = make_real(&parking);
        change((outer, outer_fd), libc::EPOLL_CTL_ADD, inner_fd);
        change((inner, inner_fd), libc::EPOLL_CTL_ADD, first_fd);

        let sleepers = [enter_sleep(outer), enter_sleep(outer)];
        change((inner, inner_fd), libc::EPOLL_CTL_DEL, first_fd);
        change((inner, inner_fd), libc::EPOLL_CTL_ADD, second_fd);
        for slot in [outer_slot, inner_slot, second_slot] {
            assert!(parking.any_asleep(slot), "both sleep on what is inside");
        }
        leave_sleep(&sleepers[0]);
        assert!(parking.any_asleep(second_slot), "one sleeps still");
        leave_sleep(&sleepers[1]);
        assert!(
            !parking.any_asleep(first_slot),
            "the one that was taken out"
        );
        assert!(!parking.any_asleep(second_slot), "the one that was put in");
        assert!(!parking.any_asleep(u64::MAX));

        // Closed under a sleeper.
        change((inner, inner_fd), libc::EPOLL_CTL_ADD, first_fd);
        let sleeper = enter_sleep(outer);
        close_real(inner, inner_fd);
        leave_sleep(&sleeper);
        assert!(!parking.any_asleep(u64::MAX));
        for (index, epfd) in [(outer, outer_fd), (first, first_fd), (second, second_fd)] {
            close_real(index, epfd);
        }
    }

    #[test]
    fn sleepers_that_had_nobody_to_tell_are_told_of_when_there_is_somebody() {
        let _places = PLACES.lock().unwrap();
        fds::init();
        let parking = parking();
        let this = make();
        assert!(this.unlocked.sleep_plainly() && this.unlocked.sleep_plainly());
        assert!(this.unlocked.wake_plainly(), "nobody has asked");
        let slot = this.lock().unwrap().slot(&this.unlocked, &parking).unwrap();
        assert!(parking.any_asleep(1 << slot), "the one that sleeps still");
        assert!(!this.unlocked.sleep_plainly(), "there is somebody to tell");
        assert!(!this.unlocked.wake_plainly(), "it is counted");
        assert!(this.lock().unwrap().withdraw_sleep().is_empty());
        assert!(!parking.any_asleep(u64::MAX));

        let Entry::Epoll { index } = fds::take(EPFD) else {
            panic!("not an instance");
        };
        close_descriptor(index, EPFD);
        let next = make();
        assert!(core::ptr::eq(this, next), "the test needs the same place");
        assert!(next.unlocked.sleep_plainly() && next.unlocked.wake_plainly());
        fds::take(EPFD);
        close_descriptor(index, EPFD);
    }

    #[test]
    fn more_children_than_fit_a_small_array() {
        const CHILDREN: usize = 60;
        let _places = PLACES.lock().unwrap();
        fds::init();
        // A parking table has 64 slots, so two of them.
        let parking_tables = [parking(), parking()];
        let (outer, outer_fd, _) = make_real(&parking_tables[0]);
        let mut inner = Vec::new();
        for parking in &parking_tables {
            for _ in 0..CHILDREN {
                inner.push((parking, make_real(parking)));
            }
        }
        for (_, (_, epfd, _)) in &inner {
            change((outer, outer_fd), libc::EPOLL_CTL_ADD, *epfd);
        }
        let sleeper = enter_sleep(outer);
        for (parking, (_, _, slot)) in &inner {
            assert!(parking.any_asleep(*slot), "its peers must ring");
        }
        leave_sleep(&sleeper);
        for (parking, (index, epfd, _)) in inner {
            assert!(!parking.any_asleep(u64::MAX));
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
        let parking = parking();
        let sleep = |this: &Instance| {
            let mut state = this.lock().unwrap();
            let slot = state.slot(&this.unlocked, &parking).unwrap();
            state.announce_sleep();
            slot
        };

        let first = make();
        sleep(first);
        let Entry::Epoll { index } = fds::take(EPFD) else {
            panic!("not an instance");
        };
        close_descriptor(index, EPFD);
        assert!(
            !parking.any_asleep(u64::MAX),
            "nobody rings for a closed one"
        );

        let second = make();
        assert!(
            core::ptr::eq(first, second),
            "the test needs the same place"
        );
        let slot = sleep(second);
        // The first one's sleeper wakes.
        let _ = second.lock().unwrap().withdraw_sleep();
        assert!(parking.any_asleep(1 << slot), "the second one's sleeper");
        let _ = second.lock().unwrap().withdraw_sleep();
        assert!(!parking.any_asleep(u64::MAX));
    }
}
