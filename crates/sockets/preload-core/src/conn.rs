//! Tracked connections: from accept or connect to the last close.
#![allow(unsafe_code)]

use crate::fds::{self, Entry};
use crate::{children, config, descriptors, epoll, link, log, policy, process, stats, uring};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicI32, AtomicPtr, Ordering};
use sluice_control::message::Lane;
use sluice_lane::clock::now_ns;
use sluice_lane::end::{Assignment, End, Role, State, Traffic};
use sluice_lane::reason::Reason;
use sluice_lane::table::{ENDS, EndTable};
use sluice_lane::thread;
use sluice_shmem::board::Board;
use sluice_sys::errno::Errno;
use sluice_sys::tcp;
use sluice_sys::unix::Fd;

static TABLE: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());
/// The end table's file, until sluiced has got it; -1 afterwards.
static TABLE_FILE: AtomicI32 = AtomicI32::new(-1);
/// For each record a descriptor that names it (hints).
static FD_OF_END: AtomicPtr<AtomicI32> = AtomicPtr::new(core::ptr::null_mut());

/// Reads and writes of a connection that waits for a lane between two looks whether sluiced is
/// still there: a system call among so many does not show.
const DAEMON_CHECK_OPS: u32 = 1024;

/// Reads behind a read, and writes behind a write, that count like one request or one answer.
/// One large answer comes in several pieces, and its connection may carry no other.
const REPEATS_PER_TURN: u32 = 8;

/// Turns of an announced connection without a lane until sluiced is asked whether one may still
/// come. The other end, which took part in all of them, was to be announced after a few.
const SETTLE_TURNS: u32 = 256;

/// How often `O_NONBLOCK` is looked at until it stays what it was noted to be.
const NONBLOCK_LOOKS_MAX: u32 = 8;

/// A process that may have less address space than this (`ulimit -v`) gets no lanes. The end table
/// takes 20 MiB, and the first chunk 32.
const ADDRESS_BYTES_MIN: u64 = 256 << 20;

/// The highest number of a standard stream.
const STANDARD_LAST: i32 = 2;

/// A tracked connection, as one descriptor names it.
#[derive(Clone, Copy)]
pub struct Conn {
    /// The descriptor.
    pub fd: i32,
    /// Its record.
    pub end: &'static End,
    /// The record's number.
    pub index: u32,
    /// The life of the record that the descriptor names.
    pub generation: u32,
}

/// The descriptors of this process that name a connection.
#[derive(Clone, Copy)]
pub struct Names {
    /// The lowest.
    pub first: i32,
    /// How many there are.
    pub count: u32,
}

/// The end table of this process, once it has one.
pub fn table() -> Option<EndTable> {
    // SAFETY: the address was stored by `make_table` and stays mapped.
    NonNull::new(TABLE.load(Ordering::Acquire)).map(|base| unsafe { EndTable::from_raw(base) })
}

/// The tracked connection of `fd`.
#[inline]
pub fn get(fd: i32) -> Option<Conn> {
    match fds::get(fd) {
        Entry::Conn { index, generation } => from_entry(fd, index, generation),
        _ => None,
    }
}

/// The connection that an entry of the descriptor table names.
pub fn from_entry(fd: i32, index: u32, generation: u32) -> Option<Conn> {
    let table = table()?;
    // SAFETY: the table stays mapped for the process's life.
    let end = unsafe { &*(table.end(index) as *const End) };
    Some(Conn {
        fd,
        end,
        index,
        generation,
    })
}

/// Whether the process may have so little address space that tables and rings could take what the
/// program needs: it would fail where it runs without the library.
fn is_short_of_addresses() -> bool {
    let mut limit = libc::rlimit {
        rlim_cur: libc::RLIM_INFINITY,
        rlim_max: libc::RLIM_INFINITY,
    };
    // SAFETY: getrlimit writes one struct.
    unsafe { libc::getrlimit(libc::RLIMIT_AS, &raw mut limit) };
    limit.rlim_cur < ADDRESS_BYTES_MIN
}

