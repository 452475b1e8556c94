//! The connection with sluiced: hello, announcements and the mail with lanes.
//!
//! Everything is one non-blocking system call a message. Without a daemon one attempt fails
//! and the next is made much later; connections stay on TCP.
#![allow(unsafe_code)]

use crate::conn::{self, Conn};
use crate::lock::SpinLock;
use crate::mapped::Mapped;
use crate::{fds, log, process};
use core::ffi::CStr;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use sluice_control::client::{Client, ReceiveError, may_be_a_containers};
use sluice_control::message::{
    Announce, FromDaemon, Hello, Lane, ProgramName, Role, ToDaemon, hello_flag,
};
use sluice_lane::clock::now_ns;
use sluice_lane::end::{self, Assignment};
use sluice_lane::reason::Reason;
use sluice_lane::table::{EndTable, table_bytes};
use sluice_shmem::board::{BOARD_BYTES, Board};
use sluice_shmem::mapping::{Access, Mapping};
use sluice_sys::errno::Errno;
use sluice_sys::memfd::{self, SEAL_FUTURE_WRITE, SEAL_GROW, SEAL_SHRINK};
use sluice_sys::unix::{self, Fd};
use sluice_sys::{raw, tcp};

/// Time between attempts to reach a daemon, nanoseconds.
const RETRY_NS: u64 = 1_000_000_000;
/// The same after one that is not to be trusted.
const DISTRUST_NS: u64 = 60 * RETRY_NS;
/// Messages taken at one time.
const MAIL_MAX: u32 = 256;
/// Messages taken under one lock.
const MAIL_BATCH: usize = 16;

/// A page that nobody writes, in place of a mailbox.
static NO_MAIL: AtomicU32 = AtomicU32::new(0);
/// The mailbox of a sluiced that was lost: its lanes to other hosts are to be looked after.
static LOST_MAIL: AtomicU32 = AtomicU32::new(1);
static MAILBOX: AtomicPtr<AtomicU32> = AtomicPtr::new(&raw const NO_MAIL as *mut AtomicU32);
/// The hidden descriptor and its inode, for the close hooks; -1 without one.
static HIDDEN_FD: AtomicU32 = AtomicU32::new(u32::MAX);
/// Whether sluiced knows this process.
static LINKED: AtomicBool = AtomicBool::new(false);
static RETRY_AT_NS: AtomicU64 = AtomicU64::new(0);
static BOARD: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());

/// Lanes that were taken from the mail and are not attached yet; changed upwards under the lock
/// of the link.
static ATTACHING: AtomicU32 = AtomicU32::new(0);

struct Link {
    /// The control socket's inode: whoever closed our descriptor may have reused its number.
    inode: u64,
    fd: i32,
    /// This process's number among the clients of this sluiced.
    client: Option<u32>,
    /// A sluiced that knew this process, or the one it was forked from, is gone.
    has_lost_one: bool,
    mapped: Mapped,
    socket_path: [u8; 108],
    socket_path_len: usize,
    program: [u8; ProgramName::BYTES],
}

static LINK: SpinLock<Link> = SpinLock::new(Link {
    inode: 0,
    fd: -1,
    client: None,
    has_lost_one: false,
    mapped: Mapped::new(),
    socket_path: [0; 108],
    socket_path_len: 0,
    program: [0; ProgramName::BYTES],
});

/// Remembers where the daemon is. Without `SLUICE_SOCKET` there is none.
pub fn init(socket: Option<&CStr>, program: &[u8]) {
    sluice_lane::wait::set_carrier_check(check_daemon);
    let Some(mut link) = LINK.try_lock() else {
        return;
    };
    if let Some(path) = socket.map(CStr::to_bytes)
        && path.len() <= unix::SOCKET_PATH_BYTES_MAX
    {
        link.socket_path[..path.len()].copy_from_slice(path);
        link.socket_path_len = path.len();
    }
    for (to, from) in link.program.iter_mut().zip(program) {
        *to = *from;
    }
}

/// The board on which this process announces the sleep of its epoll instances.
pub fn board() -> Option<Board> {
    let base = NonNull::new(BOARD.load(Ordering::Acquire))?;
    // SAFETY: `hello` stored a mapping that is never undone.
    Some(unsafe { Board::from_raw(base) })
}

/// The number of the descriptor that is ours and not the program's.
pub fn hidden_fd() -> Option<i32> {
    match HIDDEN_FD.load(Ordering::Relaxed) {
        u32::MAX => None,
        fd => Some(fd as i32),
    }
}

