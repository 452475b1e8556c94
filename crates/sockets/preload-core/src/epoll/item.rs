//! One descriptor in one epoll instance.

use crate::conn::{self, Conn};
use sluice_lane::clock::now_ns;
use sluice_lane::kernel::kernel_events;
use sluice_lane::wait::{self, Asked};
use sluice_shmem::parking::ParkingTable;

pub(crate) const IN: u32 = libc::EPOLLIN as u32;
const OUT: u32 = libc::EPOLLOUT as u32;
const PRI: u32 = libc::EPOLLPRI as u32;
const RDHUP: u32 = libc::EPOLLRDHUP as u32;
pub(crate) const RDNORM: u32 = libc::EPOLLRDNORM as u32;
const WRNORM: u32 = libc::EPOLLWRNORM as u32;
const EDGE: u32 = libc::EPOLLET as u32;
const ONESHOT: u32 = libc::EPOLLONESHOT as u32;
const ERR: u32 = libc::EPOLLERR as u32;
/// Reported whether asked for or not (epoll_ctl(2)).
const ALWAYS: u32 = ERR | libc::EPOLLHUP as u32;

/// What a connection on a lane is registered for in the kernel.
pub const KERNEL_INTEREST: u32 = IN | OUT | PRI | RDHUP | EDGE;
/// The same for poll(2).
const ASKED: i16 = libc::POLLIN | libc::POLLOUT | libc::POLLPRI | libc::POLLRDHUP;

/// What the descriptor is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A TCP socket, perhaps with a tracked connection.
    Socket,
    /// An epoll instance of ours.
    Instance(u32),
}

/// As many are told apart; a power of two.
pub const ARMINGS: u32 = 1 << 12;

/// The armings of a registration that has labels, of a count that all share and that starts anew from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Armed {
    pub first: u32,
    pub last: u32,
}

impl Armed {
    pub fn has(self, arming: u32) -> bool {
        let since = |arming: u32| arming.wrapping_sub(self.first) % ARMINGS;
        since(arming) <= since(self.last)
    }
}

/// A registration.
pub struct Item {
    pub fd: i32,
    /// As the program gave them.
    pub events: u32,
    pub data: u64,
    pub kind: Kind,
    /// The lane that the instance watches for it: the chunk's address, and the lane in it.
    pub lane: Option<(u64, u32)>,
    /// Registered in the kernel under our tag.
    pub is_tagged: bool,
    /// Registered there under a label, as the program has armed it.
    pub armed: Option<Armed>,
    /// Removed by the program, but still registered in the kernel under our tag, so that adding
    /// it again costs no system call. Some event loops do both for every request.
    pub is_removed: bool,
    /// In the instance's queue.
    pub is_queued: bool,
    /// Among those whose ring is granted.
    pub is_granted: bool,
    /// One-shot, and shot.
    is_spent: bool,
    /// Something happened since the last report, for edge-triggered registrations.
    has_news: bool,
    /// Up to which position of the ring bytes have been reported. A sender sets its bit once for a
    /// write, before it publishes anything, and so it may be taken by a look that reports older bytes.
    reported_to: u64,
    /// A write found no room, in ring or socket, and no report of room was made since.
    is_write_blocked: bool,
    /// What the kernel last said of the socket, and when; `None` for a connection that is not known.
    kernel: u32,
    asked: Option<Asked>,
    /// The call in which it said so, if that was since the last look; 0 for none. What it said in
    /// an earlier call may have been read since.
    fresh_in: u64,
    /// The last [`super::state::State::next_call`] that it was reported to.
    pub call: u64,
    /// What it says of bytes was not reported, because they could not be read yet.
    has_waiting_kernel: bool,
    /// The ring had bytes already in an earlier look, which left them for later.
    was_left: bool,
}

/// What a look at an item found.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Look {
    /// To be reported; 0 for nothing.
    pub events: u32,
    /// To be looked at again in the next round.
    pub keep: bool,
    /// Nobody may sleep now: a sender is about to publish, or a writer waits for room.
    pub hot: bool,
    /// Nobody may sleep while sluiced grants the ring.
    pub granted: bool,
    /// When what is reported was written, 0 for unknown. Without a report it is of what was left for later.
    pub written_ns: u64,
    /// Where who wrote it to a ring says what it wrote without one.
    pub parking: Option<ParkingTable>,
}

/// What is known of an instance, or one of its items, without reporting it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Glance {
    /// Rings have nothing.
    Nothing,
    /// Nobody may sleep now: a sender is about to publish, or a writer waits for room.
    Hot,
    /// Rings have something.
    Ready,
}

