//! Whose lock it is, when numbers of threads mean nothing: used again, or of another PID namespace.
#![allow(unsafe_code)]

mod common;

use common::process::{Child, bounded, shared_word, wait_for};
use sluice_lane::lock::{Obtained, OwnerLock, threads};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// A lock that forks share.
fn shared_lock() -> &'static OwnerLock<u64> {
    threads::share();
    // SAFETY: zeroed memory that is never unmapped is an open lock of 0.
    unsafe { &*common::shared_memory(4096).as_ptr().cast() }
}

/// Forks a child that is in a PID namespace of its own, by way of one that waits for it.
fn fork_elsewhere(body: impl FnOnce() -> i32) -> Child {
    Child::fork(|| {
        // SAFETY: unshare and fork take numbers.
        let pid = unsafe {
            if libc::unshare(libc::CLONE_NEWPID) != 0 {
                assert_eq!(libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWPID), 0);
            }
            libc::fork()
        };
        if pid == 0 {
            sluice_lane::lock::forget_thread();
            // SAFETY: ends the process; getpid takes nothing.
            unsafe {
                assert_eq!(libc::getpid(), 1, "in a namespace of its own");
                libc::_exit(body());
            }
        }
        let mut status = 0;
        // SAFETY: our own child; the kernel writes one int.
        unsafe { libc::waitpid(pid, &raw mut status, 0) };
        if libc::WIFEXITED(status) {
            libc::WEXITSTATUS(status)
        } else {
            100
        }
    })
}

/// Says that it has the lock, keeps it until `word` is 2, and says that it is about to give it back.
fn hold(lock: &OwnerLock<u64>, word: &AtomicU32) -> i32 {
    let mut held = lock.lock().unwrap();
    word.store(1, Ordering::SeqCst);
    while word.load(Ordering::SeqCst) != 2 {
        std::thread::sleep(Duration::from_millis(1));
    }
    *held += 1;
    word.store(3, Ordering::SeqCst);
    0
}

/// Waits for a lock that `word` says somebody has, and looks that it had not been taken from him.
fn wait_and_take(lock: &OwnerLock<u64>, word: &AtomicU32) -> i32 {
    let held = lock.lock().unwrap();
    let is_given = word.load(Ordering::SeqCst) == 3 && *held == 1;
    i32::from(!(is_given && held.obtained == Obtained::Free))
}

#[test]
fn a_living_owner_of_another_namespace_keeps_its_lock() {
    let (lock, word) = (shared_lock(), shared_word());
    let child = fork_elsewhere(|| hold(lock, word));
    wait_for("the owner", || word.load(Ordering::SeqCst) == 1);
    let waiter = std::thread::spawn(move || wait_and_take(lock, word));
    std::thread::sleep(Duration::from_millis(100));
    word.store(2, Ordering::SeqCst);
    assert_eq!(bounded("the waiter", move || waiter.join().unwrap()), 0);
    assert_eq!(child.join(), 0);
}

#[test]
fn a_waiter_of_another_namespace_takes_nothing_from_the_living() {
    let (lock, word) = (shared_lock(), shared_word());
    let owner = std::thread::spawn(move || hold(lock, word));
    wait_for("the owner", || word.load(Ordering::SeqCst) == 1);
    let child = fork_elsewhere(|| wait_and_take(lock, word));
    std::thread::sleep(Duration::from_millis(100));
    word.store(2, Ordering::SeqCst);
    assert_eq!(owner.join().unwrap(), 0);
    assert_eq!(child.join(), 0);
}

/// Both are the first process of a namespace, so both have the number 1.
#[test]
fn the_dead_and_the_living_may_have_one_number() {
    let (lock, word, ends) = (shared_lock(), shared_word(), shared_word());
    let dead = fork_elsewhere(|| {
        std::mem::forget(lock.lock().unwrap());
        0
    });
    assert_eq!(dead.join(), 0);
    let living = fork_elsewhere(|| {
        word.store(1, Ordering::SeqCst);
        while ends.load(Ordering::SeqCst) == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        0
    });
    wait_for("the other one", || word.load(Ordering::SeqCst) == 1);
    let from_here = move || lock.lock().unwrap().obtained;
    assert_eq!(
        bounded("a lock of the dead", from_here),
        Obtained::FromTheDead
    );
    // And for one who has the number himself.
    let dead = fork_elsewhere(|| {
        std::mem::forget(lock.lock().unwrap());
        0
    });
    assert_eq!(dead.join(), 0);
    let heir = fork_elsewhere(|| match lock.lock() {
        Some(held) => i32::from(held.obtained != Obtained::FromTheDead),
        None => 2,
    });
    assert_eq!(heir.join(), 0);
    ends.store(1, Ordering::SeqCst);
    assert_eq!(living.join(), 0);
}

/// A number of one namespace, given to a process that lives and to one that held the lock before.
#[test]
fn a_number_that_is_used_again_holds_no_lock() {
    let lock = shared_lock();
    let code = fork_elsewhere(|| {
        let owner = Child::fork(|| {
            std::mem::forget(lock.lock().unwrap());
            0
        });
        let number = owner.pid;
        assert_eq!(owner.join(), 0);
        let last = (number - 1).to_string();
        if std::fs::write("/proc/sys/kernel/ns_last_pid", last).is_err() {
            // In a user namespace of its own, whose root may not.
            return 0;
        }
        let again = Child::fork(|| {
            std::thread::sleep(Duration::from_secs(60));
            0
        });
        assert_eq!(again.pid, number);
        i32::from(lock.lock().unwrap().obtained != Obtained::FromTheDead)
    });
    assert_eq!(code.join(), 0);
}
