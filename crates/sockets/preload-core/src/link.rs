//! The connection with sluiced: hello, announcements and the messages with lanes.
//!
//! Everything is one non-blocking system call a message. Without a daemon one attempt fails
//! and the next is made much later; connections stay on TCP.
#![allow(unsafe_code)]

use crate::conn::{self, Conn, from_entry};
use crate::fds::{self, Entry};
use crate::hiding::hide;
use crate::lock::SpinLock;
use crate::mapped::Mapped;
use crate::postponed::Postponed;
use crate::{children, ends, log, machine, this_process};
use core::ffi::CStr;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use sluice_control::client::{Client, ReceiveError, may_be_a_containers};
use sluice_control::message::{
    Announce, FromDaemon, Hello, Lane, ProgramName, Role, ToDaemon, hello_flag,
};
use sluice_lane::clock::now_ns;
use sluice_lane::end::{self, Assignment, State};
use sluice_lane::kernel::kernel_events;
use sluice_lane::reason::Reason;
use sluice_shmem::mapping::{Access, Mapping};
use sluice_shmem::parking::{PARKING_BYTES, ParkingTable};
use sluice_sys::errno::Errno;
use sluice_sys::memfd::{self, SEAL_FUTURE_WRITE, SEAL_GROW, SEAL_SHRINK};
use sluice_sys::raw;
use sluice_sys::unix::{self, Fd};

/// Time between attempts to reach a daemon, nanoseconds.
const RETRY_NS: u64 = 1_000_000_000;
/// The same after one that is not to be trusted.
const DISTRUST_NS: u64 = 60 * RETRY_NS;
/// Messages taken under one lock.
pub const BATCH_MESSAGES: usize = 16;

/// A page that nobody writes, in place of an event flag.
static NO_MESSAGES: AtomicU32 = AtomicU32::new(0);
/// The event flag of a sluiced that was lost: its lanes to other hosts are to be looked after.
static LOST_DAEMON: AtomicU32 = AtomicU32::new(1);
static EVENT_FLAG: AtomicPtr<AtomicU32> = AtomicPtr::new(&raw const NO_MESSAGES as *mut AtomicU32);
/// The hidden descriptor and its inode, for the close hooks; -1 without one.
static HIDDEN_FD: AtomicU32 = AtomicU32::new(u32::MAX);
/// Whether sluiced knows this process.
static LINKED: AtomicBool = AtomicBool::new(false);
static RETRY_AT_NS: AtomicU64 = AtomicU64::new(0);
static PARKING: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());

/// Lanes that were taken from the messages and are not attached yet; changed upwards under the lock
/// of the link.
static ATTACHING: AtomicU32 = AtomicU32::new(0);
/// Threads that look after what a lost sluiced has carried; changed upwards under the lock of the link.
static LOSING: AtomicU32 = AtomicU32::new(0);

struct Link {
    /// The control socket's inode: whoever closed our descriptor may have reused its number.
    inode: u64,
    fd: i32,
    /// This process's number among the clients of this sluiced.
    client: Option<u32>,
    /// A sluiced that knew this process, or the one it was forked from, is gone.
    has_lost_one: bool,
    /// One is gone, and what it carried is not looked after yet.
    has_loss: bool,
    mapped: Mapped,
    postponed: Postponed,
    socket_path: [u8; 108],
    socket_path_len: usize,
    program: [u8; ProgramName::BYTES],
}

static LINK: SpinLock<Link> = SpinLock::new(Link {
    inode: 0,
    fd: -1,
    client: None,
    has_lost_one: false,
    has_loss: false,
    mapped: Mapped::new(),
    postponed: Postponed::new(),
    socket_path: [0; 108],
    socket_path_len: 0,
    program: [0; ProgramName::BYTES],
});

