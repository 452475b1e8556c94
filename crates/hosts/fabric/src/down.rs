//! What the far program writes, on its way to the local one. The daemon is its writer, in one long
//! write for as long as the ring is granted to the far program.

mod ending;
mod far;
mod grants;
mod reader;

use sluice_shmem::Broken;
use sluice_shmem::direction::{Direction, Mode};
use sluice_shmem::handover::{Grant, RelayWriter, Sender};
use sluice_shmem::parking::ParkingTable;

use crate::Violation;
use crate::ab_test::AbTest;
use crate::message::Note;
use crate::watched::Waiter;

pub(crate) use far::AWAKE_NS;

use ending::Ending;
use far::Far;
use grants::Grants;
use reader::Reader;

/// Consumed bytes are reported when nothing has come for so long, nanoseconds, or when they are a
/// quarter of the ring.
const REPORT_NS: u64 = 30_000;

/// One direction, from the far program to the local one.
#[derive(Debug)]
pub struct Down {
    is_eager: bool,
    direction: Direction,
    writer: RelayWriter,
    /// Where the program announces the sleep of its epoll instances.
    parking: Option<ParkingTable>,
    /// Bytes that have arrived since the lane began, and what was reported of their consumption.
    arrived: u64,
    reported: u64,
    grants: Grants,
    far: Far,
    reader: Reader,
    /// For a reader that waits for this lane alone.
    ab_test: AbTest,
    ending: Ending,
}

impl Down {
    /// Becomes the writer of `direction`. `is_eager`: see
    /// [`Engine::set_eager`](crate::engine::Engine::set_eager).
    pub fn new(direction: Direction, parking: Option<ParkingTable>, is_eager: bool) -> Self {
        Self {
            is_eager,
            direction,
            writer: RelayWriter::default(),
            parking,
            arrived: 0,
            reported: 0,
            grants: Grants::default(),
            far: Far::default(),
            reader: Reader::new(direction.reader_progress()),
            ab_test: AbTest::default(),
            ending: Ending::default(),
        }
    }

    /// Whether the daemon has to look at this direction all the time.
    pub fn is_standing(&self) -> bool {
        self.writer.grant() != Grant::None
    }

    /// Whether the far program writes no more, and the far daemon was told that this is known.
    pub fn is_done(&self) -> bool {
        self.ending.is_known()
    }

    /// Whether the ring was never granted to the far program.
    pub fn is_unused(&self) -> bool {
        !self.grants.was_one()
    }

    /// The local program has closed, or has ended.
    pub fn reader_gone(&mut self) {
        self.reader.is_gone = true;
    }

    /// What is known of whoever waits for this direction, `waiter` if it waits for others, too.
    pub fn ab_test<'a>(&'a mut self, waiter: Option<&'a mut Waiter>) -> &'a mut AbTest {
        waiter.map_or(&mut self.ab_test, |it| &mut it.ab_test)
    }

    /// Counts there what the reader has taken up to now.
    pub fn count(&mut self, waiter: Option<&mut Waiter>) {
        let bytes = self.reader.count(self.direction.reader_progress());
        self.ab_test(waiter).count(bytes);
    }

    /// Whether the reader has taken bytes lately.
    pub fn is_moving(&self, now_ns: u64) -> bool {
        self.reader
            .is_moving(self.direction.reader_progress(), now_ns)
    }

    /// Whether bytes have just come by a ring.
    pub fn is_busy(&self, now_ns: u64, waiter: Option<&Waiter>) -> bool {
        !grants::is_quiet(now_ns, self.waiter_busy_ns(waiter))
    }

    fn waiter_busy_ns(&self, waiter: Option<&Waiter>) -> u64 {
        waiter.map_or(self.grants.busy_ns(), |it| it.busy_ns)
    }

    /// The far daemon calls, or answers, and polls for a while.
    pub fn called(&mut self, now_ns: u64) {
        self.far.is_heard(now_ns);
    }

    /// When the reader took bytes last, nanoseconds.
    pub fn moved_ns(&self) -> u64 {
        self.reader.moved_ns()
    }

    /// So many bytes were written behind the last ones in the ring.
    pub fn arrive(&mut self, bytes: u32, now_ns: u64) -> Result<(), Violation> {
        if !self.is_standing() || self.ending.is_over() {
            return Err(Violation("wrote to a ring that was not granted"));
        }
        let Ok(used) = self.writer.in_flight(&self.direction) else {
            self.give_up();
            return Ok(());
        };
        if u64::from(bytes) + used > u64::from(self.direction.capacity()) {
            return Err(Violation("wrote more than the ring has room for"));
        }
        self.arrived += u64::from(bytes);
        self.writer.arrive(&self.direction, bytes as usize);
        self.writer.ring(&self.direction, self.parking);
        self.grants.carried(now_ns);
        Ok(())
    }

    /// What the far daemon says of this direction.
    pub fn hear(&mut self, note: Note, now_ns: u64) -> Result<(), Violation> {
        match note {
            Note::Here => self.far.answered(now_ns),
            Note::Segment(switch_offset) if self.is_standing() => {
                self.writer
                    .set_switch_offset(&self.direction, switch_offset);
                self.grants.entered(now_ns);
            }
            // The switch offset of a segment that may begin: up to there the kernel's bytes can be read.
            Note::Tcp(bytes) if self.is_standing() => {
                self.writer.set_switch_offset(&self.direction, bytes);
                self.writer.ring(&self.direction, self.parking);
            }
            // Of a grant that is relinquished, or that ended with the stream while it was taken back.
            Note::Tcp(_) => {}
            Note::Relinquished if self.ending.is_over() => {}
            Note::Left => {
                self.writer.leave(&self.direction);
                self.grants.left();
            }
            Note::Relinquished if self.writer.grant() == Grant::Revoked => {
                self.writer.leave(&self.direction);
                self.writer.end(&self.direction);
                if !self.grants.relinquished(now_ns, self.is_eager) {
                    self.reader.is_to_show_again();
                }
            }
            Note::Done => {
                self.end();
                self.ending.heard();
            }
            Note::Missing => {
                self.writer.break_reader(&self.direction);
                self.end();
            }
            _ => return Err(Violation("said something of a lane at a wrong time")),
        }
        Ok(())
    }