/// Makes sure that sluiced knows this process, if there is one; one cheap attempt a second.
pub fn meet() {
    if LINKED.load(Ordering::Relaxed) || process::is_confined() {
        return;
    }
    let now = now_ns();
    if now < RETRY_AT_NS.load(Ordering::Relaxed) {
        return;
    }
    let Some(mut link) = LINK.try_lock() else {
        return;
    };
    RETRY_AT_NS.store(now + RETRY_NS, Ordering::Relaxed);
    if link.socket_path_len == 0 || link.fd >= 0 {
        return;
    }
    match link.connect() {
        Ok(()) => {}
        // It has been said why.
        Err(Errno(libc::EPERM)) => {
            RETRY_AT_NS.store(now + DISTRUST_NS, Ordering::Relaxed);
        }
        Err(errno) => log!(Warn, "no daemon: {}", errno.name()),
    }
}

/// Whether sluiced knows this process, or does now: see [`meet`].
pub fn has_daemon() -> bool {
    meet();
    LINKED.load(Ordering::Relaxed)
}

/// Gives sluiced a connection to match, where [`has_daemon`] says that there is one. False if it has
/// to be tried again later.
pub fn announce(conn: &Conn) -> bool {
    let Some(mut link) = LINK.try_lock() else {
        return false;
    };
    if link.fd < 0 {
        conn.keep_off(Reason::NoDaemon);
        return false;
    }
    if !link.is_ours() {
        link.forget();
        return false;
    }
    let role = match conn.end.role() {
        end::Role::Connected => Role::Connected,
        end::Role::Accepted => Role::Accepted,
        end::Role::Unknown => Role::Unknown,
    };
    if !conn.end.mark_announced() {
        return true;
    }
    let message = ToDaemon::Announce(Announce {
        end: conn.index,
        generation: conn.generation,
        role,
    });
    match link.send(&message, &[conn.fd]) {
        Ok(()) => true,
        // It has much to do; asked again after some more operations.
        Err(Errno::AGAIN) => {
            conn.end.unmark_announced();
            false
        }
        Err(errno) => {
            log!(Warn, "daemon lost: {}", errno.name());
            // This connection, too, is announced again, however many descriptors name it.
            conn.end.unmark_announced();
            conn.keep_off(Reason::NoDaemon);
            link.forget();
            false
        }
    }
}

/// Asks sluiced whether the other end of an announced connection may still be announced. The
/// answer, if it is no, comes by mail.
pub fn ask_to_settle(conn: &Conn) {
    let Some(mut link) = LINK.try_lock() else {
        return;
    };
    if link.fd < 0 || !link.is_ours() {
        return;
    }
    let message = ToDaemon::Settle {
        end: conn.index,
        generation: conn.generation,
    };
    match link.send(&message, &[]) {
        Ok(()) | Err(Errno::AGAIN) => {}
        Err(_) => link.forget(),
    }
}

/// Tells sluiced that an announced connection is closed.
pub fn release(index: u32, generation: u32) {
    let Some(mut link) = LINK.lock() else {
        return;
    };
    if link.fd < 0 || !link.is_ours() {
        return;
    }
    // It may have been the last one in memory whose peer is gone, for which others may wait.
    link.sweep();
    let message = ToDaemon::Release {
        end: index,
        generation,
    };
    match link.send(&message, &[]) {
        // Without the message sluiced learns it from the table, soon.
        Ok(()) | Err(Errno::AGAIN) => {}
        Err(_) => link.forget(),
    }
}

/// Takes lanes that sluiced assigned, if there is mail.
#[inline]
pub fn check_mail() {
    // SAFETY: the pointer is to a static or to a mapping that is never undone.
    let word = unsafe { &*MAILBOX.load(Ordering::Relaxed) };
    if word.load(Ordering::Relaxed) != 0 {
        take_mail(word);
    }
}

/// Looks whether sluiced is still there. A sluiced that has gone rings nobody, so a process with
/// announced connections would wait for the lanes of a dead one.
#[cold]
pub fn check_daemon() {
    if LINKED.load(Ordering::Relaxed) {
        // SAFETY: as in `check_mail`.
        take_mail(unsafe { &*MAILBOX.load(Ordering::Relaxed) });
    }
    check_mail();
}

