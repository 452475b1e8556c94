//! What this process says at its board, of writes that go by no lane.
#![allow(unsafe_code)]

use core::ptr::NonNull;
use core::sync::atomic::{AtomicPtr, Ordering};
use sluice_shmem::board::Board;

/// The board of this process, for what has no lane to be said in, and those it had before it was forked, at
/// which the peers of inherited lanes look; null for none.
static OWN_BOARDS: [AtomicPtr<u8>; 4] = [const { AtomicPtr::new(core::ptr::null_mut()) }; 4];

/// Says which board this process writes.
pub fn set_own_board(board: Board) {
    let mut before = board.address() as *mut u8;
    for word in &OWN_BOARDS {
        before = word.swap(before, Ordering::AcqRel);
    }
}

pub(crate) fn own_boards() -> impl Iterator<Item = Board> {
    OWN_BOARDS
        .iter()
        .map_while(|word| NonNull::new(word.load(Ordering::Acquire)))
        // SAFETY: `set_own_board` got boards, which stay mapped for writing for the process's life.
        .map(|base| unsafe { Board::from_raw(base) })
}

/// Says that the kernel has taken a write of this process, to whatever descriptor, or given it what somebody
/// else wrote. A reader that finds what was written to a ring behind it asks the kernel, too.
pub fn count_kernel_transfer() {
    for board in own_boards() {
        board.count_kernel_transfer();
    }
}
