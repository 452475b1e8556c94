//! Timeouts and signals end a wait as the kernel's own wait would end (signal(7), socket(7)).
#![allow(unsafe_code)]

mod common;

use common::process::{bounded, shared_word, wait_for};
use common::{BLOCK, How, Pair, SMALL_RING, Side, bytes_at, check_bytes, from_c};
use sluice_shmem::Producer;
use sluice_shmem::direction::{Mode, Words};
use sluice_sys::errno::Errno;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;

const PEEK_ALL: How = How {
    peek: true,
    waitall: true,
    dontwait: false,
};

/// Signal handlers are the process's: one test at a time sets them.
static HANDLERS: Mutex<()> = Mutex::new(());
static CAUGHT: AtomicU32 = AtomicU32::new(0);

extern "C" fn on_signal(_: i32) {
    CAUGHT.fetch_add(1, Ordering::SeqCst);
}

fn handle_signals(flags: i32) {
    // SAFETY: zeroes are a valid sigaction, and the handler only counts.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_signal as *const () as usize;
        action.sa_flags = flags;
        assert_eq!(
            libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut()),
            0
        );
    }
}

/// A thread that can be sent signals.
struct Caller<T> {
    thread: JoinHandle<T>,
    tid: &'static AtomicU32,
}

fn call<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> Caller<T> {
    let tid = shared_word();
    let thread = std::thread::spawn(move || {
        // SAFETY: gettid takes nothing and cannot fail.
        tid.store(unsafe { libc::gettid() } as u32, Ordering::SeqCst);
        body()
    });
    Caller { thread, tid }
}

impl<T> Caller<T> {
    fn is_asleep(&self) -> bool {
        let tid = self.tid.load(Ordering::SeqCst);
        std::fs::read_to_string(format!("/proc/self/task/{tid}/stat"))
            .is_ok_and(|stat| stat.contains(") S "))
    }

    fn signal(&self) {
        // SAFETY: a signal to a thread of this process; one that has ended is not found.
        unsafe {
            libc::syscall(
                libc::SYS_tgkill,
                libc::getpid(),
                self.tid.load(Ordering::SeqCst),
                libc::SIGUSR1,
            );
        }
    }

    /// One signal in its sleep, and its handler's return.
    fn signal_asleep(&self) {
        wait_for("sleep", || self.is_asleep());
        let before = CAUGHT.load(Ordering::SeqCst);
        self.signal();
        wait_for("the handler", || CAUGHT.load(Ordering::SeqCst) > before);
    }

    /// Signals until the call is over: one may come between two slices of a sleep.
    fn signal_until_over(self) -> T {
        wait_for("the thread", || self.tid.load(Ordering::SeqCst) != 0);
        wait_for("the end of the call", || {
            self.signal();
            self.thread.is_finished()
        });
        self.thread.join().unwrap()
    }
}

fn set_timeout(fd: i32, option: i32, micros: i64) {
    let value = libc::timeval {
        tv_sec: 0,
        tv_usec: micros,
    };
    // SAFETY: setsockopt reads one timeval.
    let ret = unsafe {
        libc::setsockopt(
            fd,
            libc::SOL_SOCKET,
            option,
            (&raw const value).cast(),
            size_of::<libc::timeval>() as u32,
        )
    };
    assert_eq!(ret, 0, "{}", common::last_errno());
}

/// A reader that is owed ten bytes by TCP, which have not come.
fn owed() -> Pair {
    let pair = Pair::enabled(SMALL_RING);
    pair.there().publish_mode(Mode::Ring, 10);
    pair
}

fn read(side: Side, how: How) -> Result<usize, Errno> {
    side.recv(&mut [0; 100], how)
}