#[cold]
fn take_mail(word: &AtomicU32) {
    if process::is_confined() || crate::lock::is_any_held() {
        return;
    }
    if core::ptr::eq(word, &raw const LOST_MAIL) {
        MAILBOX.store(&raw const NO_MAIL as *mut AtomicU32, Ordering::Relaxed);
        conn::lose_carrier();
        return;
    }
    for _ in 0..MAIL_MAX / MAIL_BATCH as u32 {
        let mut mail = [None; MAIL_BATCH];
        let count = receive_mail(word, &mut mail);
        // Without the lock: both take those of epoll instances.
        for mail in mail.iter().flatten() {
            match mail {
                Mail::Lane(lane, assignment) => {
                    conn::attach(lane, *assignment);
                    ATTACHING.fetch_sub(1, Ordering::Release);
                }
                Mail::Unusable(lane, reason) => conn::go_without(lane, *reason),
                Mail::NoPeer { end, generation } => conn::settle(*end, *generation),
            }
        }
        if count < MAIL_BATCH {
            return;
        }
    }
    // More may wait.
    word.store(1, Ordering::SeqCst);
}

/// What sluiced wrote about one connection.
#[derive(Clone, Copy)]
enum Mail {
    Lane(Lane, Assignment),
    Unusable(Lane, Reason),
    NoPeer { end: u32, generation: u32 },
}

/// Takes a batch of messages; how many there were.
fn receive_mail(word: &AtomicU32, mail: &mut [Option<Mail>; MAIL_BATCH]) -> usize {
    let Some(mut link) = LINK.try_lock() else {
        return 0;
    };
    if link.fd < 0 || !link.is_ours() {
        link.forget();
        return 0;
    }
    word.store(0, Ordering::SeqCst);
    // What comes may need the room, and after it nothing may come for long.
    link.sweep();
    let count = link.receive(mail);
    link.sweep();
    count
}

/// In a forked child: the connection is the parent's, so this process gets one of its own, over
/// the inherited one, which works even after chroot and setuid.
pub fn after_fork() {
    LINK.force_open();
    ATTACHING.store(0, Ordering::Relaxed);
    LINKED.store(false, Ordering::Relaxed);
    MAILBOX.store(&raw const NO_MAIL as *mut AtomicU32, Ordering::Relaxed);
    BOARD.store(core::ptr::null_mut(), Ordering::Relaxed);
    RETRY_AT_NS.store(0, Ordering::Relaxed);
    let Some(mut link) = LINK.try_lock() else {
        return;
    };
    if link.fd < 0 {
        return;
    }
    // Kept under its number until the first tracked connection needs a daemon.
    link.mark_inherited();
}

/// Locks the link across a fork, so that the child finds it whole.
pub fn before_fork() {
    core::mem::forget(LINK.try_lock_fork());
}

/// Undoes [`before_fork`] in the parent.
pub fn release_after_fork() {
    LINK.force_open();
}

/// Moves our descriptor away from a number that the program wants for itself.
pub fn make_way(wanted: i32) {
    if hidden_fd() != Some(wanted) {
        return;
    }
    if let Some(mut link) = LINK.lock()
        && link.fd == wanted
    {
        match hide(link.fd) {
            Ok(fd) => link.set_fd(fd),
            Err(_) => link.forget(),
        }
    }
}

/// Ends the connection with sluiced, for a program that may make no more system calls of ours.
pub fn leave() {
    if let Some(mut link) = LINK.lock() {
        // In a forked child it may be the parent's still.
        drop(link.take_inherited());
        link.forget();
    }
}

