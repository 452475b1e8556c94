//! Unread ring bytes that go with their connection into the next program.
//!
//! Before another program is executed the ring's unread bytes are reclaimed
//! ([`crate::descriptors`]). What a peer did not take back is written to a memory file that the
//! next program inherits. The library finds it there before anything else runs, takes the bytes
//! out and closes it. Where other processes may go on with the connection they keep the bytes,
//! too, and whoever reads first gets them ([`sluice_lane::end::End::copy_out`]).
//!
//! A program that is passed the connection in a message gets such a file with it
//! ([`crate::passing`]).
//!
//! The file has no name in the environment: `system`, `popen` and `execl` pass on an environment
//! that is not ours to change. It is found by its number, one of a few that are tried. Nothing of
//! it is trusted.
#![allow(unsafe_code)]

use crate::conn::{self, Conn};
use crate::fds;
use crate::reach::{self, Target};
use crate::{descriptors, leave, log, this_process, tracking};
use core::ffi::{c_char, c_int};
use sluice_lane::end::{Assignment, Carried, Role};
use sluice_shmem::chunk::Chunk;
use sluice_shmem::geometry::{Geometry, RING_BYTES_MAX, RING_BYTES_MIN};
use sluice_shmem::parking::{PARKING_BYTES, ParkingTable};
use sluice_sys::errno::Errno;
use sluice_sys::mapping::Mapping;
use sluice_sys::unix::Fd;
use sluice_sys::{memfd, raw, socket_note, tcp};

const MAGIC: u64 = u64::from_ne_bytes(*b"SLUICECY");
const VERSION: u32 = 2;
/// Connections that one file is about.
const RECORDS_MAX: usize = 256;
const HEADER_BYTES: usize = 32;
const RECORD_BYTES: usize = 24;
/// Where the bytes start.
const BYTES_OFFSET: u64 = (HEADER_BYTES + RECORDS_MAX * RECORD_BYTES) as u64;
/// A file that nobody changes any more.
const SEALS: u32 =
    (libc::F_SEAL_SEAL | libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_WRITE) as u32;
/// `F_SEAL_EXEC`, which the kernel adds by itself (`vm.memfd_noexec`, Linux 6.3).
const SEAL_EXEC: u32 = 0x20;
/// The numbers at which the file may be: some behind each of these.
const NUMBERS: [c_int; 6] = [60, 250, 1000, 4000, 16_000, 65_000];
const NUMBERS_EACH: c_int = 4;
/// Descriptors that the next program looks through, at least, for those of a connection.
const LOOKED_AT_MIN: u32 = 1024;
/// `Record::len` of a connection whose next bytes are with another process.
const ELSEWHERE: u32 = u32::MAX;

/// One connection.
#[derive(Clone, Copy, Default)]
struct Record {
    cookie: u64,
    /// TCP bytes of the stream that come before the ring's.
    switch_offset: u64,
    /// The ring's bytes, or [`ELSEWHERE`].
    len: u32,
    /// Others have copies of them: 0 or 1.
    copied: u32,
}

impl Record {
    fn to_bytes(self) -> [u8; RECORD_BYTES] {
        let mut bytes = [0; RECORD_BYTES];
        bytes[..8].copy_from_slice(&self.cookie.to_ne_bytes());
        bytes[8..16].copy_from_slice(&self.switch_offset.to_ne_bytes());
        bytes[16..20].copy_from_slice(&self.len.to_ne_bytes());
        bytes[20..].copy_from_slice(&self.copied.to_ne_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8; RECORD_BYTES]) -> Self {
        Self {
            cookie: u64_at(bytes, 0),
            switch_offset: u64_at(bytes, 8),
            len: u32_at(bytes, 16),
            copied: u32_at(bytes, 20),
        }
    }
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_ne_bytes(word)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_ne_bytes(word)
}

/// What another program is about to be given.
#[must_use]
pub struct Carry {
    file: Option<Fd>,
    /// Where the next program finds the file, -1 before it is there.
    placed: c_int,
    count: usize,
    end: u64,
    /// Connections whose bytes are in the file.
    taken: [Option<Taken>; RECORDS_MAX],
    /// The process was counted out of its connections.
    has_left: bool,
}

/// A connection whose bytes are in the file.
#[derive(Clone, Copy)]
struct Taken {
    index: u32,
    generation: u32,
    /// They are not in its ring any more, as nobody else has it.
    moved: bool,
    /// The next program is meant to read it.
    needed: bool,
}