impl Item {
    /// A new registration.
    pub fn new(fd: i32, events: u32, data: u64, kind: Kind) -> Self {
        Self {
            fd,
            events,
            data,
            kind,
            lane: None,
            is_tagged: false,
            armed: None,
            is_removed: false,
            is_queued: false,
            is_granted: false,
            is_spent: false,
            has_news: true,
            reported_to: 0,
            is_write_blocked: false,
            kernel: 0,
            asked: None,
            fresh_in: 0,
            call: 0,
            has_waiting_kernel: false,
            was_left: false,
        }
    }

    /// Follows `EPOLL_CTL_MOD`, which also arms a spent one-shot and counts as news.
    pub fn modify(&mut self, events: u32, data: u64) {
        self.events = events;
        self.data = data;
        self.is_spent = false;
        self.has_news = true;
    }

    /// The kernel has reported it, and disabled it if it is one-shot.
    pub fn spend(&mut self) {
        self.is_spent = self.events & ONESHOT != 0;
    }

    /// The instance watches this lane for it.
    pub fn watch(&mut self, lane: (u64, u32)) {
        if self.lane.replace(lane) != Some(lane) {
            self.reported_to = 0;
        }
        self.has_news = true;
    }

    /// What the kernel would still report: nothing, of a one-shot registration that is spent.
    pub fn events_left(&self) -> u32 {
        if self.is_spent {
            self.events & ONESHOT
        } else {
            self.events
        }
    }

    /// Something may have come.
    pub fn note_news(&mut self) {
        self.has_news = true;
    }

    /// Whether the kernel has told of something that no call has reported, and will not tell again.
    pub fn is_left_behind(&self) -> bool {
        let is_edge = self.events & EDGE != 0;
        is_edge && self.has_news && self.is_tagged && !self.is_spent && !self.is_removed
    }

    /// Whether a registration under our tag that is made anew is reported at once.
    pub fn is_ready_to_kernel(&self) -> bool {
        kernel_events(self.fd, ASKED) & ASKED != 0
    }

    /// A write found no room.
    pub fn note_write_blocked(&mut self) {
        self.is_write_blocked = true;
    }

    /// The kernel reported these events under our tag: all that held when it did. Another thread may
    /// have taken a later report out of the kernel and noted it before, so what this one lacks is
    /// asked for, and not taken for gone.
    ///
    /// `call` is the one that asked ([`super::state::State::next_call`]).
    pub fn note_kernel(&mut self, events: u32, call: u64) {
        let conn = conn::get(self.fd);
        if self.is_drained(conn) {
            self.kernel &= !(IN | RDNORM);
        }
        self.fresh_in = if self.kernel & !events == 0 { call } else { 0 };
        self.kernel |= events;
        self.asked = conn.map(|conn| Asked::now(conn.end));
        self.has_news = true;
    }

    /// The item was just put under our tag; what the kernel says now.
    pub fn start_tagged(&mut self) {
        self.is_tagged = true;
        self.ask_kernel(conn::get(self.fd));
    }

    fn ask_kernel(&mut self, conn: Option<Conn>) {
        self.asked = conn.map(|conn| Asked::now(conn.end));
        // The poll and epoll bits of these events are the same numbers.
        self.kernel = u32::from(kernel_events(self.fd, ASKED) as u16);
    }

    /// Whether the bytes that the kernel has reported are read.
    fn is_drained(&self, conn: Option<Conn>) -> bool {
        self.kernel & (PRI | RDHUP | ALWAYS) == 0
            && self.is_still(conn, |asked, conn| asked.is_drained(conn.end))
    }

    fn has_room_still(&self, conn: Option<Conn>) -> bool {
        self.kernel & OUT != 0 && self.is_still(conn, |asked, conn| asked.has_room_still(conn.end))
    }

    fn is_still(&self, conn: Option<Conn>, holds: impl Fn(Asked, Conn) -> bool) -> bool {
        match (self.asked, conn) {
            (Some(asked), Some(conn)) => holds(asked, conn),
            _ => false,
        }
    }

    /// When the peer last began to write to the socket; 0 for unknown.
    pub fn tcp_began_ns(&self) -> u64 {
        conn::get(self.fd).map_or(0, |conn| wait::tcp_began_ns(conn.end))
    }