impl Link {
    fn connect(&mut self) -> Result<(), Errno> {
        // What a parent or an earlier sluiced assigned.
        self.mapped.peer_gone(None);
        let inherited = self.take_inherited();
        let is_introduced = inherited.is_some();
        let client = match inherited {
            Some(parent) => {
                let (ours, theirs) = unix::seqpacket_pair()?;
                let link = Client::from_socket(parent);
                link.send(&ToDaemon::Introduce, &[theirs.raw()])?;
                Client::from_socket(ours)
            }
            None => {
                let path = &self.socket_path[..self.socket_path_len];
                let client = Client::connect(path)?;
                check_server(&client, path)?;
                client
            }
        };
        let mailbox = memfd::create(c"sluice-mailbox")?;
        memfd::set_len(mailbox.raw(), memfd::WORD_PAGE_BYTES as u64)?;
        memfd::add_seals(mailbox.raw(), SEAL_SHRINK)?;
        let mail = Mapping::shared(mailbox.raw(), memfd::WORD_PAGE_BYTES, Access::ReadWrite)?;
        let board = memfd::create(c"sluice-board")?;
        memfd::set_len(board.raw(), BOARD_BYTES as u64)?;
        let board_memory = Mapping::shared(board.raw(), BOARD_BYTES, Access::ReadWrite)?;
        memfd::add_seals(board.raw(), SEAL_SHRINK | SEAL_GROW | SEAL_FUTURE_WRITE)?;
        let (table, is_whole) = conn::table_file()?;
        // A fork's parent has given the table that both use to the same sluiced.
        let flags = match (is_whole, self.has_lost_one, is_introduced) {
            (false, true, _) => hello_flag::EARLIER,
            (false, false, true) => hello_flag::SHARED,
            _ => 0,
        };
        let hello = ToDaemon::Hello(Hello {
            pid: process::pid(),
            program: ProgramName::new(&self.program),
            flags,
        });
        client.send(&hello, &[mailbox.raw(), board.raw(), table.raw()])?;
        let socket = client.into_socket();
        let fd = hide(socket.raw())?;
        self.set_fd(fd);
        BOARD.store(board_memory.leak().as_ptr(), Ordering::Release);
        if let Some(board) = self::board() {
            sluice_lane::boards::set_own_board(board);
        }
        MAILBOX.store(mail.leak().as_ptr().cast(), Ordering::Release);
        Ok(())
    }

    fn set_fd(&mut self, fd: i32) {
        self.fd = fd;
        LINKED.store(true, Ordering::Relaxed);
        self.inode = memfd::stat(fd).map_or(0, |stat| stat.inode);
        HIDDEN_FD.store(fd as u32, Ordering::Relaxed);
    }

    /// The daemon is lost; the memory shared with peers stays in use.
    fn forget(&mut self) {
        if self.fd >= 0 && self.is_ours() {
            let _ = unix::close(self.fd);
        }
        self.fd = -1;
        self.client = None;
        self.has_lost_one = true;
        sluice_lane::spin::heed(None);
        self.mapped.peer_gone(None);
        conn::announce_again();
        LINKED.store(false, Ordering::Relaxed);
        HIDDEN_FD.store(u32::MAX, Ordering::Relaxed);
        MAILBOX.store(&raw const LOST_MAIL as *mut AtomicU32, Ordering::Relaxed);
    }

    /// Takes messages until there is no more room for them or none is there; how many it took.
    fn receive(&mut self, mail: &mut [Option<Mail>; MAIL_BATCH]) -> usize {
        for (count, place) in mail.iter_mut().enumerate() {
            let client = Client::from_socket(Fd::own(self.fd));
            let received = client.receive();
            // The descriptor stays ours.
            let _ = client.into_socket().into_raw();
            match received {
                Ok(Some((FromDaemon::Lane(lane), mut received))) => {
                    let fds = [received.take_fd(0), received.take_fd(1)];
                    *place = Some(match self.assignment(&lane, fds) {
                        Some(assignment) => {
                            ATTACHING.fetch_add(1, Ordering::Relaxed);
                            Mail::Lane(lane, assignment)
                        }
                        None if received.fds_truncated => {
                            Mail::Unusable(lane, Reason::NoDescriptors)
                        }
                        None => Mail::Unusable(lane, Reason::NoMemory),
                    });
                }
                Ok(Some((FromDaemon::NoPeer { end, generation }, _))) => {
                    *place = Some(Mail::NoPeer { end, generation });
                }
                Ok(Some((FromDaemon::Welcome { client, .. }, _))) => self.client = Some(client),
                Ok(Some((FromDaemon::Refused { reason }, _))) => {
                    log!(Warn, "daemon refused: {reason}");
                }
                Ok(Some((FromDaemon::PeerGone { peer }, _))) => self.mapped.peer_gone(Some(peer)),
                Ok(Some(_)) => {}
                Ok(None) => return count,
                Err(ReceiveError::Message(_)) => {}
                Err(ReceiveError::Closed | ReceiveError::System(_)) => {
                    log!(Warn, "daemon has gone");
                    self.forget();
                    return count;
                }
            }
        }
        MAIL_BATCH
    }

    /// Gives memory back that gone peers have left, if no connection uses it.
    fn sweep(&mut self) {
        if ATTACHING.load(Ordering::Acquire) == 0
            && let Some(table) = conn::table()
        {
            self.mapped.sweep(&table);
        }
    }

    fn is_ours(&self) -> bool {
        memfd::stat(self.fd).is_ok_and(|stat| stat.inode == self.inode)
    }

