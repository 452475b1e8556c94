//! What the far program writes, on its way to the local one. The daemon is its writer, in one long
//! write for as long as the ring is offered to the far program.

use sluice_shmem::board::Board;
use sluice_shmem::direction::{Direction, Mode, Recall};
use sluice_shmem::{Broken, Producer};

use crate::Violation;
use crate::message::Note;
use crate::trials::Trials;
use crate::watched::Waiter;

/// An offer that nothing came by for so long is taken back, nanoseconds: its reader polls for
/// nothing; or, if it polls for other lanes, the connection is idle.
const IDLE_NS: u64 = 1_000_000;
const IDLE_AMONG_BUSY_NS: u64 = 100_000_000;
/// The same for an offer that was never used, beside some times what the daemons take to answer one
/// another. Until it is used or settled, what comes by TCP cannot be read, because ring bytes that
/// come before it may be on their way.
const UNUSED_NS: u64 = 100_000;
const UNUSED_ANSWERS: u64 = 4;
/// No offer to a daemon that takes longer to answer, nanoseconds.
const ANSWER_NS_MAX: u64 = 1_000_000;
/// A daemon that has answered polls for so long, nanoseconds, and a call that is not answered is
/// made again after so long.
pub(crate) const AWAKE_NS: u64 = 2_000_000;
const CALL_NS: u64 = 20_000_000;
/// Time between an offer that was used and the next, nanoseconds.
const AGAIN_NS: u64 = 50_000;
/// Time that a reader who wants to sleep polls on behind the last bytes, nanoseconds: some times
/// what a message and its answer take.
const GRACE_NS: u64 = 200_000;
/// Time between an offer that was not used and the next, nanoseconds; it doubles up to the maximum.
const RETRY_NS: u64 = 1_000_000;
const RETRY_NS_MAX: u64 = 1_000_000_000;
/// Bytes that move on TCP within this time of one another are worth a ring, nanoseconds.
const LIVELY_NS: u64 = 500_000;
/// That often in a row.
const LIVELY_MOVES: u32 = 3;
/// Who has taken bytes within this time is not done, nanoseconds.
const MOVING_NS: u64 = 10_000_000;
/// Consumed bytes are reported when nothing has come for so long, nanoseconds, or when they are a
/// quarter of the ring.
const REPORT_NS: u64 = 30_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Offer {
    None,
    Standing,
    /// Taken back, and not settled yet.
    Revoked,
}

/// One direction, from the far program to the local one.
#[derive(Debug)]
pub struct Down {
    is_eager: bool,
    direction: Direction,
    producer: Producer,
    /// Where the program announces the sleep of its epoll instances.
    board: Option<Board>,
    offer: Offer,
    /// Bytes that have arrived since the lane began, and what was reported of their consumption.
    arrived: u64,
    reported: u64,
    /// When the offer was made or bytes came last.
    busy_ns: u64,
    is_used: bool,
    /// The far program has left the ring since the offer.
    has_left: bool,
    /// There was an offer, ever.
    was_offered: bool,
    retry_at_ns: u64,
    retry_ns: u64,
    /// When the far daemon was called last, and whether it has yet to answer; how long that took,
    /// and until when it polls.
    called_ns: Option<u64>,
    is_calling: bool,
    answer_ns: u64,
    far_awake_until_ns: u64,
    /// The reader's progress at the last look, when it changed, and how often it did so quickly.
    progress: u64,
    moved_ns: u64,
    lively: u32,
    /// The reader's progress that was counted.
    counted: u64,
    /// For a reader that waits for this lane alone.
    trials: Trials,
    is_close_said: bool,
    /// The local program has closed or ended.
    is_reader_gone: bool,
    /// Nothing comes any more.
    is_done: bool,
    /// The far daemon has said so, and waits to hear that this is known.
    is_done_heard: bool,
    is_finish_owed: bool,
}

impl Down {
    /// Becomes the writer of `direction`. `is_eager`: see
    /// [`Engine::set_eager`](crate::engine::Engine::set_eager).
    pub fn new(direction: Direction, board: Option<Board>, is_eager: bool) -> Self {
        Self {
            is_eager,
            direction,
            producer: Producer::default(),
            board,
            offer: Offer::None,
            arrived: 0,
            reported: 0,
            busy_ns: 0,
            is_used: false,
            has_left: false,
            was_offered: false,
            retry_at_ns: 0,
            retry_ns: RETRY_NS,
            called_ns: None,
            is_calling: false,
            answer_ns: 0,
            far_awake_until_ns: 0,
            progress: 0,
            moved_ns: 0,
            lively: 0,
            counted: direction.reader_progress(),
            trials: Trials::default(),
            is_close_said: false,
            is_reader_gone: false,
            is_done: false,
            is_done_heard: false,
            is_finish_owed: false,
        }
    }

    /// Whether the daemon has to look at this direction all the time.
    pub fn is_standing(&self) -> bool {
        self.offer != Offer::None
    }

    /// Whether the far program writes no more, and the far daemon was told that this is known.
    pub fn is_done(&self) -> bool {
        self.is_done && !self.is_finish_owed
    }