fn make_table() -> Option<EndTable> {
    if let Some(table) = table() {
        return Some(table);
    }
    if is_short_of_addresses() {
        return None;
    }
    let hints = crate::memory::zeroed(ENDS as usize * size_of::<AtomicI32>())?;
    // Before there are locks that forks share.
    sluice_lane::lock::threads::share();
    let (made, file) = link::new_table().ok()?;
    FD_OF_END.store(hints.as_ptr().cast(), Ordering::Relaxed);
    // SAFETY: record 0 lies behind the header of a table that was just made.
    let base = unsafe {
        (made.end(0) as *const End)
            .cast::<u8>()
            .sub(sluice_lane::table::HEADER_BYTES)
            .cast_mut()
    };
    match TABLE.compare_exchange(
        core::ptr::null_mut(),
        base,
        Ordering::AcqRel,
        Ordering::Acquire,
    ) {
        Ok(_) => {
            TABLE_FILE.store(file.into_raw(), Ordering::Release);
            Some(made)
        }
        // Another thread was faster; its table counts, this one's address space is lost.
        Err(_) => table(),
    }
}

/// The end table's file for the hello to sluiced; an empty one if it was given away before
/// (in forked children, whose parent's table has it all, and after a lost daemon). Whether it is
/// the table itself is the second value.
pub fn table_file() -> Result<(Fd, bool), Errno> {
    // A server meets sluiced before it has a connection. Made later, the table would never be
    // seen, and its file would stay open among the program's descriptors.
    let _ = make_table();
    match TABLE_FILE.swap(-1, Ordering::AcqRel) {
        -1 => {
            let file = sluice_sys::memfd::create(c"sluice-ends")?;
            let bytes = sluice_lane::table::table_bytes() as u64;
            sluice_sys::memfd::set_len(file.raw(), bytes)?;
            sluice_sys::memfd::add_seals(
                file.raw(),
                sluice_sys::memfd::SEAL_SHRINK
                    | sluice_sys::memfd::SEAL_GROW
                    | sluice_sys::memfd::SEAL_FUTURE_WRITE,
            )?;
            Ok((file, false))
        }
        fd => Ok((Fd::own(fd), true)),
    }
}

/// Starts to track the connection of `fd`. A descriptor that cannot be tracked stays the
/// kernel's.
///
/// Most connections of some programs carry one request. So nothing is asked of the kernel here
/// that the announcement can ask later.
pub fn track(fd: i32, role: Role) {
    if process::is_confined() {
        leave_untracked(fd, Reason::Confined);
        return;
    }
    let Some((index, generation)) =
        make_table().and_then(|table| table.take(process::knows_owners()))
    else {
        leave_untracked(fd, Reason::NoMemory);
        return;
    };
    let Some(conn) = from_entry(fd, index, generation) else {
        return;
    };
    conn.end.start(role);
    conn.note_owner();
    hint(index, fd);
    if !fds::set(fd, Entry::Conn { index, generation }) {
        conn.end.finish(generation);
        return;
    }
    stats::count_connection();
    link::meet();
}

/// The connection stays the kernel's, and is only counted.
fn leave_untracked(fd: i32, reason: Reason) {
    fds::set(fd, Entry::Socket);
    stats::count_untracked(reason);
    log!(Debug, "fd {fd}: on TCP: {}", reason.text());
}

fn hint(index: u32, fd: i32) {
    let hints = FD_OF_END.load(Ordering::Relaxed);
    if !hints.is_null() && index < ENDS {
        // SAFETY: one hint a record.
        unsafe { &*hints.add(index as usize) }.store(fd, Ordering::Relaxed);
    }
}

/// `fd` is another descriptor of this process for the connection that `entry` names.
pub fn add_descriptor(conn: &Conn, entry: Entry, fd: i32) {
    if conn.end.generation() == conn.generation {
        conn.end.add_ref();
        children::note_more(conn);
    }
    fds::set(fd, entry);
    if fd <= STANDARD_LAST && conn.end.state() != State::Tracked {
        conn.pin(Reason::KernelCall);
    }
}

/// A descriptor that names the connection is about to be closed.
pub fn drop_descriptor(conn: &Conn) {
    stats::add_end(conn);
    let_go(conn);
}

/// One descriptor fewer; with the last, the record is free for another connection.
pub fn let_go(conn: &Conn) {
    if conn.end.generation() != conn.generation {
        // Given back before an exec that failed.
        return;
    }
    children::note_fewer(conn);
    if !conn.end.drop_ref() {
        children::judge(Some(conn));
        return;
    }
    let state = conn.end.state();
    // As TCP does: closing with unread bytes resets the connection (RFC 1122, 4.2.2.13).
    if state == State::Attached
        && conn.end.unread_ring_bytes(conn.generation, conn.fd) > 0
        && !conn.end.has_copies()
    {
        let _ = sluice_sys::unix::reset_at_close(conn.fd);
    }
    if state != State::Attached || conn.end.reason() == Reason::Broken {
        log!(
            Debug,
            "fd {}: closed on TCP: {}",
            conn.fd,
            conn.end.reason().text()
        );
    }
    let announced = state != State::Tracked;
    retire(conn);
    if announced {
        link::release(conn.index, conn.generation);
    }
}

