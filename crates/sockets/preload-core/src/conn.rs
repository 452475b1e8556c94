//! Tracked connections: which descriptors name them, and what is noted of them. What becomes of them is told
//! by [`crate::tracking`].
#![allow(unsafe_code)]

use crate::fds::{self, Entry};
use crate::real::{errno, is_nonblocking, set_errno};
use crate::{ends, log};
use sluice_lane::end::End;
use sluice_lane::reason::Reason;
use sluice_sys::tcp;

/// How often `O_NONBLOCK` is looked at until it stays what it was noted to be.
const NONBLOCK_LOOKS_MAX: u32 = 8;

/// The highest number of a standard stream.
pub(crate) const STANDARD_LAST: i32 = 2;

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
    let table = ends::table()?;
    // SAFETY: the table stays mapped for the process's life.
    let end = unsafe { &*(table.end(index) as *const End) };
    Some(Conn {
        fd,
        end,
        index,
        generation,
    })
}

/// Ends the record of a connection that nobody holds any more, and adds what it has moved to what
/// sluiced sees of ended ones.
pub fn retire(conn: &Conn) {
    if conn.end.is_bypassed() {
        conn.end.take_kernel_counts(conn.fd);
    }
    if let Some(table) = ends::table() {
        table.retire(conn.index, conn.generation);
    }
}

/// sluiced is lost, and with it what moved the bytes of lanes to other hosts.
pub fn lose_carrier() {
    fds::for_each(0, i32::MAX, |fd, entry| {
        if let Entry::Conn { index, generation } = entry
            && let Some(conn) = from_entry(fd, index, generation)
        {
            conn.end.lose_carrier(generation, fd);
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

/// Calls `each` with every connection of the process, bypassed or not, once for each of its
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

/// Calls `each` with every descriptor of this process for a connection, bypassed or not.
pub(crate) fn for_each_fd_of(index: u32, generation: u32, mut each: impl FnMut(i32)) {
    fds::for_each(0, i32::MAX, |fd, entry| {
        if entry.record() == Some((index, generation)) {
            each(fd);
        }
    });
}

/// The connection by one of its descriptors.
pub(crate) fn first_named(entry: Entry) -> Option<Conn> {
    let Entry::Conn { index, .. } = entry else {
        return None;
    };
    let fd = ends::hinted(index)?;
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
    /// What nobody needed to know before.
    pub fn ask_kernel(&self) {
        let before = errno();
        if let (Ok(local), Ok(peer)) = (tcp::local_address(self.fd), tcp::peer_address(self.fd)) {
            self.end.set_addresses(&local, &peer);
        }
        // Another thread may change it, and note that, between the question and the note.
        for _ in 0..NONBLOCK_LOOKS_MAX {
            let is_set = is_nonblocking(self.fd);
            if self.end.is_nonblocking() == is_set {
                break;
            }
            self.end.set_nonblocking(is_set);
        }
        set_errno(before);
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
    pub(crate) fn for_each_name(&self, mut each: impl FnMut(&Conn)) {
        if self.end.refs() == 1 {
            each(self);
        } else {
            for_each_fd_of(self.index, self.generation, |fd| {
                each(&Conn { fd, ..*self })
            });
        }
    }

    /// Whether a standard stream names the connection: stdio, which the hooks do not see, may
    /// use it. Servers started so usually give it another number and these numbers to other
    /// files; then it is a connection like any other.
    pub(crate) fn is_standard_stream(&self) -> bool {
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
