//! What this process did, for `sluice run --stats`: one line of JSON, appended to a file at exit.
#![allow(unsafe_code)]

use crate::conn::Conn;
use crate::lock::SpinLock;
use crate::{config, conn, log, this_process};
use core::fmt::{self, Write};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use sluice_lane::end::{END_BYTES, EndSnapshot, State};
use sluice_lane::reason::{self, Reason};
use sluice_sys::{memfd, raw};

static CONNECTIONS: AtomicU32 = AtomicU32::new(0);
static LANES: AtomicU32 = AtomicU32::new(0);
static BYTES: [AtomicU64; 4] = [const { AtomicU64::new(0) }; 4];
static COUNTS: [AtomicU32; 3] = [const { AtomicU32::new(0) }; 3];
static REASONS: [AtomicU32; reason::ALL.len()] = [const { AtomicU32::new(0) }; reason::ALL.len()];
static WANTED: AtomicBool = AtomicBool::new(false);

/// The kernel opens no longer path, its end included.
const PATH_MAX: usize = libc::PATH_MAX as usize;

struct Names {
    path: [u8; PATH_MAX],
    program: [u8; 32],
}

static NAMES: SpinLock<Names> = SpinLock::new(Names {
    path: [0; PATH_MAX],
    program: [0; 32],
});

/// Remembers where the line goes, if anywhere.
pub fn init(program: &[u8]) {
    let Some(path) = config::variable(c"SLUICE_STATS_FILE").map(|path| path.to_bytes()) else {
        return;
    };
    if path.len() >= PATH_MAX {
        log!(
            Warn,
            "statistics are lost: the path of their file is too long"
        );
        return;
    }
    let Some(mut names) = NAMES.try_lock() else {
        return;
    };
    names.path[..path.len()].copy_from_slice(path);
    for (to, from) in names.program.iter_mut().zip(program) {
        *to = *from;
    }
    WANTED.store(true, Ordering::Release);
}

/// One more tracked connection.
pub fn count_connection() {
    CONNECTIONS.fetch_add(1, Ordering::Relaxed);
}

/// One more connection that is not tracked, and why.
pub fn count_untracked(reason: Reason) {
    CONNECTIONS.fetch_add(1, Ordering::Relaxed);
    REASONS[reason as usize].fetch_add(1, Ordering::Relaxed);
}

/// One more connection with a lane.
pub fn count_lane() {
    LANES.fetch_add(1, Ordering::Relaxed);
}

/// Adds up a connection whose descriptor is closed, if it was the last.
pub fn add_end(conn: &Conn) {
    if conn.end.refs() <= 1 {
        add_last(conn);
    }
}

/// Adds up a connection that this process alone has.
pub fn add_last(conn: &Conn) {
    if !WANTED.load(Ordering::Relaxed) || conn.end.generation() != conn.generation {
        return;
    }
    if conn.end.is_bypassed() {
        conn.end.take_kernel_counts(conn.fd);
    }
    // SAFETY: a record is END_BYTES of atomics and lock-protected values; the snapshot takes
    // numbers that may be a moment old.
    let bytes = unsafe { &*(conn.end as *const _ as *const [u8; END_BYTES]) };
    let Some(end) = EndSnapshot::from_bytes(bytes) else {
        return;
    };
    let bytes = [
        end.ring_rx_bytes,
        end.ring_tx_bytes,
        end.tcp_rx_bytes,
        end.tcp_tx_bytes,
    ];
    for (sum, bytes) in BYTES.iter().zip(bytes) {
        sum.fetch_add(bytes, Ordering::Relaxed);
    }
    for (sum, count) in COUNTS.iter().zip([end.switches, end.sleeps, end.spins]) {
        sum.fetch_add(count, Ordering::Relaxed);
    }
    if end.state != State::Attached || end.ring_rx_bytes + end.ring_tx_bytes == 0 {
        REASONS[end.reason as usize].fetch_add(1, Ordering::Relaxed);
    }
}

/// In a forked child: what happened so far is the parent's.
pub fn after_fork() {
    CONNECTIONS.store(0, Ordering::Relaxed);
    LANES.store(0, Ordering::Relaxed);
    for sum in &BYTES {
        sum.store(0, Ordering::Relaxed);
    }
    for sum in COUNTS.iter().chain(&REASONS) {
        sum.store(0, Ordering::Relaxed);
    }
}

/// A line that grows on the stack.
struct Line {
    bytes: [u8; 2048],
    len: usize,
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let rest = self.bytes.get_mut(self.len..).ok_or(fmt::Error)?;
        let piece = rest.get_mut(..text.len()).ok_or(fmt::Error)?;
        piece.copy_from_slice(text.as_bytes());
        self.len += text.len();
        Ok(())
    }
}

