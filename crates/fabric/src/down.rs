//! What the far program writes, on its way to the local one. The daemon is its writer, in one long
//! write for as long as the ring is offered to the far program.

use sluice_shmem::board::Board;
use sluice_shmem::direction::{Direction, Mode, Recall};
use sluice_shmem::{Broken, Producer};

use crate::Violation;
use crate::message::Note;
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
/// An offer in use is judged after each such time, nanoseconds: it must move no less than this part
/// of what moved while the daemon slept.
const JUDGED_NS: u64 = 5_000_000;
const WORTH: f64 = 0.9;
/// Time between an offer that moved less and the next, nanoseconds, at first and at most.
const WORSE_NS: u64 = 400_000_000;
const WORSE_NS_MAX: u64 = 60_000_000_000;
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
/// Consumed bytes are reported when nothing has come for so long, nanoseconds, or when they are a
/// quarter of the ring.
const REPORT_NS: u64 = 30_000;

/// When a ring may be tried again that moved less than TCP, for one lane or for all those that an
/// epoll instance watches: what one of them finds out holds for the others.
#[derive(Clone, Copy, Debug)]
pub struct Trials {
    again_ns: u64,
    pause_ns: u64,
}

impl Default for Trials {
    fn default() -> Self {
        Self {
            again_ns: 0,
            pause_ns: WORSE_NS,
        }
    }
}

impl Trials {
    fn may_begin(self, now_ns: u64) -> bool {
        now_ns >= self.again_ns
    }

    fn was_worse(&mut self, now_ns: u64) {
        // Of several at once the first counts.
        if self.may_begin(now_ns) {
            self.again_ns = now_ns + self.pause_ns;
            self.pause_ns = (4 * self.pause_ns).min(WORSE_NS_MAX);
        }
    }

    fn was_worth_it(&mut self) {
        self.pause_ns = WORSE_NS;
    }
}

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
    /// When the daemon fell asleep, and the reader's progress then.
    asleep: Option<(u64, u64)>,
    /// Bytes per nanosecond that the reader took while the daemon slept last.
    asleep_rate: f64,
    /// Since when the offer is judged, and the reader's progress then.
    judged: (u64, u64),
    /// It was judged, and is worth it.
    is_worth_it: bool,
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
            asleep: None,
            asleep_rate: 0.0,
            judged: (0, 0),
            is_worth_it: false,
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

    /// Whether an offer stands that was found to be worth its polling.
    pub fn is_worth_it(&self) -> bool {
        self.is_standing() && self.is_worth_it
    }

    /// The daemon falls asleep: what the reader takes from here on, it takes without the ring.
    pub fn fall_asleep(&mut self, now_ns: u64) {
        if self.asleep.is_none() {
            self.asleep = Some((now_ns, self.direction.reader_progress()));
        }
    }

    /// The daemon is about to look at its readers again.
    pub fn wake_up(&mut self, now_ns: u64) {
        if let Some((since_ns, progress)) = self.asleep.take() {
            let bytes = self.direction.reader_progress().wrapping_sub(progress);
            let passed_ns = now_ns.saturating_sub(since_ns);
            if passed_ns >= JUDGED_NS {
                self.asleep_rate = bytes as f64 / passed_ns as f64;
            }
        }
    }

    /// Whether the offer, in use, moves as much as TCP does alone.
    fn judge(&mut self, now_ns: u64) -> bool {
        let (since_ns, progress) = self.judged;
        let passed_ns = now_ns.saturating_sub(since_ns);
        if passed_ns < JUDGED_NS || self.is_eager {
            return true;
        }
        let bytes = self.progress.wrapping_sub(progress);
        let rate = bytes as f64 / passed_ns as f64;
        self.judged = (now_ns, self.progress);
        self.is_worth_it = rate >= WORTH * self.asleep_rate;
        self.is_worth_it
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
        if !self.is_used {
            self.is_used = true;
            self.is_worth_it = false;
            self.judged = (now_ns, self.direction.reader_progress());
        }
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
                self.far_awake_until_ns = now_ns + AWAKE_NS / 2;
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
    pub fn look(&mut self, now_ns: u64, waiter: Option<&mut Waiter>, say: &mut dyn FnMut(Note)) {
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
        let (busy_ns, mut trials) = waiter
            .as_ref()
            .map_or((self.busy_ns, self.trials), |it| (it.busy_ns, it.trials));
        if self.offer == Offer::Standing && !self.holds(now_ns, busy_ns, &mut trials) {
            self.offer = Offer::Revoked;
            say(Note::Revoke);
        } else if self.offer == Offer::None && self.is_worth_an_offer(now_ns, trials) {
            self.offer_or_call(now_ns, say);
        }
        *waiter.map_or(&mut self.trials, |it| &mut it.trials) = trials;
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
        let is_worse = self.is_used && !self.judge(now_ns);
        if is_worse {
            trials.was_worse(now_ns);
        } else if self.is_worth_it {
            trials.was_worth_it();
        }
        let idle = now_ns.saturating_sub(self.busy_ns);
        let quiet = idle.min(now_ns.saturating_sub(waiter_busy_ns));
        let limit = match (self.is_used, quiet > GRACE_NS) {
            (_, false) => IDLE_AMONG_BUSY_NS,
            (false, true) => UNUSED_NS + UNUSED_ANSWERS * self.answer_ns,
            (true, true) => IDLE_NS,
        };
        let wants_sleep = || !self.direction.is_reader_awake(self.board);
        !(is_worse || self.has_left || idle > limit || quiet > GRACE_NS && wants_sleep())
    }

    fn is_worth_an_offer(&self, now_ns: u64, trials: Trials) -> bool {
        // Just now: an answer may be on its way, and the next request will find the offer.
        let moves = self.lively >= LIVELY_MOVES && self.moved_ns == now_ns;
        !self.is_done
            && now_ns >= self.retry_at_ns
            && trials.may_begin(now_ns)
            && (self.is_eager || moves)
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
