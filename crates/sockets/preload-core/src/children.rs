//! What forked children hold, so that it comes back when one is killed or was never made.
//!
//! A fork gives each connection of the process one more descriptor for each that it has, which its record
//! counts before the child exists. A child that is killed does not count itself out, and a fork that fails
//! made none. So the parent makes a *row* for each child before the fork, in memory that both share: how many
//! names the child has for each record. The child keeps it true; what is in it when the child is dead is taken
//! from the records. Only the parent judges, because only a parent knows for certain that a child is dead: the
//! kernel keeps the number until the parent has waited for it.
//!
//! Who is killed between a change of a row and that of its record leaves a name too many, never one too few.
#![allow(unsafe_code)]

use crate::conn::{self, Conn};
use crate::ends;
use crate::fds::{self, Entry};
use crate::lock::SpinLock;
use crate::real::{errno, set_errno};
use crate::this_process;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use sluice_lane::table::ENDS;
use sluice_lane::thread::own;
use sluice_sys::mapping::Mapping;
use sluice_sys::raw;
use std::sync::OnceLock;

/// Children with rows at the same time. What further ones hold is not known.
const CHILDREN_MAX: usize = 256;

/// What one child holds. Half a megabyte, of which the pages exist that its connections need.
#[repr(C)]
struct Row {
    /// The child's number, once it is known; it may say so itself.
    pid: AtomicU32,
    /// 1 while the thread that forks is going to write the number. The row stays until it has: the child may have said
    /// the number, ended and been waited for by then.
    is_awaited: AtomicU32,
    /// No record at or behind this one has an entry.
    used: AtomicU32,
    /// The record's generation, and below it how many names the child has for it.
    entries: [AtomicU64; ENDS as usize],
}

/// The rows of this process's children. Null: a free place.
struct Children([*mut Row; CHILDREN_MAX]);

// SAFETY: rows are reached through atomics, and unmapped by who has taken them out.
unsafe impl Send for Children {}

static CHILDREN: SpinLock<Children> =
    SpinLock::new(Children([core::ptr::null_mut(); CHILDREN_MAX]));
/// How many there are.
static COUNT: AtomicU32 = AtomicU32::new(0);
/// What the parent knows of this process; null for none.
static OWN: AtomicPtr<Row> = AtomicPtr::new(core::ptr::null_mut());

/// Held from the count of the names that a child gets until it has them. A name that another thread placed
/// meanwhile would be the child's, too, and not be counted.
static PLACING: SpinLock<()> = SpinLock::new(());

/// Tells sluiced that a record is free, see [`set_release`].
static RELEASE: OnceLock<fn(u32, u32)> = OnceLock::new();

/// At start: `release` tells sluiced that a connection is closed, by its record and generation. It is the
/// link's, which asks here who else holds a connection.
pub fn set_release(release: fn(u32, u32)) {
    let _ = RELEASE.set(release);
}

fn release(index: u32, generation: u32) {
    if let Some(release) = RELEASE.get() {
        release(index, generation);
    }
}

impl Row {
    fn entry(&self, index: u32) -> &AtomicU64 {
        &self.entries[index as usize % self.entries.len()]
    }

    /// Changes how many names there are in this life of a record, and tells how many there were. `None` from
    /// `change` leaves it.
    fn change(&self, index: u32, generation: u32, change: impl Fn(u32) -> Option<u32>) -> u32 {
        let next =
            |entry: u64| change(names_in(entry, generation)).map(|names| packed(generation, names));
        self.used.fetch_max(index + 1, Ordering::Relaxed);
        let before = self
            .entry(index)
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, next);
        names_in(before.unwrap_or_else(|entry| entry), generation)
    }
}

fn packed(generation: u32, names: u32) -> u64 {
    u64::from(generation) << 32 | u64::from(names)
}

/// How many names an entry has, if it is about this life of the record.
fn names_in(entry: u64, generation: u32) -> u32 {
    if (entry >> 32) as u32 == generation {
        entry as u32
    } else {
        0
    }
}

fn own_row() -> Option<&'static Row> {
    // SAFETY: a child's own row stays mapped for its life.
    unsafe { OWN.load(Ordering::Relaxed).as_ref() }
}

/// This process has another name for the connection, which its record counts.
#[inline]
pub fn note_more(conn: &Conn) {
    if let Some(row) = own_row() {
        let more = |names: u32| (names > 0).then(|| names + 1);
        row.change(conn.index, conn.generation, more);
    }
}

/// It is about to have one fewer.
#[inline]
pub fn note_fewer(conn: &Conn) {
    if let Some(row) = own_row() {
        row.change(conn.index, conn.generation, |names| names.checked_sub(1));
    }
}