    /// Whether the ring was never offered to the far program.
    pub fn is_unused(&self) -> bool {
        !self.was_offered
    }

    /// The local program has closed, or has ended.
    pub fn reader_gone(&mut self) {
        self.is_reader_gone = true;
    }

    /// What is known of whoever waits for this direction, `waiter` if it waits for others, too.
    pub fn trials<'a>(&'a mut self, waiter: Option<&'a mut Waiter>) -> &'a mut Trials {
        waiter.map_or(&mut self.trials, |it| &mut it.trials)
    }

    /// Counts there what the reader has taken up to now.
    pub fn count(&mut self, waiter: Option<&mut Waiter>) {
        let progress = self.direction.reader_progress();
        let bytes = progress.wrapping_sub(core::mem::replace(&mut self.counted, progress));
        self.trials(waiter).count(bytes);
    }

    /// Whether the reader has taken bytes lately.
    pub fn is_moving(&self, now_ns: u64) -> bool {
        self.direction.reader_progress() != self.counted
            || now_ns.saturating_sub(self.moved_ns) < MOVING_NS
    }

    /// Whether bytes have just come by a ring.
    pub fn is_busy(&self, now_ns: u64, waiter: Option<&Waiter>) -> bool {
        now_ns.saturating_sub(self.waiter_busy_ns(waiter)) < GRACE_NS
    }

    fn waiter_busy_ns(&self, waiter: Option<&Waiter>) -> u64 {
        waiter.map_or(self.busy_ns, |it| it.busy_ns)
    }

    /// The far daemon calls, or answers, and polls for a while.
    pub fn called(&mut self, now_ns: u64) {
        self.far_awake_until_ns = now_ns + AWAKE_NS / 2;
    }

    /// When the reader took bytes last, nanoseconds.
    pub fn moved_ns(&self) -> u64 {
        self.moved_ns
    }

    /// So many bytes were written behind the last ones in the ring.
    pub fn arrive(&mut self, bytes: u32, now_ns: u64) -> Result<(), Violation> {
        if self.offer == Offer::None || self.is_done {
            return Err(Violation("wrote to a ring that was not offered"));
        }
        let Ok(used) = self.producer.in_flight(&self.direction) else {
            self.give_up();
            return Ok(());
        };
        if u64::from(bytes) + used > u64::from(self.direction.capacity()) {
            return Err(Violation("wrote more than the ring has room for"));
        }
        self.arrived += u64::from(bytes);
        self.producer.publish(&self.direction, bytes as usize);
        // The write is in flight already; this sets the ready bits.
        self.direction.begin_write(self.board);
        self.busy_ns = now_ns;
        self.is_used = true;
        Ok(())
    }

    /// What the far daemon says of this direction.
    pub fn hear(&mut self, note: Note, now_ns: u64) -> Result<(), Violation> {
        match note {
            Note::Here => {
                if let (Some(called_ns), true) = (self.called_ns, self.is_calling) {
                    self.answer_ns = now_ns.saturating_sub(called_ns);
                    self.is_calling = false;
                }
                self.called(now_ns);
            }
            Note::Segment(mark) if self.offer != Offer::None => {
                self.direction.publish_mode(Mode::Ring, mark);
                self.busy_ns = now_ns;
                self.has_left = false;
            }
            // The mark of a segment that may begin: up to there the kernel's bytes can be read.
            Note::Tcp(bytes) if self.offer != Offer::None => {
                self.direction.publish_mode(Mode::Ring, bytes);
                self.direction.begin_write(self.board);
            }
            // Of an offer that is settled, or that ended with the stream while it was taken back.
            Note::Tcp(_) => {}
            Note::Settled if self.is_done => {}
            Note::Left => {
                self.direction.publish_mode(Mode::Tcp, 0);
                // What follows by TCP can be read only when the offer is over.
                self.has_left = true;
            }
            Note::Settled if self.offer == Offer::Revoked => {
                self.direction.publish_mode(Mode::Tcp, 0);
                self.end_offer();
                if self.is_used {
                    self.retry_ns = RETRY_NS;
                    self.retry_at_ns = self.retry_at_ns.max(now_ns + AGAIN_NS);
                } else {
                    self.retry_at_ns = now_ns + self.retry_ns;
                    if !self.is_eager {
                        self.retry_ns = (2 * self.retry_ns).min(RETRY_NS_MAX);
                    }
                    self.lively = 0;
                }
            }
            Note::Done => {
                self.is_done_heard = true;
                self.is_finish_owed = true;
                self.end();
            }
            Note::Missing => {
                self.direction.break_reader();
                self.end();
            }
            _ => return Err(Violation("said something of a lane at a wrong time")),
        }
        Ok(())
    }

    /// Nothing comes any more.
    fn end(&mut self) {
        self.is_done = true;
        self.end_offer();
    }

    fn end_offer(&mut self) {
        if self.offer != Offer::None {
            self.offer = Offer::None;
            self.direction.end_write();
        }
    }

    /// The memory of the local program is beyond repair: it gets nothing any more.
    fn give_up(&mut self) {
        self.direction.break_reader();
        self.is_reader_gone = true;
    }