#[test]
fn receive_timeout_while_bytes_are_owed() {
    for how in [BLOCK, common::WAITALL, PEEK_ALL] {
        let pair = owed();
        set_timeout(pair.b.fd, libc::SO_RCVTIMEO, 20_000);
        let result = bounded("a read with a timeout", move || read(pair.b, how));
        assert_eq!(result, Err(Errno::AGAIN), "{how:?}");
    }
}

#[test]
fn receive_timeout_behind_some_bytes_of_many() {
    let pair = owed();
    set_timeout(pair.b.fd, libc::SO_RCVTIMEO, 20_000);
    assert_eq!(common::kernel_send(pair.a.fd, &bytes_at(0, 4), 0), Ok(4));
    let result = bounded("a read with a timeout", move || {
        read(pair.b, common::WAITALL)
    });
    assert_eq!(result, Ok(4));
}

#[test]
fn receive_timeout_while_the_sender_is_stopped_in_a_write() {
    let pair = Pair::enabled(SMALL_RING);
    pair.there().begin_write(None);
    set_timeout(pair.b.fd, libc::SO_RCVTIMEO, 20_000);
    let result = bounded("a read with a timeout", move || read(pair.b, BLOCK));
    assert_eq!(result, Err(Errno::AGAIN));
}

#[test]
fn receive_timeout_of_a_look_that_waits_for_all() {
    let pair = Pair::enabled(SMALL_RING);
    assert_eq!(pair.a.send(&bytes_at(0, 3), false), Ok(3));
    assert_eq!(pair.a.snapshot().ring_tx_bytes, 3);
    set_timeout(pair.b.fd, libc::SO_RCVTIMEO, 20_000);
    let result = bounded("a look with a timeout", move || read(pair.b, PEEK_ALL));
    assert_eq!(result, Ok(3));
}

#[test]
fn signal_while_bytes_are_owed() {
    let _handlers = HANDLERS.lock();
    handle_signals(0);
    let pair = owed();
    let reader = call(move || read(pair.b, BLOCK));
    assert_eq!(reader.signal_until_over(), Err(Errno::INTR));
}

#[test]
fn signal_with_restart_while_bytes_are_owed() {
    let _handlers = HANDLERS.lock();
    handle_signals(libc::SA_RESTART);
    let pair = owed();
    let reader = call(move || {
        let mut got = [0; 100];
        (pair.b.recv(&mut got, BLOCK), got)
    });
    reader.signal_asleep();
    assert_eq!(common::kernel_send(pair.a.fd, &bytes_at(0, 10), 0), Ok(10));
    let (result, got) = reader.thread.join().unwrap();
    assert_eq!(result, Ok(10));
    check_bytes(0, &got[..10]);
}

#[test]
fn signal_while_the_sender_is_stopped_in_a_write() {
    let _handlers = HANDLERS.lock();
    handle_signals(0);
    let pair = Pair::enabled(SMALL_RING);
    pair.there().begin_write(None);
    let reader = call(move || read(pair.b, BLOCK));
    assert_eq!(reader.signal_until_over(), Err(Errno::INTR));

    handle_signals(libc::SA_RESTART);
    let reader = call(move || read(pair.b, BLOCK));
    for _ in 0..20 {
        reader.signal_asleep();
    }
    pair.there().end_write();
    assert_eq!(common::kernel_send(pair.a.fd, b"x", 0), Ok(1));
    assert_eq!(reader.thread.join().unwrap(), Ok(1));
}

/// A reader that never sleeps and takes `bytes` every other millisecond, until told to stop.
struct SlowReader {
    thread: JoinHandle<()>,
    stop: &'static AtomicU32,
}