/// How the other program comes to be.
#[derive(Clone, Copy)]
pub enum Way {
    /// It replaces this one.
    Exec(Target, *const *const c_char),
    /// This one goes on beside it.
    Spawn,
}

impl Carry {
    /// Nothing so far.
    #[allow(clippy::new_without_default)] // Nothing has a use for a default.
    pub const fn new() -> Self {
        Self {
            file: None,
            placed: -1,
            count: 0,
            end: BYTES_OFFSET,
            taken: [None; RECORDS_MAX],
            has_left: false,
        }
    }

    /// Bytes of this connection stay in the ring. `unread`: how many, if the sender has finished
    /// its last write.
    ///
    /// The next program gets them, and so do this process and those that share the connection
    /// with it, if there are any: whoever reads first. They are lost where the next program could
    /// read a stream without them and not notice: then the connection is reset.
    pub fn add(&mut self, conn: &Conn, unread: Option<usize>, way: Way) {
        let Ok(cookie) = tcp::cookie(conn.fd) else {
            return;
        };
        let (is_alone, reached) = match way {
            Way::Spawn => (false, true),
            Way::Exec(target, env) => (
                !this_process::is_vfork_child() && conn.is_ours_alone(),
                // SAFETY: the program's own arguments of an exec function.
                unsafe { reach::reaches(target, env) },
            ),
        };
        let has_gap = conn.end.has_gap();
        let needs = !has_gap && (is_alone || is_standard_stream(cookie));
        if !reached && !needs {
            return;
        }
        let mut record = Record {
            cookie,
            switch_offset: 0,
            len: ELSEWHERE,
            copied: 0,
        };
        let moves = is_alone && !conn.end.has_copies();
        let gets =
            reached && !has_gap && unread.is_some() && self.take(conn, moves, needs, &mut record);
        if (gets || !needs) && self.write(&record) {
            return;
        }
        if needs {
            log!(
                Warn,
                "fd {}: reset, as bytes that only this program can read would be missing",
                conn.fd
            );
            tcp::reset(conn.fd);
        }
    }

    /// One connection that another program is passed beside this one.
    pub fn add_copy(&mut self, conn: &Conn) -> bool {
        let Ok(cookie) = tcp::cookie(conn.fd) else {
            return false;
        };
        let mut record = Record {
            cookie,
            ..Record::default()
        };
        self.take(conn, false, true, &mut record) && self.write(&record)
    }

    /// Copies the bytes to the file. `moves`: nobody else has them from then on.
    fn take(&mut self, conn: &Conn, moves: bool, needed: bool, record: &mut Record) -> bool {
        if self.count == RECORDS_MAX || self.file().is_none() {
            return false;
        }
        let file = self.file.as_ref().map_or(-1, Fd::raw);
        let mut at = self.end;
        let mut sink = |piece: &[u8]| {
            let written = memfd::write_at(file, piece, at);
            at += piece.len() as u64;
            written.is_ok()
        };
        let (end, generation) = (conn.end, conn.generation);
        let out = if moves {
            end.take_out(generation, &mut sink)
        } else {
            end.copy_out(generation, conn.fd, &mut sink)
        };
        let Some(carried) = out else {
            return false;
        };
        self.taken[self.count] = Some(Taken {
            index: conn.index,
            generation,
            moved: moves,
            needed,
        });
        self.end = at;
        (record.switch_offset, record.len) = (carried.switch_offset, carried.bytes as u32);
        record.copied = u32::from(carried.copied);
        true
    }

    fn write(&mut self, record: &Record) -> bool {
        if self.count == RECORDS_MAX {
            return false;
        }
        let at = (HEADER_BYTES + self.count * RECORD_BYTES) as u64;
        let Some(file) = self.file() else {
            return false;
        };
        let written = memfd::write_at(file, &record.to_bytes(), at).is_ok();
        self.count += usize::from(written);
        written
    }

    fn file(&mut self) -> Option<c_int> {
        if self.file.is_none() {
            self.file = memfd::create(c"sluice-carry").ok();
        }
        self.file.as_ref().map(Fd::raw)
    }