    /// The descriptor is the parent's connection: a negative number that can be turned back.
    fn mark_inherited(&mut self) {
        self.fd = -2 - self.fd;
    }

    fn take_inherited(&mut self) -> Option<Fd> {
        if self.fd > -2 {
            return None;
        }
        let fd = -2 - self.fd;
        self.fd = -1;
        HIDDEN_FD.store(u32::MAX, Ordering::Relaxed);
        let ours = memfd::stat(fd).is_ok_and(|stat| stat.inode == self.inode);
        ours.then(|| Fd::own(fd))
    }

    fn send(&self, message: &ToDaemon, fds: &[i32]) -> Result<(), Errno> {
        let client = Client::from_socket(Fd::own(self.fd));
        let result = client.send(message, fds);
        let _ = client.into_socket().into_raw();
        result
    }

    /// Maps what a lane needs and this process does not have yet.
    fn assignment(&mut self, lane: &Lane, fds: [Option<Fd>; 2]) -> Option<Assignment> {
        let [first, second] = fds;
        let (chunk_fd, board_fd) = match (lane.has_chunk_fd, lane.has_board_fd) {
            (true, true) => (first, second),
            (true, false) => (first, None),
            (false, true) => (None, first),
            (false, false) => (None, None),
        };
        let chunk = match chunk_fd {
            // Twice is once: its ready lines are to be found in one place.
            Some(fd) => match self.mapped.chunk(lane.chunk) {
                Some(chunk) => chunk,
                None => self.mapped.map_chunk(lane, &fd)?,
            },
            None => self.mapped.chunk(lane.chunk)?,
        };
        if let Some(fd) = board_fd {
            self.mapped.map_board(lane.peer, &fd);
        }
        let own_board = board()?;
        let known = self.mapped.board(lane.peer);
        if lane.is_remote {
            sluice_lane::spin::heed(known);
        }
        let peer_board = if lane.is_direct {
            // Both sides announce the sleep of their epoll instances in the lane itself.
            Some(nobody())
        } else {
            // Without its board a peer counts as asleep where it uses epoll; a connection of a
            // program to itself comes without.
            known.or((Some(lane.peer) == self.client).then_some(own_board))
        };
        Some(Assignment {
            chunk,
            lane: lane.lane,
            side: u32::from(lane.side),
            peer_board,
            own_board,
            watchers: 0,
            remote: lane.is_remote,
            direct: lane.is_direct,
            patient: false,
        })
    }
}

/// A board on which nobody ever sleeps, for peers that have none in memory of this host.
fn nobody() -> Board {
    #[repr(align(64))]
    struct Quiet([AtomicU64; BOARD_BYTES / 8]);
    static QUIET: Quiet = Quiet([const { AtomicU64::new(0) }; BOARD_BYTES / 8]);
    // SAFETY: aligned static memory of a board's size; a peer's board is only read.
    unsafe { Board::from_raw(NonNull::from(&QUIET.0).cast()) }
}

/// sluiced is given every announced socket, so it must be root's or this user's own, and not be one that
/// a container has put there. `path`: where it was reached.
pub(crate) fn check_server(client: &Client, path: &[u8]) -> Result<(), Errno> {
    let server = unix::peer_credentials(client.raw())?;
    if !is_trusted(server.uid, unix::effective_uid(), maps_every_user) {
        log!(
            Warn,
            "the control socket is served by uid {}, who is neither this user nor root: \
             not used",
            server.uid
        );
        return Err(Errno(libc::EPERM));
    }
    if may_be_a_containers(path, server) {
        log!(
            Warn,
            "the control socket is served from outside of this container and mounted for \
             writing, so that another container may have put it there: not used; mount its \
             directory read-only in every container"
        );
        return Err(Errno(libc::EPERM));
    }
    Ok(())
}

/// What the kernel shows in place of a user who has no number in this user namespace, unless
/// `kernel.overflowuid` was changed.
const OVERFLOW_UID: u32 = 65_534;

/// Whether the user `server` may serve the user `own`. Where some users have no number, all of
/// them look like the one who has theirs (`nobody`).
fn is_trusted(server: u32, own: u32, maps_every_user: impl FnOnce() -> bool) -> bool {
    server == 0 || (server == own && (server != OVERFLOW_UID || maps_every_user()))
}

