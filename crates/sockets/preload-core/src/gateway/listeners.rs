//! What came back when the sockets of this process were published.
#![allow(unsafe_code)]

use core::mem::MaybeUninit;
use core::ptr::NonNull;

use sluice_control::message::gateway::Ranges;
use sluice_control::preface::Key;

use crate::lock::SpinLock;
use crate::memory;

/// Listening sockets of one process of which this is known: as many as a node may publish. One more
/// takes the place of another, about which the daemon is then asked again.
pub const LISTENERS_MAX: usize = 1_024;

/// How connections of a gateway are recognised.
#[derive(Clone, Copy, Debug)]
pub struct Listener {
    pub key: Key,
    /// Where the gateway connects from.
    pub sources: Ranges,
}

/// What is known of a socket.
#[derive(Clone, Copy, Debug)]
pub enum Known {
    Published(Listener),
    /// The daemon has not said that it is, and is not asked before this time of `CLOCK_MONOTONIC`.
    Not {
        again_at_ns: u64,
        /// Nobody has said no: it is to be published when there is a daemon.
        is_wanted: bool,
    },
}

#[derive(Clone, Copy)]
struct Row {
    /// `SO_COOKIE`: the number of its descriptor may be another's by now.
    cookie: u64,
    known: Known,
}

struct Table {
    rows: &'static mut [MaybeUninit<Row>],
    /// So many of the first are there.
    len: usize,
    /// Where the next one goes if there is no place left.
    oldest: usize,
}

static TABLE: SpinLock<Table> = SpinLock::new(Table::new());

impl Table {
    const fn new() -> Table {
        Table {
            rows: &mut [],
            len: 0,
            oldest: 0,
        }
    }

    fn init(&mut self) {
        if self.rows.is_empty()
            && let Some(base) = memory::zeroed(LISTENERS_MAX * size_of::<Row>())
        {
            let base: NonNull<MaybeUninit<Row>> = base.cast();
            // SAFETY: a page's alignment, this length, and nobody else's for the life of the process.
            self.rows = unsafe { core::slice::from_raw_parts_mut(base.as_ptr(), LISTENERS_MAX) };
        }
    }

    fn row(&mut self, cookie: u64) -> Option<&mut Row> {
        let there = self.rows.get_mut(..self.len)?;
        // SAFETY: `put` has written all of these.
        let mut there = there.iter_mut().map(|row| unsafe { row.assume_init_mut() });
        there.find(|row| row.cookie == cookie)
    }

    fn put(&mut self, row: Row) {
        if let Some(found) = self.row(row.cookie) {
            *found = row;
            return;
        }
        let len = self.len;
        if len < self.rows.len() {
            self.rows[len].write(row);
            self.len += 1;
        } else if len > 0 {
            let place = self.oldest % len;
            self.rows[place].write(row);
            self.oldest = place + 1;
        }
    }
}

/// Makes room, which takes no memory before it is used.
pub fn init() {
    if let Some(mut table) = TABLE.lock() {
        table.init();
    }
}

/// What is known of the socket with this cookie.
pub fn find(cookie: u64) -> Option<Known> {
    let mut table = TABLE.lock()?;
    table.row(cookie).map(|row| row.known)
}

/// From now on this is known.
pub fn put(cookie: u64, known: Known) {
    if let Some(mut table) = TABLE.lock() {
        table.put(Row { cookie, known });
    }
}

pub fn before_fork() {
    TABLE.hold_across_fork();
}

pub fn release_after_fork() {
    TABLE.release_after_fork();
}

pub fn open_in_child() {
    TABLE.force_open();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_writes_while_the_process_forks() {
        before_fork();
        assert!(TABLE.try_lock().is_none());
        release_after_fork();
        crate::lock::forget_held();
        assert!(TABLE.lock().is_some());
    }

    #[test]
    fn as_many_are_known_as_a_node_may_publish_and_then_the_oldest_gives_way() {
        let mut table = Table::new();
        table.init();
        let known = |again_at_ns| Known::Not {
            again_at_ns,
            is_wanted: false,
        };
        let all = 3 * LISTENERS_MAX as u64;
        for cookie in 0..all {
            // Said twice, it takes one place.
            for again_at_ns in [0, cookie] {
                let known = known(again_at_ns);
                table.put(Row { cookie, known });
            }
        }
        for cookie in 0..all {
            let found = table.row(cookie).map(|row| row.known);
            let is_new = cookie >= all - LISTENERS_MAX as u64;
            assert_eq!(found.is_some(), is_new, "{cookie}");
            if let Some(Known::Not { again_at_ns, .. }) = found {
                assert_eq!(again_at_ns, cookie);
            }
        }
    }
}