/// Ends the record of a connection that nobody holds any more, and adds what it has moved to what
/// sluiced sees of ended ones.
pub fn retire(conn: &Conn) {
    if conn.end.is_settled() {
        conn.end.take_kernel_counts(conn.fd);
    }
    if let Some(table) = table() {
        table.retire(conn.index, conn.generation);
    }
}

/// sluiced is lost: what only it knew has to be announced again, to the next one. Connections
/// with a lane need nobody.
pub fn announce_again() {
    fds::for_each(0, i32::MAX, |fd, entry| {
        let Entry::Conn { index, generation } = entry else {
            return;
        };
        // Another holder may have a daemon that knows the connection.
        if let Some(conn) = from_entry(fd, index, generation)
            && conn.end.state() == State::Announced
            && conn.is_ours_alone()
            && !conn.end.is_pinned()
        {
            conn.end.unmark_announced();
            conn.keep_off(Reason::NoDaemon);
        }
    });
}

/// sluiced is lost, and with it what moved the bytes of lanes to other hosts.
pub fn lose_carrier() {
    fds::for_each(0, i32::MAX, |fd, entry| {
        if let Entry::Conn { index, generation } = entry
            && let Some(conn) = from_entry(fd, index, generation)
        {
            conn.end.lose_carrier(generation);
        }
    });
}

/// Looks whether connections to other hosts were reset while sluiced keeps their readers awake.
pub fn check_resets() {
    fds::for_each(0, i32::MAX, |fd, entry| {
        if let Entry::Conn { index, generation } = entry
            && let Some(conn) = from_entry(fd, index, generation)
        {
            conn.end.check_reset(fd);
        }
    });
}

/// A lane that sluiced assigned.
pub fn attach(lane: &Lane, mut assignment: Assignment) {
    let entry = Entry::Conn {
        index: lane.end,
        generation: lane.generation,
    };
    let Some(conn) = first_named(entry) else {
        return;
    };
    let fd = conn.fd;
    if conn.end.generation() != lane.generation || !link::is_same_socket(fd, lane.cookie) {
        return;
    }
    uring::check();
    if uring::is_blind() {
        conn.pin(Reason::IoUring);
        return;
    }
    if !conn.is_ours_alone() {
        conn.keep_off(Reason::Shared);
        return;
    }
    if conn.is_standard_stream() {
        conn.keep_off(Reason::KernelCall);
        return;
    }
    // Who wants a lane for the first operation has it however fast the next one comes.
    assignment.patient = config::min_ops() > 1 && !thread::is_lively(now_ns);
    if !assignment.patient {
        match conn.watchers(&assignment.own_board) {
            Some(watchers) => assignment.watchers = watchers,
            None => {
                conn.pin(Reason::TooManyWatchers);
                return;
            }
        }
    }
    if conn.end.attach(conn.generation, &assignment) {
        log!(Info, "fd {fd}: lane {} of chunk {}", lane.lane, lane.chunk);
        stats::count_lane();
        crate::options::turn_nagle_off(&conn);
        conn.for_each_name(epoll::conn_attached);
    }
}

/// A lane that sluiced assigned, and that this process cannot take.
pub fn go_without(lane: &Lane, reason: Reason) {
    let (index, generation) = (lane.end, lane.generation);
    let conn = first_named(Entry::Conn { index, generation });
    if let Some(conn) = conn.filter(|conn| conn.end.generation() == generation) {
        conn.keep_off(reason);
    }
}

/// sluiced has heard everybody, and nobody has the other end, so it has forgotten this one: the
/// kernel alone is enough from now on. While another process holds the connection, too, it is
/// announced again instead, once one of them has it alone.
pub fn settle(index: u32, generation: u32) {
    let Some(conn) = first_named(Entry::Conn { index, generation }) else {
        return;
    };
    if conn.end.generation() != generation || conn.end.state() != State::Announced {
        return;
    }
    if !conn.is_ours_alone() {
        if conn.end.unmark_announced() {
            conn.keep_off(Reason::Shared);
        }
        return;
    }
    conn.end.pin(generation, Reason::NoPeer);
    // Somebody else may have found a lane for it in this very moment.
    if !conn.end.unmark_announced() {
        return;
    }
    leave_alone(&conn);
}