/// Remembers where the daemon is. Without `SLUICE_SOCKET` there is none.
pub fn init(socket: Option<&CStr>, program: &[u8]) {
    children::set_release(release);
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

/// The parking table in which this process announces the sleep of its epoll instances.
pub fn parking() -> Option<ParkingTable> {
    let base = NonNull::new(PARKING.load(Ordering::Acquire))?;
    // SAFETY: `hello` stored a mapping that is never undone.
    Some(unsafe { ParkingTable::from_raw(base) })
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
    if is_known() || this_process::is_confined() {
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
        Err(errno @ Errno(libc::ENOENT | libc::ECONNREFUSED)) => {
            log!(Warn, "no daemon: {}", errno.name());
        }
        Err(errno) => log!(Warn, "the daemon cannot be asked: {}", errno.name()),
    }
}

/// Whether sluiced knows this process.
pub fn is_known() -> bool {
    LINKED.load(Ordering::Relaxed)
}

/// Whether sluiced knows this process, or does now: see [`meet`].
pub fn has_daemon() -> bool {
    meet();
    is_known()
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
/// answer, if it is no, comes as a message.
pub fn ask_for_peer(conn: &Conn) {
    let Some(mut link) = LINK.try_lock() else {
        return;
    };
    if link.fd < 0 || !link.is_ours() {
        return;
    }
    let message = ToDaemon::AskPeer {
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

/// The word by which sluiced says that it has written something.
#[derive(Clone, Copy)]
pub struct EventFlag(&'static AtomicU32);

/// The event flag of the sluiced that knows this process, or one in its place.
#[inline]
pub fn event_flag() -> EventFlag {
    // SAFETY: the pointer is to a static or to a mapping that is never undone.
    EventFlag(unsafe { &*EVENT_FLAG.load(Ordering::Relaxed) })
}

impl EventFlag {
    /// Whether there is something to take.
    #[inline]
    pub fn is_up(self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }

    /// Puts it up, as more may wait.
    pub fn put_up(self) {
        self.0.store(1, Ordering::SeqCst);
    }

    /// Takes a batch of messages; how many there were. For each lane among them [`attached`] is to be
    /// called.
    pub fn take_messages(self, incoming: &mut Batch) -> usize {
        let Some(mut link) = LINK.try_lock() else {
            return 0;
        };
        if link.fd < 0 || LOSING.load(Ordering::Acquire) != 0 {
            return 0;
        }
        if !link.is_ours() {
            link.forget();
            return 0;
        }
        self.0.store(0, Ordering::SeqCst);
        // What comes may need the room, and after it nothing may come for long.
        link.sweep();
        let count = link.receive(incoming);
        link.sweep();
        count
    }
}

/// Where sluiced was lost, looks after what it carried; whether it was. No lane of the next one is taken meanwhile. The
/// link's lock is not held: connections' own are waited for, and handlers on top of them may wait for the link's.
pub fn see_to_loss() -> bool {
    {
        let Some(mut link) = LINK.try_lock() else {
            return false;
        };
        if !core::mem::take(&mut link.has_loss) {
            return false;
        }
        LOSING.fetch_add(1, Ordering::Relaxed);
        // The flag of the next one stays.
        if core::ptr::eq(event_flag().0, &raw const LOST_DAEMON) {
            EVENT_FLAG.store(&raw const NO_MESSAGES as *mut AtomicU32, Ordering::Relaxed);
        }
    }
    conn::lose_carrier();
    LOSING.fetch_sub(1, Ordering::Release);
    true
}

/// A lane that was taken is attached, or cannot be.
pub fn attached() {
    ATTACHING.fetch_sub(1, Ordering::Release);
}

/// Keeps a lane that this process cannot take while another one has the connection, too.
pub fn postpone(lane: &Lane) {
    if let Some(mut link) = LINK.lock() {
        link.postponed.keep(lane);
    }
}

/// Takes a lane that was postponed, with its memory. [`attached`] is to be called for it.
pub fn take_postponed(conn: &Conn) -> Option<(Lane, Assignment)> {
    let mut link = LINK.try_lock()?;
    let lane = link.postponed.take(conn.index, conn.generation)?;
    // Its memory came with it, or before.
    let assignment = link.assignment(&lane, [None, None])?;
    ATTACHING.fetch_add(1, Ordering::Relaxed);
    Some((lane, assignment))
}

/// Forgets a postponed lane. Whether there was one.
pub fn give_back_postponed(conn: &Conn) -> bool {
    LINK.lock().is_some_and(|mut link| {
        let lane = link.postponed.take(conn.index, conn.generation);
        lane.is_some()
    })
}

/// What sluiced wrote about one connection.
#[derive(Clone, Copy)]
pub enum Incoming {
    /// A lane, whose memory is mapped.
    Lane(Lane, Assignment),
    /// A lane that this process cannot take, and why.
    Unusable(Lane, Reason),
    /// Nobody has the other end of the connection with this record and generation.
    NoPeer { end: u32, generation: u32 },
}

/// Messages that are taken under one lock.
pub type Batch = [Option<Incoming>; BATCH_MESSAGES];

/// In a forked child: the connection is the parent's, so this process gets one of its own, over
/// the inherited one, which works even after chroot and setuid.
pub fn after_fork() {
    LINK.force_open();
    ATTACHING.store(0, Ordering::Relaxed);
    let was_losing = LOSING.swap(0, Ordering::Relaxed) != 0;
    LINKED.store(false, Ordering::Relaxed);
    EVENT_FLAG.store(&raw const NO_MESSAGES as *mut AtomicU32, Ordering::Relaxed);
    PARKING.store(core::ptr::null_mut(), Ordering::Relaxed);
    RETRY_AT_NS.store(0, Ordering::Relaxed);
    let Some(mut link) = LINK.try_lock() else {
        return;
    };
    link.has_loss |= was_losing;
    if link.has_loss {
        EVENT_FLAG.store(&raw const LOST_DAEMON as *mut AtomicU32, Ordering::Relaxed);
    }
    if link.fd < 0 {
        return;
    }
    // The connection is kept under its number until the first tracked connection needs a daemon.
    link.mark_inherited();
}

/// In a forked child that has not met a sluiced itself: looks whether the parent's is still there. Lanes to other hosts
/// that were inherited are that one's.
pub fn check_inherited() {
    if let Some(mut link) = LINK.try_lock()
        && link
            .inherited_fd()
            .is_some_and(|fd| kernel_events(fd, 0) & libc::POLLHUP != 0)
    {
        drop(link.take_inherited());
        link.forget();
    }
}

/// Locks the link across a fork, so that the child finds it whole.
pub fn before_fork() {
    LINK.hold_across_fork();
}

/// Undoes [`before_fork`] in the parent.
pub fn release_after_fork() {
    LINK.release_after_fork();
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
        self.postponed.forget_all();
        let inherited = self.take_inherited();
        let is_introduced = inherited.is_some();
        let client = match inherited {
            Some(parent) => {
                let (ours, theirs) = unix::seqpacket_pair()?;
                let link = Client::from_socket(parent);
                if let Err(error) = link.send(&ToDaemon::Introduce, &[theirs.raw()]) {
                    // The parent's sluiced is gone, and with it what moved the bytes of inherited lanes.
                    if error != Errno::AGAIN {
                        self.forget();
                    }
                    return Err(error);
                }
                Client::from_socket(ours)
            }
            None => {
                let path = &self.socket_path[..self.socket_path_len];
                let client = Client::connect(path)?;
                check_server(&client, path)?;
                client
            }
        };
        let event_flag = memfd::create(c"sluice-event-flag")?;
        memfd::set_len(event_flag.raw(), memfd::WORD_PAGE_BYTES as u64)?;
        memfd::add_seals(event_flag.raw(), SEAL_SHRINK)?;
        let page = Mapping::shared(event_flag.raw(), memfd::WORD_PAGE_BYTES, Access::ReadWrite)?;
        let parking = memfd::create(c"sluice-parking")?;
        memfd::set_len(parking.raw(), PARKING_BYTES as u64)?;
        let parking_memory = Mapping::shared(parking.raw(), PARKING_BYTES, Access::ReadWrite)?;
        memfd::add_seals(parking.raw(), SEAL_SHRINK | SEAL_GROW | SEAL_FUTURE_WRITE)?;
        let (table, is_whole) = ends::table_file()?;
        // A fork's parent has given the table that both use to the same sluiced.
        let flags = match (is_whole, self.has_lost_one, is_introduced) {
            (false, true, _) => hello_flag::EARLIER,
            (false, false, true) => hello_flag::SHARED,
            _ => 0,
        };
        let hello = ToDaemon::Hello(Hello {
            pid: this_process::pid(),
            program: ProgramName::new(&self.program),
            flags,
        });
        client.send(&hello, &[event_flag.raw(), parking.raw(), table.raw()])?;
        // From here on there may be rings to poll.
        machine::learn();
        let socket = client.into_socket();
        let fd = hide(socket.raw())?;
        self.set_fd(fd);
        PARKING.store(parking_memory.leak().as_ptr(), Ordering::Release);
        if let Some(parking) = self::parking() {
            sluice_lane::parking::set_own_parking(parking);
        }
        self.set_event_flag(page.leak());
        Ok(())
    }

    /// The page with the event flag of a sluiced that has just got to know this process.
    fn set_event_flag(&mut self, page: NonNull<u8>) {
        EVENT_FLAG.store(page.as_ptr().cast(), Ordering::Release);
        if self.has_loss {
            // This thread was quicker than who would have seen to it.
            event_flag().put_up();
        }
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
        self.has_loss = true;
        sluice_lane::spin::heed(None);
        self.mapped.peer_gone(None);
        announce_again();
        LINKED.store(false, Ordering::Relaxed);
        HIDDEN_FD.store(u32::MAX, Ordering::Relaxed);
        EVENT_FLAG.store(&raw const LOST_DAEMON as *mut AtomicU32, Ordering::Relaxed);
    }

    /// Takes messages until there is no more room for them or none is there; how many it took.
    fn receive(&mut self, incoming: &mut Batch) -> usize {
        for (count, place) in incoming.iter_mut().enumerate() {
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
                            Incoming::Lane(lane, assignment)
                        }
                        None if received.fds_truncated => {
                            Incoming::Unusable(lane, Reason::NoDescriptors)
                        }
                        None => Incoming::Unusable(lane, Reason::NoMemory),
                    });
                }
                Ok(Some((FromDaemon::NoPeer { end, generation }, _))) => {
                    *place = Some(Incoming::NoPeer { end, generation });
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
        BATCH_MESSAGES
    }

    /// Gives memory back that gone peers have left, if no connection uses it.
    fn sweep(&mut self) {
        if ATTACHING.load(Ordering::Acquire) == 0
            && let Some(table) = ends::table()
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

    /// The parent's connection, if the number still is that.
    fn inherited_fd(&self) -> Option<i32> {
        let fd = -2 - self.fd;
        let is_ours = fd >= 0 && memfd::stat(fd).is_ok_and(|stat| stat.inode == self.inode);
        is_ours.then_some(fd)
    }

    fn take_inherited(&mut self) -> Option<Fd> {
        if self.fd > -2 {
            return None;
        }
        let inherited = self.inherited_fd();
        self.fd = -1;
        HIDDEN_FD.store(u32::MAX, Ordering::Relaxed);
        inherited.map(Fd::own)
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
        let (chunk_fd, parking_fd) = match (lane.has_chunk_fd, lane.has_parking_fd) {
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
        if let Some(fd) = parking_fd {
            self.mapped.map_parking(lane.peer, &fd);
        }
        let own_parking = parking()?;
        let known = self.mapped.parking(lane.peer);
        if lane.is_remote {
            sluice_lane::spin::heed(known);
        }
        let peer_parking = if lane.is_direct {
            // Both sides announce the sleep of their epoll instances in the lane itself.
            Some(nobody())
        } else {
            // Without its parking table a peer counts as asleep where it uses epoll; a connection of a
            // program to itself comes without.
            known.or((Some(lane.peer) == self.client).then_some(own_parking))
        };
        Some(Assignment {
            chunk,
            lane: lane.lane,
            side: u32::from(lane.side),
            peer_parking,
            own_parking,
            watchers: 0,
            remote: lane.is_remote,
            direct: lane.is_direct,
            patient: false,
        })
    }
}

/// sluiced is lost: what only it knew has to be announced again, to the next one. Connections
/// with a lane need nobody.
fn announce_again() {
    fds::for_each(0, i32::MAX, |fd, entry| {
        let Entry::Conn { index, generation } = entry else {
            return;
        };
        // Another holder may have a daemon that knows the connection.
        if let Some(conn) = from_entry(fd, index, generation)
            && conn.end.state() == State::Announced
            && conn.is_ours_alone()
            && !conn.end.is_pinned()
        {
            conn.end.unmark_announced();
            conn.keep_off(Reason::NoDaemon);
        }
    });
}

/// A parking table in which nobody ever sleeps, for peers that have none in memory of this host.
fn nobody() -> ParkingTable {
    #[repr(align(64))]
    struct Quiet([AtomicU64; PARKING_BYTES / 8]);
    static QUIET: Quiet = Quiet([const { AtomicU64::new(0) }; PARKING_BYTES / 8]);
    // SAFETY: aligned static memory of a parking table's size; a peer's parking table is only read.
    unsafe { ParkingTable::from_raw(NonNull::from(&QUIET.0).cast()) }
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

/// sluiced is lost, and the next one, which says nothing, is found before anybody has seen to it. Nobody knows it any more
/// behind `body`.
#[cfg(test)]
pub(crate) fn lose_and_find_another(page: NonNull<u8>, body: impl FnOnce()) {
    {
        let mut link = LINK.lock().unwrap();
        link.forget();
        link.set_event_flag(page);
    }
    body();
    EVENT_FLAG.store(&raw const NO_MESSAGES as *mut AtomicU32, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nobody else in these tests uses the link.
    #[test]
    fn left_link_whose_number_was_reused() {
        let _alone = crate::tests::ANNOUNCED.lock();
        let (ours, others) = unix::seqpacket_pair().unwrap();
        let (ours, others) = (ours.into_raw(), others.into_raw());
        let own = memfd::stat(ours).unwrap().inode;
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
        // Another test may have the number by now.
        assert_ne!(inode_of(ours), Ok(own), "the parent's link is closed here");
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