/// Writes the line, at the process's end. Connections that are still open count too.
pub fn finish() {
    if this_process::is_sandboxed() || !WANTED.load(Ordering::Acquire) {
        return;
    }
    add_open_and_write();
    WANTED.store(false, Ordering::Release);
}

/// Writes the line before exec, which ends the program without ending the process. What it says
/// counts no more, should the exec fail.
pub fn before_exec() {
    if this_process::is_sandboxed() || !WANTED.load(Ordering::Acquire) {
        return;
    }
    let bytes = BYTES.each_ref().map(|sum| sum.load(Ordering::Relaxed));
    let counts = COUNTS.each_ref().map(|sum| sum.load(Ordering::Relaxed));
    let reasons = REASONS.each_ref().map(|sum| sum.load(Ordering::Relaxed));
    add_open_and_write();
    // What was just added for open connections will be added once more: below zero until then.
    for (sum, before) in BYTES.iter().zip(bytes) {
        let written = sum.load(Ordering::Relaxed);
        sum.store(before.wrapping_sub(written), Ordering::Relaxed);
    }
    let before = counts.iter().chain(&reasons);
    for (sum, before) in COUNTS.iter().chain(&REASONS).zip(before) {
        let written = sum.load(Ordering::Relaxed);
        sum.store(before.wrapping_sub(written), Ordering::Relaxed);
    }
    CONNECTIONS.store(0, Ordering::Relaxed);
    LANES.store(0, Ordering::Relaxed);
}

fn add_open_and_write() {
    conn::for_each(i32::MAX, |conn| {
        // Several descriptors of this process may name it, and nobody else.
        let names = conn.own_names();
        if names.first == conn.fd && names.count >= conn.end.refs() {
            add_last(conn);
        }
    });
    let mut line = Line {
        bytes: [0; 2048],
        len: 0,
    };
    let Some(names) = NAMES.try_lock() else {
        return;
    };
    if write_line(&mut line, &names.program).is_ok() {
        append(&names.path, &line.bytes[..line.len]);
    }
}

fn write_line(line: &mut Line, program: &[u8]) -> fmt::Result {
    let get = |count: &AtomicU32| count.load(Ordering::Relaxed);
    write!(line, "{{\"pid\":{},\"program\":\"", this_process::pid())?;
    for byte in program {
        match *byte {
            0 => break,
            b'"' | b'\\' | 0x01..=0x1f | 0x7f..=0xff => line.write_str("?")?,
            byte => line.write_char(char::from(byte))?,
        }
    }
    let [ring_rx, ring_tx, tcp_rx, tcp_tx] = [0, 1, 2, 3].map(|i| BYTES[i].load(Ordering::Relaxed));
    write!(
        line,
        "\",\"connections\":{},\"laned\":{},\"lane_rx_bytes\":{ring_rx},\
         \"lane_tx_bytes\":{ring_tx},\"tcp_rx_bytes\":{tcp_rx},\"tcp_tx_bytes\":{tcp_tx},\
         \"switches\":{},\"sleeps\":{},\"spins\":{},\"reasons\":{{",
        get(&CONNECTIONS),
        get(&LANES),
        get(&COUNTS[0]),
        get(&COUNTS[1]),
        get(&COUNTS[2]),
    )?;
    let mut first = true;
    for (reason, count) in reason::ALL.iter().zip(&REASONS) {
        let count = get(count);
        // Below zero: reported before an exec that failed, and another reason since.
        if count as i32 > 0 && !reason.text().is_empty() {
            let comma = if first { "" } else { "," };
            write!(line, "{comma}\"{}\":{count}", reason.text())?;
            first = false;
        }
    }
    line.write_str("}}\n")
}

/// The file of all lines is smaller. A write beyond the limit of file sizes would end the program.
const FILE_BYTES_ENOUGH: u64 = 1 << 20;

fn append(path: &[u8; PATH_MAX], line: &[u8]) {
    // SAFETY: the path is a zero-terminated copy made at start; the line lives on the caller's
    // stack.
    let written = unsafe {
        memfd::check_size_limit(FILE_BYTES_ENOUGH)
            .and_then(|()| {
                raw::check(raw::syscall4(
                    libc::SYS_openat,
                    libc::AT_FDCWD as usize,
                    path.as_ptr() as usize,
                    (libc::O_WRONLY | libc::O_APPEND | libc::O_CLOEXEC) as usize,
                    0,
                ))
            })
            .and_then(|fd| {
                let written = raw::check(raw::syscall3(
                    libc::SYS_write,
                    fd,
                    line.as_ptr() as usize,
                    line.len(),
                ));
                raw::syscall1(libc::SYS_close, fd);
                written
            })
    };
    if let Err(errno) = written {
        log!(
            Warn,
            "statistics are lost: their file cannot be written any more: {} (after a chroot \
             it cannot be reached, after a change of user not be opened)",
            errno.name()
        );
    }
}