/// The hooks leave the connection alone from now on, which is pinned and has no lane.
fn leave_alone(conn: &Conn) {
    let (index, generation) = (conn.index, conn.generation);
    let (from, to) = (
        Entry::Conn { index, generation },
        Entry::Settled { index, generation },
    );
    log!(Debug, "fd {}: settled on TCP", conn.fd);
    conn.for_each_name(|name| {
        if fds::replace(name.fd, from, to) {
            epoll::settle(name.fd, to);
        }
    });
}

/// Calls `each` with every connection of the process, settled or not, once for each of its
/// descriptors up to `last`. Those whose life is over are none.
pub fn for_each(last: i32, mut each: impl FnMut(&Conn)) {
    fds::for_each(0, last, |fd, entry| {
        if let Some((index, generation)) = entry.record()
            && let Some(conn) = from_entry(fd, index, generation)
            && conn.end.generation() == generation
        {
            each(&conn);
        }
    });
}

/// Calls `each` with every descriptor of this process for a connection, settled or not.
pub(crate) fn for_each_fd_of(index: u32, generation: u32, mut each: impl FnMut(i32)) {
    fds::for_each(0, i32::MAX, |fd, entry| {
        if entry.record() == Some((index, generation)) {
            each(fd);
        }
    });
}

/// The connection by one of its descriptors.
fn first_named(entry: Entry) -> Option<Conn> {
    let Entry::Conn { index, .. } = entry else {
        return None;
    };
    let hints = FD_OF_END.load(Ordering::Relaxed);
    if hints.is_null() || index >= ENDS {
        return None;
    }
    // SAFETY: one hint a record.
    let fd = unsafe { &*hints.add(index as usize) }.load(Ordering::Relaxed);
    let mut named = (fds::get(fd) == entry).then_some(fd);
    if named.is_none() {
        fds::for_each(0, i32::MAX, |fd, other| {
            if other == entry {
                named = Some(fd);
            }
        });
    }
    named.and_then(get)
}

impl Conn {
    /// Accounts for one read or write. Announces the connection when it has had enough of them
    /// to be worth a lane, and asks to be left alone when none has come for long.
    #[inline]
    pub fn note_operation(&self, is_write: bool, bytes: usize) {
        if self.end.is_patient() {
            if thread::note_operation_and_ask(bytes, now_ns) {
                self.end_patience();
            }
            return;
        }
        thread::note_operation(bytes);
        match self.end.state() {
            State::Tracked => {
                let traffic = self.end.count_operation(is_write);
                if traffic.turns + traffic.repeats / REPEATS_PER_TURN >= config::min_ops() {
                    self.announce();
                }
            }
            State::Announced => self.note_waiting(is_write),
            _ => {}
        }
    }

    /// The lane that lay unused is used from now on.
    #[cold]
    fn end_patience(&self) {
        let Some(board) = self.end.own_board() else {
            return;
        };
        match self.watchers(&board) {
            Some(watchers) => {
                self.end.end_patience(watchers);
                self.for_each_name(epoll::conn_attached);
            }
            None => self.pin(Reason::TooManyWatchers),
        }
    }

    fn note_waiting(&self, is_write: bool) {
        let traffic = self.end.count_operation(is_write);
        let Traffic { turns, repeats, .. } = traffic;
        if turns.wrapping_add(repeats).is_multiple_of(DAEMON_CHECK_OPS) {
            link::check_daemon();
        }
        // Seldomer each time that no answer comes.
        let is_long = turns >= SETTLE_TURNS.max(config::min_ops().saturating_mul(4));
        if traffic.is_turn && is_long && turns.is_power_of_two() {
            link::ask_to_settle(self);
        }
    }