fn read_slowly(side: Side, bytes: usize) -> SlowReader {
    // It must not count as a reader that takes nothing, on a busy machine either.
    sluice_lane::spin::set_ceiling_us(10_000);
    let stop = shared_word();
    let thread = std::thread::spawn(move || {
        let mut buffer = vec![0; bytes];
        while stop.load(Ordering::SeqCst) == 0 {
            let _ = side.recv(&mut buffer, common::DONTWAIT);
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
    });
    SlowReader { thread, stop }
}

impl SlowReader {
    fn stop(self) {
        self.stop.store(1, Ordering::SeqCst);
        self.thread.join().unwrap();
    }
}

/// So much that the slow reader would take it for minutes.
const HUGE: usize = 64 << 20;

#[test]
fn send_timeout_of_a_writer_whose_reader_is_slow() {
    let pair = Pair::enabled(SMALL_RING);
    let reader = read_slowly(pair.b, 6000);
    set_timeout(pair.a.fd, libc::SO_SNDTIMEO, 20_000);
    let result = bounded("a write with a timeout", move || {
        pair.a.send(&vec![0; HUGE], false)
    });
    assert!(matches!(result, Ok(1..HUGE)), "{result:?}");
    reader.stop();
}

#[test]
fn signal_to_a_writer_that_has_written_some() {
    let _handlers = HANDLERS.lock();
    for flags in [0, libc::SA_RESTART] {
        handle_signals(flags);
        let pair = Pair::enabled(SMALL_RING);
        let reader = read_slowly(pair.b, 6000);
        let writer = call(move || pair.a.send(&vec![0; HUGE], false));
        let result = writer.signal_until_over();
        assert!(matches!(result, Ok(1..HUGE)), "{result:?}");
        reader.stop();
    }
}

#[test]
fn signal_to_a_writer_that_finds_no_room() {
    let _handlers = HANDLERS.lock();
    handle_signals(0);
    let pair = Pair::enabled(SMALL_RING);
    let full = vec![0; SMALL_RING as usize];
    assert_eq!(pair.a.send(&full, true), Ok(full.len()));
    // No room for the whole write for a long while, which a small write needs. Where the writer goes if the
    // reader stands still, there is none either.
    let reader = read_slowly(pair.b, 1);
    let writer = call(move || {
        pair.a.send_with(&[0; 4096], false, &mut |_, _| {
            // SAFETY: pause takes nothing.
            from_c(unsafe { libc::pause() } as isize)
        })
    });
    assert_eq!(writer.signal_until_over(), Err(Errno::INTR));
    reader.stop();
}

/// Ten bytes by TCP that come late, five by the ring, ten by TCP: whoever wakes first must not
/// take what is behind the ring's.
#[test]
fn readers_that_wait_together_for_owed_bytes_keep_to_the_order() {
    const ROUNDS: u32 = 200;
    let stream: [u8; 25] = std::array::from_fn(|at| at as u8);
    for _ in 0..ROUNDS {
        let pair = owed();
        let there = pair.there();
        let mut producer = Producer::default();
        // SAFETY: five bytes of a living array, into an empty ring.
        unsafe { producer.store(&there, 0, stream[10..].as_ptr().cast_mut(), 5) };
        producer.publish(&there, 5);
        there.publish_mode(Mode::Tcp, 0);
        let readers = [(); 2].map(|()| {
            call(move || {
                let (mut got, mut buffer) = (Vec::new(), [0; 7]);
                loop {
                    match pair.b.recv(&mut buffer, BLOCK).unwrap() {
                        0 => return got,
                        count => got.extend_from_slice(&buffer[..count]),
                    }
                }
            })
        });
        for reader in &readers {
            wait_for("sleep", || reader.is_asleep());
        }
        let by_tcp = [&stream[..10], &stream[15..]].concat();
        assert_eq!(common::kernel_send(pair.a.fd, &by_tcp, 0), Ok(20));
        common::close(pair.a.fd);
        let got = readers.map(|reader| bounded("a reader", || reader.thread.join().unwrap()));
        for part in &got {
            assert!(part.is_sorted(), "{got:?}");
        }
        let mut all = got.concat();
        all.sort_unstable();
        assert_eq!(all, stream, "{got:?}");
        common::close(pair.b.fd);
    }
}