    /// No link will come any more. What the far program has put into its ring and could not be
    /// sent is not known here unless nothing was offered.
    pub fn abandon(&mut self) {
        self.is_finish_owed = false;
        if self.is_done {
            return;
        }
        if self.offer != Offer::None {
            self.direction.break_reader();
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
        self.is_close_said = false;
        // The answer may have been lost, and after the end of this lane there is nobody to ask.
        self.is_finish_owed = self.is_done_heard;
        if self.offer != Offer::None {
            self.offer = Offer::Revoked;
            say(Note::Revoke);
        }
    }

    /// The program's epoll instances that wait for this direction, a mask of slots on its board.
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
        if std::mem::take(&mut self.is_finish_owed) {
            say(Note::Finished);
        }
        if self.is_reader_gone || self.direction.is_closed() {
            if !self.is_close_said {
                self.is_close_said = true;
                say(Note::Closed);
            }
            return;
        }
        if let Err(Broken) = self.report(now_ns, say) {
            self.give_up();
            return;
        }
        if self.direction.recall() == Recall::Asked {
            // The program that wrote them may be asleep, and on another host.
            self.direction.answer_recall(false);
        }
        let progress = self.direction.reader_progress();
        if progress != self.progress {
            self.progress = progress;
            let gap = now_ns.saturating_sub(self.moved_ns);
            self.lively = if gap < LIVELY_NS { self.lively + 1 } else { 0 };
            self.moved_ns = now_ns;
        }
        let busy_ns = self.waiter_busy_ns(waiter.as_deref());
        self.count(waiter.as_deref_mut());
        let mut trials = *self.trials(waiter.as_deref_mut());
        if self.offer == Offer::Standing && !self.holds(now_ns, busy_ns, &mut trials) {
            self.offer = Offer::Revoked;
            say(Note::Revoke);
        } else if self.offer == Offer::None && self.is_worth_an_offer(now_ns, trials) {
            self.offer_or_call(now_ns, say);
        }
        *self.trials(waiter) = trials;
    }

    /// Makes an offer to a far daemon that polls, and calls one that may not.
    fn offer_or_call(&mut self, now_ns: u64, say: &mut dyn FnMut(Note)) {
        let polls = now_ns < self.far_awake_until_ns && self.answer_ns < ANSWER_NS_MAX;
        let is_due = |at| now_ns.saturating_sub(at) > CALL_NS;
        if self.is_eager || polls {
            self.try_to_offer(now_ns, say);
        } else if self.called_ns.is_none_or(is_due) {
            self.called_ns = Some(now_ns);
            self.is_calling = true;
            say(Note::Call);
        }
    }

    /// Whether the offer stays. `waiter_busy_ns`: when bytes came last for whoever waits for this lane
    /// and others.
    fn holds(&mut self, now_ns: u64, waiter_busy_ns: u64, trials: &mut Trials) -> bool {
        let idle = now_ns.saturating_sub(self.busy_ns);
        let quiet = idle.min(now_ns.saturating_sub(waiter_busy_ns));
        let limit = match (self.is_used, quiet > GRACE_NS) {
            (_, false) => IDLE_AMONG_BUSY_NS,
            (false, true) => UNUSED_NS + UNUSED_ANSWERS * self.answer_ns,
            (true, true) => IDLE_NS,
        };
        let wants_sleep = || !self.direction.is_reader_awake(self.board);
        let is_over = self.has_left || idle > limit || quiet > GRACE_NS && wants_sleep();
        if self.is_eager {
            return !is_over;
        }
        if is_over && quiet > GRACE_NS {
            trials.rest(now_ns);
        } else if self.is_used {
            trials.judge(now_ns);
        }
        !is_over && trials.allow(now_ns)
    }

    fn is_worth_an_offer(&self, now_ns: u64, trials: Trials) -> bool {
        // Just now: an answer may be on its way, and the next request will find the offer.
        let moves = self.lively >= LIVELY_MOVES && self.moved_ns == now_ns;
        !self.is_done
            && now_ns >= self.retry_at_ns
            && (self.is_eager || moves && trials.allow(now_ns))
            && self.direction.is_adopted()
    }

    fn try_to_offer(&mut self, now_ns: u64, say: &mut dyn FnMut(Note)) {
        if self.direction.begin_write(self.board) {
            self.offer = Offer::Standing;
            self.was_offered = true;
            self.busy_ns = now_ns;
            self.is_used = false;
            self.has_left = false;
            say(Note::Offer);
        } else {
            self.direction.end_write();
        }
    }

    fn report(&mut self, now_ns: u64, say: &mut dyn FnMut(Note)) -> Result<(), Broken> {
        if self.reported == self.arrived {
            return Ok(());
        }
        let consumed = self.arrived - self.producer.in_flight(&self.direction)?;
        let quarter = u64::from(self.direction.capacity()) / 4;
        let is_quiet = now_ns.saturating_sub(self.busy_ns) > REPORT_NS;
        if consumed - self.reported >= quarter || is_quiet && consumed > self.reported {
            self.reported = consumed;
            say(Note::Consumed(consumed));
        }
        Ok(())
    }
}
