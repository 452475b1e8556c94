//! What a thread has for itself.
//!
//! Each operation on a connection asks for it several times. The compiler reaches a thread-local of a
//! shared library by a call of the dynamic linker, since the library may be loaded while threads run;
//! ours is loaded with the program, so that its place relative to the thread is known by then and one
//! load finds it ("initial-exec" in *ELF Handling for Thread-Local Storage*, 4.3). Rust has no stable
//! word for that but the assembler's.
#![allow(unsafe_code)]

use crate::pace::Pace;
use core::cell::Cell;

/// Zero is the beginning of all of it.
#[derive(Default)]
#[repr(C, align(64))]
pub struct Own {
    /// The word by which the thread's locks know it, 0 before it has one.
    pub(crate) number: Cell<u32>,
    /// Locks that the thread holds.
    pub(crate) held: Cell<u32>,
    /// Bytes that the thread has taken by TCP since it waited.
    pub(crate) taken: Cell<u64>,
    /// Whether it has taken bytes from a ring since.
    pub(crate) by_ring: Cell<bool>,
    /// A jump waits until no lock is held.
    pub(crate) jumps: Cell<bool>,
    /// What a fork returns will be noted at `forking`.
    pub awaits_fork: Cell<bool>,
    pace: Cell<Pace>,
    /// About where the stack was when the first of the locks was taken.
    pub held_at: Cell<usize>,
    /// Between the two halves of a fork: the address of what the preload library notes of the child.
    pub forking: Cell<usize>,
}

/// The assembler is told this size. A program that opens the library itself (dlopen(3)) has room for some hundred bytes.
const OWN_BYTES: usize = 64;
const _: () = assert!(size_of::<Own>() == OWN_BYTES);

#[cfg(target_arch = "x86_64")]
core::arch::global_asm!(
    ".pushsection .tbss.sluice_own, \"awT\", @nobits",
    ".globl sluice_own",
    ".hidden sluice_own",
    ".type sluice_own, @object",
    ".balign {bytes}",
    "sluice_own:",
    ".zero {bytes}",
    ".size sluice_own, {bytes}",
    ".popsection",
    bytes = const OWN_BYTES,
);

/// What the calling thread has.
#[cfg(target_arch = "x86_64")]
#[inline]
pub fn own<R>(body: impl FnOnce(&Own) -> R) -> R {
    let own: *const Own;
    // SAFETY: reads the place of `sluice_own` relative to the thread from the table where the dynamic
    // linker put it, and adds the thread's own address, which the ABI keeps at fs:0.
    unsafe {
        core::arch::asm!(
            "mov {own}, qword ptr [rip + sluice_own@GOTTPOFF]",
            "add {own}, qword ptr fs:[0]",
            own = out(reg) own,
            options(pure, nomem, nostack),
        );
    }
    // SAFETY: the thread's block has that many zeroed, aligned bytes there for as long as it lives.
    // They are cells and reached by this thread alone.
    body(unsafe { &*own })
}

/// What the calling thread has.
#[cfg(not(target_arch = "x86_64"))]
pub fn own<R>(body: impl FnOnce(&Own) -> R) -> R {
    thread_local! {
        static OWN: Own = Own::default();
    }
    OWN.with(body)
}

/// This thread has read or written so many bytes of some connection.
pub fn note_operation(bytes: usize) {
    with_pace(|pace| pace.note(bytes));
}

/// Both at once: [`note_operation`] and [`is_lively`].
#[inline]
pub fn note_operation_and_ask(bytes: usize, now_ns: impl FnOnce() -> u64) -> bool {
    with_pace(|pace| {
        pace.note(bytes);
        pace.is_lively(now_ns)
    })
}

/// Whether this thread's operations follow one another quickly.
pub fn is_lively(now_ns: impl FnOnce() -> u64) -> bool {
    with_pace(|pace| pace.is_lively(now_ns))
}

#[inline]
fn with_pace<R>(body: impl FnOnce(&mut Pace) -> R) -> R {
    own(|own| {
        let mut pace = own.pace.get();
        let result = body(&mut pace);
        own.pace.set(pace);
        result
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thread_has_its_own_and_it_begins_with_zero() {
        let set = |number| own(|own| own.number.replace(number));
        assert_eq!(set(7), 0);
        let others: Vec<_> = (1..4)
            .map(|number| std::thread::spawn(move || [set(number), set(0)]))
            .collect();
        for (number, other) in (1..4).zip(others) {
            assert_eq!(other.join().unwrap(), [0, number]);
        }
        assert_eq!(set(0), 7);
    }
}