    /// Whether the connection has a lane that may be used.
    pub fn is_attached(&self) -> bool {
        conn::get(self.fd).is_some_and(|conn| conn.end.has_usable_lane())
    }

    /// Whether a lane is in use that the kernel's registration does not know of.
    pub fn has_new_lane(&self) -> bool {
        let usable = |conn: Conn| wait::ready(conn.end, conn.generation, self.fd).is_some();
        !self.is_tagged
            && !self.is_removed
            && matches!(self.kind, Kind::Socket)
            && self.is_attached()
            && conn::get(self.fd).is_some_and(usable)
    }

    /// Looks at a connection. Untagged registrations whose lane is not in use yet are the
    /// kernel's to report.
    ///
    /// Ring bytes that were written after `until_ns` are left for later, once: what the next look finds there
    /// had come before it began. `call` is the one that looks.
    pub fn look(&mut self, until_ns: u64, call: u64) -> Look {
        if self.is_spent || self.is_removed {
            return Look::default();
        }
        let conn = conn::get(self.fd);
        if self.is_told_of_bytes_alone(call)
            && conn.is_some_and(|conn| wait::assure_kernel_alone(conn.end, conn.generation))
        {
            self.fresh_in = 0;
            self.has_news = false;
            return Look {
                events: (IN | RDNORM) & self.events,
                keep: self.events & EDGE == 0,
                ..Look::default()
            };
        }
        let lane = conn.and_then(|conn| wait::ready(conn.end, conn.generation, self.fd));
        if lane.is_none() && !self.is_tagged {
            return Look::default();
        }
        let mut lane = lane.unwrap_or_default();
        let is_edge = self.events & EDGE != 0;
        let is_news = !is_edge || self.has_news || lane.readable_to > self.reported_to;
        let is_late = lane.readable && is_news && is_between(until_ns, lane.written_ns);
        let was_left = core::mem::replace(&mut self.was_left, is_late);
        if is_late && !was_left {
            return Look {
                keep: true,
                written_ns: lane.written_ns,
                ..Look::default()
            };
        }
        let is_fresh = core::mem::take(&mut self.fresh_in) == call;
        if !is_fresh && self.is_drained(conn) {
            self.kernel &= !(IN | RDNORM);
        }
        let relevant = self.kernel & (self.events | ALWAYS) & !(IN | OUT)
            | self.kernel & IN & if lane.readable { 0 } else { IN }
            | self.kernel & self.events & OUT & if lane.writable.is_some() { 0 } else { OUT };
        let asks = if is_edge {
            relevant & IN
        } else if self.has_room_still(conn) {
            relevant & !OUT
        } else {
            relevant
        };
        // What the kernel last said of room is older than a write that found none.
        if !is_fresh && asks != 0 || self.is_write_blocked && relevant & OUT != 0 {
            self.ask_kernel(conn);
        }
        if !lane.kernel_waits && core::mem::take(&mut self.has_waiting_kernel) {
            self.ask_kernel(conn);
            self.has_news = true;
        }
        if !lane.readable && !lane.kernel_waits && self.kernel & self.events & IN != 0 {
            let assured = conn.is_none_or(|conn| wait::assure(conn.end, conn.generation));
            lane.kernel_waits = !assured;
            lane.in_flight |= !assured;
            lane.granted |= !assured;
        }
        if lane.kernel_waits {
            self.kernel &= !(IN | RDNORM);
            self.has_waiting_kernel = true;
        }
        let mut found = self.kernel & (PRI | RDHUP | ALWAYS);
        if lane.readable || self.kernel & IN != 0 {
            found |= IN | RDNORM;
        }
        if lane.writable.unwrap_or(self.kernel & OUT != 0) {
            found |= OUT | WRNORM;
        }
        if lane.error {
            found |= ERR;
        }
        found &= self.events | ALWAYS;
        let waits_for_room = self.events & OUT != 0
            && lane.writable == Some(false)
            && (!is_edge || self.is_write_blocked);
        let comes = self.events & IN != 0 && lane.in_flight;
        let granted = comes && lane.granted;
        let hot = comes && !granted || waits_for_room;
        if is_edge {
            self.has_news |= lane.readable_to > self.reported_to;
            let room = self.is_write_blocked && found & OUT != 0;
            if found == 0 || !(self.has_news || room) {
                self.has_news &= hot || granted;
                return Look {
                    keep: hot,
                    hot,
                    granted,
                    ..Look::default()
                };
            }
        }
        if found & OUT != 0 {
            self.is_write_blocked = false;
        }
        if found != 0 {
            self.has_news = false;
            self.reported_to = self.reported_to.max(lane.readable_to);
            self.is_spent = self.events & ONESHOT != 0;
        }
        Look {
            events: found,
            keep: hot || (!is_edge && found != 0 && !self.is_spent),
            hot,
            granted,
            written_ns: if found & IN != 0 { lane.written_ns } else { 0 },
            parking: lane.peer_parking,
        }
    }

