//! Pieces that no connection uses any more, and that some process may still have mapped.
//!
//! sluiced knows programs by their connections to it. A child that a program has forked goes on with a
//! connection when its parent has ended, and nobody says when it is over: it may be in the middle of a copy
//! when the peer's end has long been closed. So a piece is lent anew only when no process of either host
//! has it mapped. Each program gets a descriptor of its own to map, with a lock on the piece's range that
//! the kernel ends with the last mapping ([`sluice_sys::ofd_lock`]). Where both hosts are of one kernel the memory's
//! file is one, and the lender sees the borrower's locks, too. Where they are not, the borrower looks after
//! its own and says when there are none.

use std::ops::Range;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use sluice_sys::errno::Errno;
use sluice_sys::ofd_lock;
use sluice_sys::unix::Fd;

use super::pieces::{Free, WindowId};
use crate::peer::PeerName;

/// Time between two looks, and the longest while all stay mapped: each is a system call for each piece.
const LOOK: Duration = Duration::from_millis(250);
const LOOK_MAX: Duration = Duration::from_secs(8);
/// Time between two looks where every connection that comes finds no room.
const LOOK_URGENT: Duration = Duration::from_millis(20);

/// A descriptor for a program that is to map this range of a window's memory: while any process has it, or
/// maps it, [`is_mapped`] says so.
///
/// # Errors
/// Those of [`ofd_lock::reopen`] and [`ofd_lock::share`].
pub fn descriptor(memory: RawFd, range: &Range<u64>) -> Result<Fd, Errno> {
    let fd = ofd_lock::reopen(memory)?;
    ofd_lock::share(fd.raw(), range)?;
    Ok(fd)
}

/// Whether some process may have a part of this range mapped. What cannot be asked may be so.
pub fn is_mapped(memory: RawFd, range: &Range<u64>) -> bool {
    !matches!(ofd_lock::held(memory, range), Ok(None))
}

/// All of them, of all windows.
#[derive(Debug)]
pub struct Leaving {
    all: Vec<Free>,
    pause: Duration,
    due: Instant,
    /// The last look was then.
    looked: Option<Instant>,
}

impl Leaving {
    pub fn new() -> Leaving {
        Leaving {
            all: Vec::new(),
            pause: LOOK,
            due: Instant::now(),
            looked: None,
        }
    }

    /// Connections have ended: these are to be looked at soon.
    pub fn add(&mut self, pieces: Vec<Free>, now: Instant) {
        if !pieces.is_empty() {
            self.all.extend(pieces);
            self.pause = LOOK;
            self.due = now;
        }
    }

    /// The borrower's daemon says that no process there has the piece mapped.
    pub fn released(&mut self, name: &PeerName, number: u32, now: Instant) {
        let is_it = |it: &&mut Free| it.is_lender && it.peer == *name && it.piece == number;
        for piece in self.all.iter_mut().filter(is_it) {
            // A word that is said again has nothing looked at.
            if !std::mem::replace(&mut piece.is_released, true) {
                self.due = now;
            }
        }
    }

    /// The peer's daemon is another one, or gone for long. Forgets what only that would have said, or would
    /// have heard: it stays lent.
    pub fn peer_lost(&mut self, name: &PeerName, is_same_kernel: bool) {
        self.all.retain(|piece| {
            let is_kept = piece.is_lender && (is_same_kernel || piece.is_released);
            piece.peer != *name || is_kept
        });
    }

    /// Whether there is a piece in this memory of a window.
    pub fn is_in(&self, window: usize, id: WindowId) -> bool {
        let mut all = self.all.iter();
        all.any(|piece| (piece.place.window, piece.place.id) == (window, id))
    }

    /// When [`Leaving::take_free`] has something to look at.
    pub fn next_deadline(&self) -> Option<Instant> {
        (!self.all.is_empty()).then_some(self.due)
    }