/// It has `names` again, or was noted as the only one that has any ([`sluice_lane::end::End::set_owner`]) and
/// is about to be one of several.
pub fn note_all(conn: &Conn, names: u32) {
    if let Some(row) = own_row() {
        row.change(conn.index, conn.generation, |_| Some(names));
    }
}

/// The row says nothing of the connection from now on. How many names it had.
pub fn forget(conn: &Conn) -> u32 {
    let none = |names: u32| (names > 0).then_some(0);
    own_row().map_or(0, |row| row.change(conn.index, conn.generation, none))
}

/// `fd` names a connection from now on. `count` counts it in the record, if it is not the first.
pub fn place(fd: i32, entry: Entry, count: impl FnOnce()) -> bool {
    // None: in a signal handler.
    let _placing = PLACING.lock();
    count();
    fds::set(fd, entry)
}

/// Before a fork: makes the child's row. To be called before names are counted, by [`add`].
pub fn before_fork() {
    PLACING.hold_across_fork();
    judge(None);
    own(|own| own.forking.set(0));
    if ends::table().is_none() || this_process::is_sandboxed() {
        return;
    }
    let Some(mut children) = CHILDREN.lock() else {
        return;
    };
    let Some(place) = children.0.iter_mut().find(|row| row.is_null()) else {
        return;
    };
    let Some(row) = map() else {
        return;
    };
    let is_awaited = own(|own| own.awaits_fork.get());
    // SAFETY: mapped, and nobody else's yet.
    let awaited = unsafe { &row.as_ref().is_awaited };
    awaited.store(u32::from(is_awaited), Ordering::Relaxed);
    *place = row.as_ptr();
    COUNT.fetch_add(1, Ordering::Relaxed);
    own(|own| own.forking.set(row.as_ptr() as usize));
}

/// The child that is about to be made has a name for this connection.
pub fn add(conn: &Conn) {
    // SAFETY: made by this thread; the child that has it does not exist.
    if let Some(row) = unsafe { forking().as_ref() } {
        row.change(conn.index, conn.generation, |names| Some(names + 1));
    }
}

fn forking() -> *const Row {
    own(|own| own.forking.get()) as *const Row
}

/// Undoes [`before_fork`] in the parent.
pub fn release_after_fork() {
    PLACING.release_after_fork();
}

/// In the child. `knows_number`: it has the same number in its parent's eyes as in its own.
pub fn after_fork_child(knows_number: bool) {
    let row = forking().cast_mut();
    own(|own| own.forking.set(0));
    OWN.store(row, Ordering::Relaxed);
    // SAFETY: the row of this process, which its parent has mapped, too.
    if let Some(row) = unsafe { row.as_ref() }
        && knows_number
    {
        row.pid.store(this_process::pid(), Ordering::Release);
    }
    PLACING.force_open();
    CHILDREN.force_open();
    let Some(mut children) = CHILDREN.try_lock() else {
        return;
    };
    for place in &mut children.0 {
        let others = core::mem::replace(place, core::ptr::null_mut());
        if !others.is_null() && others != row {
            unmap(others);
        }
    }
    COUNT.store(0, Ordering::Relaxed);
}

/// Calls a function of the C library that forks, and in the parent notes what it returned: the child's number,
/// or that there is none.
pub fn around_fork(call: impl FnOnce() -> i32) -> i32 {
    // A fork that nobody has seen return may have left something. The function may fail before it forks.
    own(|own| (own.forking.set(0), own.awaits_fork.set(true)));
    let result = call();
    own(|own| own.awaits_fork.set(false));
    if result != 0 {
        let errno = errno();
        note_result(result);
        set_errno(errno);
    }
    result
}

fn note_result(result: i32) {
    let row = forking();
    own(|own| own.forking.set(0));
    let Some(row) = NonNull::new(row.cast_mut()) else {
        return;
    };
    if let Ok(pid @ 1..) = u32::try_from(result) {
        // SAFETY: mapped while the number is awaited.
        let row = unsafe { row.as_ref() };
        row.pid.store(pid, Ordering::Release);
        row.is_awaited.store(0, Ordering::Release);
    } else if take(|known| known == row.as_ptr()).is_some() {
        end(row);
    }
}

/// Somebody else holds the connection, or did: takes back what dead children held, all of them or those that
/// have a name for it.
pub fn judge(conn: Option<&Conn>) {
    if COUNT.load(Ordering::Relaxed) == 0
        || this_process::is_sandboxed()
        || !this_process::is_itself()
    {
        return;
    }
    let is_over = |row: *mut Row| {
        // SAFETY: rows in the list are mapped.
        let row = unsafe { &*row };
        if row.is_awaited.load(Ordering::Acquire) != 0 {
            return false;
        }
        let holds = |conn: &Conn| {
            let entry = row.entry(conn.index).load(Ordering::Relaxed);
            names_in(entry, conn.generation) != 0
        };
        conn.is_none_or(holds) && is_dead(row.pid.load(Ordering::Acquire))
    };
    while let Some(row) = take(is_over) {
        end(row);
    }
}