    /// Nothing comes any more.
    fn end(&mut self) {
        self.ending.over();
        self.writer.end(&self.direction);
    }

    /// The memory of the local program is beyond repair: it gets nothing any more.
    fn give_up(&mut self) {
        self.writer.break_reader(&self.direction);
        self.reader.is_gone = true;
    }

    /// No link will come any more. What the far program has put into its ring and could not be
    /// sent is not known here unless nothing was granted.
    pub fn abandon(&mut self) {
        if self.ending.is_over() {
            self.ending.finish();
            return;
        }
        if self.is_standing() {
            self.writer.break_reader(&self.direction);
        }
        self.end();
    }

    /// The far host has never had its half of the lane, so nothing was written to the ring and all
    /// of the stream comes by TCP. Should it have written all the same, bytes may be missing.
    pub fn decline(&mut self) {
        if self.arrived > 0 || self.direction.mode() == Mode::Ring {
            self.abandon();
        }
        self.end();
    }

    /// A link is there again: says where this direction is.
    pub fn resume(&mut self, say: &mut dyn FnMut(Note)) {
        say(Note::Resume(self.arrived));
        say(Note::Consumed(self.reported));
        self.reader.is_close_said = false;
        self.ending.resume();
        if self.writer.revoke() {
            say(Note::Revoke);
        }
    }

    /// The program's epoll instances that wait for this direction, a mask of slots in its parking table.
    pub fn watchers(&self) -> u64 {
        self.direction.watchers()
    }

    /// Looks at the reader, and says what the far daemon has to know. `waiter`: who waits for this lane
    /// and perhaps others.
    pub fn look(
        &mut self,
        now_ns: u64,
        mut waiter: Option<&mut Waiter>,
        say: &mut dyn FnMut(Note),
    ) {
        if self.ending.finish() {
            say(Note::Finished);
        }
        if self.reader.is_gone || self.direction.is_closed() {
            if !core::mem::replace(&mut self.reader.is_close_said, true) {
                say(Note::Closed);
            }
            return;
        }
        if let Err(Broken) = self.report(now_ns, say) {
            self.give_up();
            return;
        }
        if Sender::is_asked_back(&self.direction) {
            self.writer.refuse_back(&self.direction);
        }
        self.reader.look(self.direction.reader_progress(), now_ns);
        let busy_ns = self.waiter_busy_ns(waiter.as_deref());
        self.count(waiter.as_deref_mut());
        let mut ab_test = *self.ab_test(waiter.as_deref_mut());
        let grant = self.writer.grant();
        if grant == Grant::Standing && !self.holds(now_ns, busy_ns, &mut ab_test) {
            self.writer.revoke();
            say(Note::Revoke);
        } else if grant == Grant::None && self.is_worth_a_grant(now_ns, ab_test) {
            self.grant_or_call(now_ns, say);
        }
        *self.ab_test(waiter) = ab_test;
    }

    /// Makes a grant to a far daemon that polls, and calls one that may not.
    fn grant_or_call(&mut self, now_ns: u64, say: &mut dyn FnMut(Note)) {
        if self.is_eager || self.far.polls(now_ns) {
            self.try_to_grant(now_ns, say);
        } else if self.far.call(now_ns) {
            say(Note::Call);
        }
    }

    /// Whether the grant stays. `waiter_busy_ns`: when bytes came last for whoever waits for this lane
    /// and others.
    fn holds(&mut self, now_ns: u64, waiter_busy_ns: u64, ab_test: &mut AbTest) -> bool {
        let is_quiet = self.grants.is_quiet(now_ns, waiter_busy_ns);
        let wants_sleep = || !self.direction.is_reader_awake(self.parking);
        let is_over = self.grants.is_over(now_ns, is_quiet, self.far.answer_ns())
            || is_quiet && wants_sleep();
        if self.is_eager {
            return !is_over;
        }
        if is_over && is_quiet {
            ab_test.rest(now_ns);
        } else if self.grants.is_used() {
            ab_test.judge(now_ns);
        }
        !is_over && ab_test.allow(now_ns)
    }

    fn is_worth_a_grant(&self, now_ns: u64, ab_test: AbTest) -> bool {
        !self.ending.is_over()
            && self.grants.may_be_made(now_ns)
            && (self.is_eager || self.reader.is_lively(now_ns) && ab_test.allow(now_ns))
            && self.direction.is_enabled()
    }

    fn try_to_grant(&mut self, now_ns: u64, say: &mut dyn FnMut(Note)) {
        if self.writer.try_to_grant(&self.direction, self.parking) {
            self.grants.made(now_ns);
            say(Note::Grant);
        }
    }

    fn report(&mut self, now_ns: u64, say: &mut dyn FnMut(Note)) -> Result<(), Broken> {
        if self.reported == self.arrived {
            return Ok(());
        }
        let consumed = self.arrived - self.writer.in_flight(&self.direction)?;
        let quarter = u64::from(self.direction.capacity()) / 4;
        let is_quiet = now_ns.saturating_sub(self.grants.busy_ns()) > REPORT_NS;
        if consumed - self.reported >= quarter || is_quiet && consumed > self.reported {
            self.reported = consumed;
            say(Note::Consumed(consumed));
        }
        Ok(())
    }
}