    /// Completes the file and puts it where the next program looks for it.
    pub fn seal(&mut self, way: Way) {
        let Some(file) = self.file.take() else {
            return;
        };
        match self.finish(&file, way) {
            Ok(placed) => self.placed = placed,
            Err(errno) => {
                log!(Warn, "unread bytes cannot be handed on: {}", errno.name());
                for taken in self.taken.iter().flatten().filter(|taken| taken.needed) {
                    conn::for_each_fd_of(taken.index, taken.generation, tcp::reset);
                }
            }
        }
    }

    /// Completes the file, for a message.
    pub fn into_file(mut self) -> Result<Fd, Errno> {
        let file = self.file.take().ok_or(Errno::INVAL)?;
        self.complete(&file, 0)?;
        Ok(file)
    }

    fn finish(&self, file: &Fd, way: Way) -> Result<c_int, Errno> {
        // Who is meant: a thread that starts another program now may pass the file on, too.
        let pid = match way {
            Way::Exec(..) => this_process::current_pid(),
            Way::Spawn => 0,
        };
        self.complete(file, pid)?;
        for first in NUMBERS {
            // SAFETY: fcntl with F_DUPFD takes and returns numbers.
            let placed = raw::check(unsafe {
                raw::syscall3(
                    libc::SYS_fcntl,
                    raw::int(file.raw()),
                    raw::int(libc::F_DUPFD),
                    raw::int(first),
                )
            })? as c_int;
            if placed < first + NUMBERS_EACH {
                return Ok(placed);
            }
            close(placed);
        }
        Err(Errno(libc::EMFILE))
    }

    /// `pid`: for which process it is, 0 for whoever gets it.
    fn complete(&self, file: &Fd, pid: u32) -> Result<(), Errno> {
        let mut header = [0_u8; HEADER_BYTES];
        header[..8].copy_from_slice(&MAGIC.to_ne_bytes());
        header[8..12].copy_from_slice(&VERSION.to_ne_bytes());
        header[12..16].copy_from_slice(&pid.to_ne_bytes());
        header[16..20].copy_from_slice(&(self.count as u32).to_ne_bytes());
        header[20..24].copy_from_slice(&fds::highest().to_ne_bytes());
        memfd::write_at(file.raw(), &header, 0)?;
        memfd::set_len(file.raw(), self.end)?;
        memfd::add_seals(file.raw(), SEALS)
    }

    /// Counts the process, which is about to become the other program, out of its connections.
    pub fn leave(&mut self) {
        leave::before_exec(|conn| {
            conn.end.has_gap()
                || conn.end.unread_ring_bytes(conn.generation, conn.fd) > 0
                || self.has_taken(conn)
        });
        self.has_left = true;
    }

    fn has_taken(&self, conn: &Conn) -> bool {
        let is_of =
            |taken: &Taken| (taken.index, taken.generation) == (conn.index, conn.generation);
        self.taken.iter().flatten().any(is_of)
    }

    /// Back in the program that has called: the other one runs beside it, or could not be
    /// executed, and nothing has changed.
    pub fn end(&mut self) {
        if self.placed >= 0 {
            close(self.placed);
            self.placed = -1;
        }
        if core::mem::take(&mut self.has_left) {
            leave::after_failed_exec();
        }
        for taken in self.taken.iter_mut().filter_map(Option::take) {
            if taken.moved
                && let Some(conn) = conn::from_entry(-1, taken.index, taken.generation)
            {
                conn.end.put_back(taken.generation);
            }
        }
    }
}

/// A TCP socket that came in a message, with the file of [`Carry::into_file`]: takes its bytes up.
pub fn take_up_passed(fd: c_int, file: c_int) {
    let mut records = [Record::default(); RECORDS_MAX];
    let count = match is_sealed(file) {
        true => read(file, &mut records).map_or(0, |(count, _)| count),
        false => 0,
    };
    let cookie = tcp::cookie(fd);
    let record = records[..count.min(1)]
        .iter()
        .find(|record| cookie == Ok(record.cookie) && record.len != ELSEWHERE);
    if !record.is_some_and(|record| resume(fd, record, file, BYTES_OFFSET)) {
        log!(
            Warn,
            "fd {fd}: reset, as its unread bytes cannot be taken up"
        );
        tcp::reset(fd);
    }
}

/// Whether nobody can change the file any more.
fn is_sealed(file: c_int) -> bool {
    memfd::seals(file).is_ok_and(|seals| seals & !SEAL_EXEC == SEALS)
}

fn close(fd: c_int) {
    // SAFETY: closes a descriptor of ours.
    unsafe { raw::syscall1(libc::SYS_close, raw::int(fd)) };
}