    /// Whether the kernel has just said that there are bytes, the program waits for these alone, and
    /// nothing is left of earlier looks.
    fn is_told_of_bytes_alone(&self, call: u64) -> bool {
        self.fresh_in == call
            && self.kernel & (IN | PRI | RDHUP | ALWAYS) == IN
            && self.events & (IN | OUT | ONESHOT) == IN
            && !self.has_waiting_kernel
            && !self.is_write_blocked
    }

    /// Whether sluiced grants the ring still, and the program waits for what may come.
    pub fn is_grant_standing(&self) -> bool {
        let waits = self.events & IN != 0 && !self.is_spent && !self.is_removed;
        waits && conn::get(self.fd).is_some_and(|conn| conn.end.is_granted())
    }

    /// What a look would find, in an instance that is waited for from outside.
    pub fn peek(&self) -> Glance {
        if self.is_spent || self.is_removed {
            return Glance::Nothing;
        }
        let Some(lane) =
            conn::get(self.fd).and_then(|conn| wait::ready(conn.end, conn.generation, self.fd))
        else {
            return Glance::Nothing;
        };
        let wants = |event| self.events & event != 0;
        if lane.readable && wants(IN) || lane.writable == Some(true) && wants(OUT) {
            Glance::Ready
        } else if lane.in_flight && wants(IN) || lane.writable == Some(false) && wants(OUT) {
            Glance::Hot
        } else {
            Glance::Nothing
        }
    }

    /// What an epoll instance inside this one is to report: readable if `is_ready`.
    pub fn look_nested(&mut self, is_ready: bool) -> Look {
        let found = if is_ready && !self.is_spent {
            (IN | RDNORM) & self.events
        } else {
            0
        };
        let is_edge = self.events & EDGE != 0;
        if found == 0 || (is_edge && !self.has_news) {
            return Look::default();
        }
        self.has_news = false;
        self.is_spent = self.events & ONESHOT != 0;
        Look {
            events: found,
            keep: !is_edge && !self.is_spent,
            ..Look::default()
        }
    }
}

/// Whether `written_ns` is later than `until_ns`. A time that is still to come is none: the writer's clock is
/// another one.
fn is_between(until_ns: u64, written_ns: u64) -> bool {
    written_ns > until_ns && written_ns <= now_ns()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn armings_are_known_when_their_count_starts_anew() {
        let armed = Armed {
            first: ARMINGS - 2,
            last: 1,
        };
        for (arming, is_its) in [
            (ARMINGS - 3, false),
            (ARMINGS - 2, true),
            (ARMINGS - 1, true),
            (0, true),
            (1, true),
            (2, false),
        ] {
            assert_eq!(armed.has(arming), is_its, "{arming}");
        }
    }

    /// A call reports a registration once. What the kernel tells it then is left for the next call.
    #[test]
    fn news_that_came_behind_a_report_are_left_behind() {
        let mut item = Item::new(-1, IN | EDGE, 0, Kind::Socket);
        item.is_tagged = true;
        item.has_news = false;
        assert!(!item.is_left_behind());
        item.note_kernel(IN, 1);
        assert!(item.is_left_behind());
        item.is_removed = true;
        assert!(!item.is_left_behind());
        // Level-triggered ones are looked at in each call.
        let mut item = Item::new(-1, IN, 0, Kind::Socket);
        item.is_tagged = true;
        item.note_kernel(IN, 1);
        assert!(!item.is_left_behind());
    }

    #[test]
    fn a_report_that_is_noted_late_hides_nothing_that_a_later_one_said() {
        let mut item = Item::new(-1, IN, 0, Kind::Socket);
        item.note_kernel(OUT, 1);
        assert_eq!(item.fresh_in, 1);
        item.note_kernel(IN | OUT, 2);
        assert!(item.fresh_in == 2 && item.kernel == IN | OUT);
        // What another thread was told before the bytes had come.
        item.note_kernel(OUT, 3);
        assert_eq!(item.fresh_in, 0, "the kernel is to be asked");
        assert_eq!(item.kernel, IN | OUT);
    }
}