    #[cold]
    fn announce(&self) {
        if process::is_confined() {
            self.keep_off(Reason::Confined);
        } else if uring::is_blind() {
            self.pin(Reason::IoUring);
        } else if self.end.role() == Role::Unknown {
            self.keep_off(Reason::UnknownOrigin);
        } else if self.end.is_pinned() {
        } else if !self.is_ours_alone() {
            self.keep_off(Reason::Shared);
        } else if self.is_standard_stream() {
            self.keep_off(Reason::KernelCall);
        } else if !link::has_daemon() {
            self.keep_off(Reason::NoDaemon);
        } else {
            self.ask_kernel();
            if !policy::allows(self.end.ports()) {
                self.pin(Reason::Policy);
                leave_alone(self);
                return;
            }
            self.note_owner();
            if !self.is_waited_for() {
                self.keep_off(Reason::UnseenWaits);
            } else if link::announce(self) {
                return;
            }
        }
        // Asked again after as much traffic as there was so far.
        self.end.restart_traffic();
    }

    /// Notes that this process alone holds the connection, if so: should it be killed, the others
    /// that share its end table get the record back.
    fn note_owner(&self) {
        if !process::knows_owners() {
            return;
        }
        let forks = process::forks();
        if self.end.refs() == 1 {
            children::forget(self);
            self.end.set_owner(process::pid());
        }
        if process::forks() != forks {
            // Of another thread, who may have looked at the record before.
            self.end.clear_owner();
        }
    }

    /// What nobody needed to know before.
    pub fn ask_kernel(&self) {
        let before = crate::real::errno();
        if let (Ok(local), Ok(peer)) = (tcp::local_address(self.fd), tcp::peer_address(self.fd)) {
            self.end.set_addresses(&local, &peer);
        }
        // Another thread may change it, and note that, between the question and the note.
        for _ in 0..NONBLOCK_LOOKS_MAX {
            let is_nonblocking = descriptors::is_nonblocking(self.fd);
            if self.end.is_nonblocking() == is_nonblocking {
                break;
            }
            self.end.set_nonblocking(is_nonblocking);
        }
        crate::real::set_errno(before);
    }

    /// Whether the program waits for the connection where ring bytes can end the wait. Some
    /// programs read and write through the C library, and wait by system calls of their own.
    fn is_waited_for(&self) -> bool {
        !self.end.is_nonblocking() || self.end.is_wait_seen() || epoll::is_watched(self.fd)
    }

    /// Whether no other process holds the connection, as far as counted.
    pub(crate) fn is_ours_alone(&self) -> bool {
        let is_alone = || {
            let refs = self.end.refs();
            refs == 1 || self.own_names().count == refs
        };
        is_alone() || {
            children::judge(Some(self));
            is_alone()
        }
    }

    /// The descriptors of this process that name the connection.
    pub fn own_names(&self) -> Names {
        let mut names = Names {
            first: self.fd,
            count: 0,
        };
        self.for_each_name(|name| {
            names.first = names.first.min(name.fd);
            names.count += 1;
        });
        names
    }

    /// Calls `each` with the connection by each of these descriptors.
    fn for_each_name(&self, mut each: impl FnMut(&Conn)) {
        if self.end.refs() == 1 {
            each(self);
        } else {
            for_each_fd_of(self.index, self.generation, |fd| {
                each(&Conn { fd, ..*self })
            });
        }
    }

    /// The slots on `board` of the instances that watch the connection, by whichever name. `None` when
    /// one can get none.
    fn watchers(&self, board: &Board) -> Option<u64> {
        let mut all = Some(0);
        self.for_each_name(|name| {
            all = all
                .zip(epoll::watchers(name.fd, board))
                .map(|(some, more): (u64, u64)| some | more);
        });
        all
    }

    /// Whether a standard stream names the connection: stdio, which the hooks do not see, may
    /// use it. Servers started so usually give it another number and these numbers to other
    /// files; then it is a connection like any other.
    fn is_standard_stream(&self) -> bool {
        let entry = Entry::Conn {
            index: self.index,
            generation: self.generation,
        };
        (0..=STANDARD_LAST).any(|fd| fds::get(fd) == entry)
    }

    /// Says why the connection has no lane, for now. It may be asked again and again, so only
    /// another reason than the last one is logged.
    pub fn keep_off(&self, reason: Reason) {
        if self.end.reason() != reason {
            log!(Debug, "fd {}: on TCP: {}", self.fd, reason.text());
            self.end.set_reason(reason);
        }
    }

    /// Keeps the connection on TCP from now on.
    pub fn pin(&self, reason: Reason) {
        if !self.end.is_pinned() {
            log!(Info, "fd {}: stays on TCP: {}", self.fd, reason.text());
            self.end.pin(self.generation, reason);
        }
    }
}