/// The kernel is asked, since what a child of vfork has duplicated is not in the table.
fn is_standard_stream(cookie: u64) -> bool {
    (0..=2).any(|fd| tcp::cookie(fd) == Ok(cookie))
}

/// At the library's start: takes up the connections that came with unread bytes.
pub fn take_up() {
    for first in NUMBERS {
        for fd in first..first + NUMBERS_EACH {
            if !is_sealed(fd) {
                continue;
            }
            let mut records = [Record::default(); RECORDS_MAX];
            if let Some((count, looked_at)) = read(fd, &mut records) {
                resume_all(fd, &records[..count], looked_at);
                close(fd);
            }
        }
    }
}

/// Reads and checks a file: how many records it has for this program, and how many descriptors
/// its writer had. `None` if it is none of ours.
fn read(fd: c_int, records: &mut [Record; RECORDS_MAX]) -> Option<(usize, u32)> {
    let mut header = [0; HEADER_BYTES];
    if memfd::read_at(fd, &mut header, 0) != Ok(HEADER_BYTES) || u64_at(&header, 0) != MAGIC {
        return None;
    }
    Some(check(fd, &header, records).unwrap_or((0, 0)))
}

fn check(
    fd: c_int,
    header: &[u8; HEADER_BYTES],
    records: &mut [Record; RECORDS_MAX],
) -> Option<(usize, u32)> {
    let (version, pid) = (u32_at(header, 8), u32_at(header, 12));
    let count = u32_at(header, 16) as usize;
    if version != VERSION || (pid != 0 && pid != this_process::pid()) || count > RECORDS_MAX {
        return None;
    }
    let mut bytes = BYTES_OFFSET;
    for (at, record) in records[..count].iter_mut().enumerate() {
        let mut raw = [0; RECORD_BYTES];
        let offset = (HEADER_BYTES + at * RECORD_BYTES) as u64;
        if memfd::read_at(fd, &mut raw, offset) != Ok(RECORD_BYTES) {
            return None;
        }
        *record = Record::from_bytes(&raw);
        if record.len != ELSEWHERE {
            if record.len == 0 || record.len > RING_BYTES_MAX || record.copied > 1 {
                return None;
            }
            bytes += u64::from(record.len);
        }
    }
    (memfd::stat(fd).ok()?.bytes == bytes).then_some((count, u32_at(header, 20)))
}

fn resume_all(file: c_int, records: &[Record], looked_at: u32) {
    // The descriptor by which each connection is known.
    let mut known = [-1; RECORDS_MAX];
    let last = looked_at.clamp(LOOKED_AT_MIN, fds::FDS_MAX as u32 - 1);
    for fd in 0..=last as c_int {
        let Ok(cookie) = tcp::cookie(fd) else {
            continue;
        };
        let Some(which) = records.iter().position(|record| record.cookie == cookie) else {
            continue;
        };
        if tcp::is_tcp(fd) != Ok(true) {
            continue;
        }
        if known[which] >= 0 {
            descriptors::duplicated(known[which], fd);
            continue;
        }
        known[which] = fd;
        let before = records[..which].iter().filter(|it| it.len != ELSEWHERE);
        let offset = BYTES_OFFSET + before.map(|it| u64::from(it.len)).sum::<u64>();
        if !resume(fd, &records[which], file, offset) {
            log!(
                Warn,
                "fd {fd}: reset, as its unread bytes cannot be taken up"
            );
            tcp::reset(fd);
        }
    }
}

/// Whether the connection of `fd` can be used from here on.
fn resume(fd: c_int, record: &Record, file: c_int, mut offset: u64) -> bool {
    tracking::track(fd, Role::Unknown);
    let (Some(conn), Some(lane)) = (conn::get(fd), lane_for(record)) else {
        return false;
    };
    conn.end.note_arrived(fd);
    conn.ask_kernel();
    if record.len == ELSEWHERE {
        log!(
            Info,
            "fd {fd}: not to be read, bytes of it are with another process"
        );
        conn.end.refuse_reading(conn.generation, &lane);
        return true;
    }
    let (end, generation) = (conn.end, conn.generation);
    let carried = Carried {
        switch_offset: record.switch_offset,
        bytes: record.len as usize,
        copied: record.copied != 0,
    };
    if carried.copied && socket_note::read(fd) == Ok(Some(0)) {
        // Others have read them meanwhile, and perhaps more.
        return true;
    }
    log!(Info, "fd {fd}: {} unread bytes came with it", record.len);
    let mut fill = |piece: &mut [u8]| {
        let read = memfd::read_at(file, piece, offset);
        offset += piece.len() as u64;
        read == Ok(piece.len())
    };
    end.resume(generation, fd, &lane, carried, &mut fill)
}