/// How many names children have for the connection, as far as there are rows.
pub fn names(conn: &Conn) -> u32 {
    if COUNT.load(Ordering::Relaxed) == 0
        || this_process::is_sandboxed()
        || !this_process::is_itself()
    {
        return 0;
    }
    let Some(children) = CHILDREN.lock() else {
        return 0;
    };
    let rows = children.0.iter().filter(|row| !row.is_null());
    // SAFETY: who unmaps a row takes it out of the list before, under the lock.
    let entries = rows.map(|row| unsafe { &**row }.entry(conn.index).load(Ordering::Relaxed));
    entries.map(|entry| names_in(entry, conn.generation)).sum()
}

impl Conn {
    /// Whether no other process holds the connection, as far as counted.
    pub(crate) fn is_ours_alone(&self) -> bool {
        let is_alone = || {
            let refs = self.end.refs();
            refs == 1 || self.own_names().count == refs
        };
        is_alone() || {
            judge(Some(self));
            is_alone()
        }
    }

    /// Whether no other process but children of this one holds the connection. Its lane waits for
    /// their end, and the other end of the connection, which may not ask again, has it until then.
    pub(crate) fn is_ours_or_childrens(&self) -> bool {
        self.is_ours_alone() || self.own_names().count + names(self) == self.end.refs()
    }
}

/// What a wait of the program's returned: the number of a child that may have ended, or none.
pub fn waited_for(pid: i32) -> i32 {
    let is_nothing_to_do = COUNT.load(Ordering::Relaxed) == 0 || pid <= 0;
    if is_nothing_to_do || this_process::is_sandboxed() || !this_process::is_itself() {
        return pid;
    }
    let errno = errno();
    let is_it = |row: *mut Row| {
        // SAFETY: rows in the list are mapped.
        let row = unsafe { &*row };
        let known = row.pid.load(Ordering::Acquire);
        let is_whole = row.is_awaited.load(Ordering::Acquire) == 0;
        known == pid as u32 && is_whole && is_dead(known)
    };
    if let Some(row) = take(is_it) {
        end(row);
    }
    set_errno(errno);
    pid
}

/// Takes a row that `is` it out of the list.
fn take(is: impl Fn(*mut Row) -> bool) -> Option<NonNull<Row>> {
    let mut children = CHILDREN.lock()?;
    let place = children
        .0
        .iter_mut()
        .find(|place| !place.is_null() && is(**place))?;
    COUNT.fetch_sub(1, Ordering::Relaxed);
    NonNull::new(core::mem::replace(place, core::ptr::null_mut()))
}

/// Takes from the records what the row has, which is in no list any more.
fn end(row: NonNull<Row>) {
    // SAFETY: mapped until the end of this function.
    let known = unsafe { row.as_ref() };
    for index in 0..known.used.load(Ordering::Relaxed).min(ENDS) {
        let entry = known.entry(index).swap(0, Ordering::AcqRel);
        let (generation, names) = ((entry >> 32) as u32, entry as u32);
        if names == 0 {
            continue;
        }
        let Some(conn) = conn::from_entry(-1, index, generation) else {
            continue;
        };
        if conn.end.generation() != generation || conn.end.leave_to_others(names) {
            continue;
        }
        // Nobody is left who could use the record.
        if let Some(table) = ends::table() {
            table.abandon(index, generation);
        }
        release(index, generation);
    }
    unmap(row.as_ptr());
}

/// Whether the child is dead. One whose number is not known is not.
fn is_dead(pid: u32) -> bool {
    if pid == 0 {
        return false;
    }
    // SAFETY: zeroes are a value of the struct.
    let mut info: libc::siginfo_t = unsafe { core::mem::zeroed() };
    let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: waitid writes one siginfo_t. WNOWAIT leaves the child to the program's own wait.
    let result = raw::check(unsafe {
        raw::syscall5(
            libc::SYS_waitid,
            libc::P_PID as usize,
            pid as usize,
            (&raw mut info) as usize,
            options as usize,
            0,
        )
    });
    match result {
        // SAFETY: the kernel filled it, with 0 for a child that lives.
        Ok(_) => unsafe { info.si_pid() != 0 },
        // The program has waited for it, or wants to know of none.
        Err(errno) => errno.0 == libc::ECHILD,
    }
}

fn map() -> Option<NonNull<Row>> {
    let memory = Mapping::anonymous(size_of::<Row>()).ok()?;
    Some(memory.leak().cast())
}

fn unmap(row: *mut Row) {
    // SAFETY: mapped by `map`, and in no list any more.
    unsafe {
        sluice_sys::locked::forget(row as usize);
        libc::munmap(row.cast(), size_of::<Row>());
    }
}