/// Whether every user of the machine has a number in this user namespace.
fn maps_every_user() -> bool {
    // SAFETY: the path is a static string.
    let opened = raw::check(unsafe {
        raw::syscall4(
            libc::SYS_openat,
            libc::AT_FDCWD as usize,
            c"/proc/self/uid_map".as_ptr() as usize,
            (libc::O_RDONLY | libc::O_CLOEXEC) as usize,
            0,
        )
    });
    let mut map = [0; 128];
    opened.is_ok_and(|fd| {
        let file = Fd::own(fd as i32);
        let got = memfd::read_at(file.raw(), &mut map, 0).unwrap_or(0);
        let mut words = map[..got].split(|b| b.is_ascii_whitespace());
        let mut word = || words.find(|word| !word.is_empty());
        (word(), word(), word()) == (Some(b"0"), Some(b"0"), Some(b"4294967295"))
    })
}

/// Moves a descriptor to a high number, out of the way of programs that expect the lowest ones
/// and of loops that close the first few hundred.
fn hide(fd: i32) -> Result<i32, Errno> {
    let mut limit = libc::rlimit {
        rlim_cur: 1024,
        rlim_max: 1024,
    };
    // SAFETY: getrlimit writes one struct.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    let top = limit.rlim_cur.clamp(64, fds::FDS_MAX as u64) as i32;
    let mut low = top - 32;
    loop {
        // SAFETY: fcntl with F_DUPFD_CLOEXEC takes and returns numbers.
        let moved = raw::check(unsafe {
            raw::syscall3(
                libc::SYS_fcntl,
                fd as usize,
                libc::F_DUPFD_CLOEXEC as usize,
                low as usize,
            )
        });
        match moved {
            Ok(moved) => return Ok(moved as i32),
            Err(_) if low > 64 => low /= 2,
            Err(errno) => return Err(errno),
        }
    }
}

/// The socket cookie of `fd`, to tell a connection from a later one with the same addresses.
pub fn is_same_socket(fd: i32, cookie: u64) -> bool {
    tcp::cookie(fd).is_ok_and(|now| now == cookie)
}

/// Maps memory for an end table of its own, and keeps the file for the hello.
pub fn new_table() -> Result<(EndTable, Fd), Errno> {
    let file = memfd::create(c"sluice-ends")?;
    memfd::set_len(file.raw(), table_bytes() as u64)?;
    let mapping = Mapping::shared(file.raw(), table_bytes(), Access::ReadWrite)?;
    memfd::add_seals(file.raw(), SEAL_SHRINK | SEAL_GROW | SEAL_FUTURE_WRITE)?;
    // SAFETY: new zeroed memory of the table's size, leaked.
    let table = unsafe { EndTable::from_raw(mapping.leak()) };
    table.describe(process::pid());
    Ok((table, file))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nobody else in these tests uses the link.
    #[test]
    fn left_link_whose_number_was_reused() {
        let (ours, others) = unix::seqpacket_pair().unwrap();
        let (ours, others) = (ours.into_raw(), others.into_raw());
        let set = |fd, inode| {
            let mut link = LINK.lock().unwrap();
            (link.fd, link.inode) = (fd, inode);
        };
        let inode_of = |fd| memfd::stat(fd).map(|stat| stat.inode);
        // The program closed the number by a way that nobody saw, and opened something else.
        set(others, inode_of(ours).unwrap());
        leave();
        assert!(inode_of(others).is_ok(), "the program's descriptor is open");
        // A child that has its parent's link, and confines itself.
        set(-2 - ours, inode_of(ours).unwrap());
        leave();
        assert!(inode_of(ours).is_err(), "the parent's link is closed here");
        let _ = unix::close(others);
    }

    #[test]
    fn only_root_and_the_own_user_serve() {
        assert!(is_trusted(0, 1000, || false));
        assert!(is_trusted(1000, 1000, || false));
        assert!(!is_trusted(1000, 0, || true));
        assert!(!is_trusted(1001, 1000, || true));
    }

    #[test]
    fn nobody_is_somebody_only_where_every_user_has_a_number() {
        assert!(is_trusted(OVERFLOW_UID, OVERFLOW_UID, || true));
        assert!(!is_trusted(OVERFLOW_UID, OVERFLOW_UID, || false));
        assert!(!is_trusted(OVERFLOW_UID, 1000, || true));
    }

    #[test]
    fn the_map_of_the_first_namespace_is_recognised() {
        let map = std::fs::read_to_string("/proc/self/uid_map").unwrap();
        let words: Vec<&str> = map.split_whitespace().collect();
        assert_eq!(maps_every_user(), words == ["0", "0", "4294967295"]);
    }
}