/// A lane that nobody else sees, and a parking table for those that wait on it. Forks share them.
fn lane_for(record: &Record) -> Option<Assignment> {
    let bytes = if record.len == ELSEWHERE {
        RING_BYTES_MIN
    } else {
        record.len.next_power_of_two().max(RING_BYTES_MIN)
    };
    let geometry = Geometry::new(1, bytes).ok()?;
    let memory = |bytes| Mapping::anonymous(bytes).ok().map(Mapping::leak);
    let chunk = memory(usize::try_from(geometry.chunk_bytes()).ok()?)?;
    let parking = memory(PARKING_BYTES)?;
    Some(Assignment {
        // SAFETY: zeroed memory of that size, page aligned, never unmapped.
        chunk: unsafe { Chunk::from_raw(chunk, geometry) },
        lane: 0,
        side: 1,
        peer_parking: None,
        // SAFETY: zeroed memory of a parking table's size, page aligned, never unmapped.
        own_parking: unsafe { ParkingTable::from_raw(parking) },
        watchers: 0,
        remote: false,
        direct: false,
        patient: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file about one connection with ten bytes, its header changed by `change`.
    fn file(change: impl FnOnce(&mut [u8; HEADER_BYTES], &mut Record)) -> Option<(usize, u32)> {
        let mut header = [0; HEADER_BYTES];
        header[..8].copy_from_slice(&MAGIC.to_ne_bytes());
        header[8..12].copy_from_slice(&VERSION.to_ne_bytes());
        header[12..16].copy_from_slice(&std::process::id().to_ne_bytes());
        header[16] = 1;
        header[20] = 77;
        let mut record = Record {
            cookie: 5,
            switch_offset: 6,
            len: 10,
            copied: 1,
        };
        change(&mut header, &mut record);
        let file = memfd::create(c"sluice-test").unwrap();
        memfd::write_at(file.raw(), &header, 0).unwrap();
        memfd::write_at(file.raw(), &record.to_bytes(), HEADER_BYTES as u64).unwrap();
        memfd::set_len(file.raw(), BYTES_OFFSET + 10).unwrap();
        read(file.raw(), &mut [Record::default(); RECORDS_MAX])
    }

    #[test]
    fn a_file_for_this_program_is_taken() {
        assert_eq!(file(|_, _| {}), Some((1, 77)));
    }

    /// With `vm.memfd_noexec` the kernel adds a seal of its own.
    #[test]
    fn a_file_is_known_as_sealed_with_and_without_the_kernels_own_seal() {
        for own in [0, SEAL_EXEC] {
            let file = memfd::create(c"sluice-test").unwrap();
            // What can be executed would get further seals.
            // SAFETY: the call takes numbers.
            assert_eq!(unsafe { libc::fchmod(file.raw(), 0o600) }, 0);
            memfd::add_seals(file.raw(), SEALS & !(libc::F_SEAL_SEAL as u32)).unwrap();
            assert!(!is_sealed(file.raw()), "others can be added");
            match memfd::add_seals(file.raw(), own) {
                Ok(()) => {}
                // Before Linux 6.3.
                Err(errno) => assert_eq!((errno, own), (Errno::INVAL, SEAL_EXEC)),
            }
            memfd::add_seals(file.raw(), libc::F_SEAL_SEAL as u32).unwrap();
            assert!(is_sealed(file.raw()));
        }
    }

    #[test]
    fn what_is_wrong_or_for_another_is_not() {
        assert_eq!(file(|header, _| header[0] = 0), None, "somebody's own");
        for (at, byte) in [(8, 9), (12, 0xff), (16, 2), (17, 9)] {
            assert_eq!(
                file(|header, _| header[at] ^= byte),
                Some((0, 0)),
                "byte {at}"
            );
        }
        assert_eq!(file(|_, record| record.copied = 2), Some((0, 0)));
        for len in [0, 9, 11, RING_BYTES_MAX + 1, ELSEWHERE] {
            assert_eq!(file(|_, record| record.len = len), Some((0, 0)), "{len}");
        }
    }
}