    /// Those that nobody has mapped any more. `is_urgent`: room is wanted, and the last look was
    /// not just now.
    pub fn take_free(
        &mut self,
        now: Instant,
        is_urgent: bool,
        is_mapped: impl Fn(&Free) -> bool,
    ) -> Vec<Free> {
        let is_due = match self.looked {
            Some(looked) if is_urgent => now >= looked + LOOK_URGENT,
            _ => is_urgent || now >= self.due,
        };
        if self.all.is_empty() || !is_due {
            return Vec::new();
        }
        self.looked = Some(now);
        let (kept, free): (Vec<Free>, Vec<Free>) = self.all.drain(..).partition(is_mapped);
        self.all = kept;
        if !free.is_empty() {
            self.pause = LOOK;
            self.due = now + LOOK;
        } else if !is_urgent {
            self.due = now + self.pause;
            self.pause = (2 * self.pause).min(LOOK_MAX);
        }
        free
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use sluice_shmem::mapping::Mapping;
    use sluice_sys::memfd;

    use super::super::pieces::Place;
    use super::*;

    const PAGE: u64 = 4096;

    fn piece(at: u64) -> Free {
        let place = Place {
            window: 0,
            own: 0,
            slot: 1,
            id: [1, 2],
        };
        Free {
            place,
            at,
            bytes: 2 * PAGE,
            peer: "b".into(),
            piece: at as u32,
            is_lender: true,
            is_released: false,
        }
    }

    fn range(piece: &Free) -> Range<u64> {
        piece.at..piece.at + piece.bytes
    }

    fn memory() -> Fd {
        let memory = memfd::create(c"sluice-test").expect("memory");
        memfd::set_len(memory.raw(), 16 * PAGE).expect("a size");
        memory
    }

    /// Another process that has the descriptor, as children of programs have what their parents had.
    fn holder(fd: Fd) -> Child {
        let file = std::fs::File::from(std::os::fd::OwnedFd::from(fd));
        let mut command = Command::new("cat");
        command.stdin(Stdio::piped()).stdout(file);
        command.spawn().expect("cat")
    }

    #[test]
    fn a_piece_is_free_when_the_last_process_of_either_host_has_let_go() {
        let memory = memory();
        let start = Instant::now();
        let (first, second) = (piece(4 * PAGE), piece(6 * PAGE));
        let [ours, theirs] =
            [(); 2].map(|()| descriptor(memory.raw(), &range(&first)).expect("a descriptor"));
        let mapped = Mapping::piece(ours.raw(), first.at, 4096).expect("a mapping");
        drop(ours);
        let mut child = holder(theirs);
        let mut leaving = Leaving::new();
        leaving.add(vec![first, second], start);
        let mut freed = |look: u32| {
            let now = start + look * LOOK_URGENT;
            let is_mapped = |piece: &Free| is_mapped(memory.raw(), &range(piece));
            let free = leaving.take_free(now, true, is_mapped);
            free.iter().map(|piece| piece.at).collect::<Vec<u64>>()
        };
        assert_eq!(freed(0), [6 * PAGE], "its neighbour is nobody's");
        drop(mapped);
        assert!(freed(1).is_empty(), "a process of the other host");
        drop(child.stdin.take());
        child.wait().expect("its end");
        assert!(freed(1).is_empty(), "it has just been looked at");
        assert_eq!(freed(2), [4 * PAGE]);
        assert!(freed(3).is_empty());
    }

    #[test]
    fn what_stays_mapped_is_looked_at_less_and_less_often() {
        let start = Instant::now();
        let mut leaving = Leaving::new();
        assert_eq!(leaving.next_deadline(), None);
        leaving.add(vec![piece(0)], start);
        let looks = std::cell::Cell::new(0);
        let mut now = start;
        while now < start + Duration::from_secs(3600) {
            let free = leaving.take_free(now, false, |_| {
                looks.set(looks.get() + 1);
                true
            });
            assert!(free.is_empty());
            now = leaving.next_deadline().expect("it is mapped");
        }
        assert!((450..500).contains(&looks.get()), "{}", looks.get());
        // Another one wakes it.
        leaving.add(vec![piece(2 * PAGE)], now);
        assert_eq!(leaving.take_free(now, false, |_| false).len(), 2);
        assert_eq!(leaving.next_deadline(), None);
    }

    #[test]
    fn what_only_a_lost_peer_could_say_is_waited_for_no_more() {
        let now = Instant::now();
        let all = || {
            let mut leaving = Leaving::new();
            let (lent, mut released, mut borrowed) = (piece(0), piece(PAGE), piece(2 * PAGE));
            let mut another = piece(3 * PAGE);
            released.is_released = true;
            borrowed.is_lender = false;
            another.peer = "c".into();
            leaving.add(vec![lent, released, borrowed, another], now);
            leaving
        };
        let left = |is_same_kernel| {
            let mut leaving = all();
            leaving.peer_lost(&"b".into(), is_same_kernel);
            let free = leaving.take_free(now, true, |_| false);
            free.iter().map(|piece| piece.at).collect::<Vec<u64>>()
        };
        assert_eq!(left(true), [0, PAGE, 3 * PAGE]);
        assert_eq!(left(false), [PAGE, 3 * PAGE]);
    }

    #[test]
    fn a_word_of_the_borrower_has_its_piece_looked_at_and_no_other() {
        let now = Instant::now();
        let mut leaving = Leaving::new();
        leaving.add(vec![piece(0), piece(PAGE)], now);
        let waits = |piece: &Free| !piece.is_released;
        assert!(leaving.take_free(now, false, waits).is_empty());
        leaving.released(&"c".into(), PAGE as u32, now);
        assert!(
            leaving.take_free(now, false, waits).is_empty(),
            "another peer"
        );
        leaving.released(&"b".into(), PAGE as u32, now);
        let free = leaving.take_free(now, false, waits);
        assert!(matches!(&free[..], [it] if it.at == PAGE));
        // Said again, it changes nothing.
        let due = leaving.next_deadline();
        leaving.add(Vec::new(), now);
        leaving.released(&"b".into(), 0, now);
        assert!(leaving.take_free(now, false, |_| true).is_empty());
        let waits = leaving.next_deadline();
        leaving.released(&"b".into(), 0, now);
        assert_eq!(leaving.next_deadline(), waits);
        assert_ne!(due, None);
    }

    #[test]
    fn memory_that_cannot_be_asked_counts_as_mapped() {
        assert!(is_mapped(-1, &(0..PAGE)));
        let memory = memory();
        assert!(is_mapped(memory.raw(), &(0..0)));
        assert!(!is_mapped(memory.raw(), &(0..PAGE)));
    }
}
