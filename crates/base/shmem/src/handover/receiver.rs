//! The receiving end of a direction.

use crate::direction::{Direction, Mode, Reclaim, Words};
use crate::{Broken, Consumer};
use core::sync::atomic::{Ordering, compiler_fence};

/// The receiving end's private half. It lives where [`Consumer`] does, and what is said there of a
/// process that dies holds for it, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct Receiver {
    consumer: Consumer,
    /// Bytes of the stream read from TCP, ever.
    tcp_read: u64,
    /// TCP bytes up to this one come before whatever sluiced may still put into the ring of a lane
    /// to another host: they were in the kernel before it began to.
    assured: u64,
    /// TCP bytes are being read and not in `tcp_read` yet.
    is_uncounted: bool,
    /// A sleep is announced until the program reads; see [`Receiver::promise`].
    is_promised: bool,
}

/// What is next in the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// So many bytes by TCP, and then the ring's. The sender wrote them before it went to the
    /// ring: they are in the kernel or about to be.
    Owed(u64),
    /// So many bytes in the ring.
    Ring(usize),
    /// The ring's next byte, which is not there.
    Empty,
    /// Whatever comes by TCP, as far as can be seen without an announcement.
    Tcp,
}

/// One look at a direction.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// The sender was between deciding and publishing: what is next may change at once, without
    /// a sign of it in the kernel.
    pub in_flight: bool,
    pub next: Result<Next, Broken>,
}

/// What became of a wish that ring bytes go back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Back {
    /// It stands.
    Asked,
    /// They went: they come by TCP, before anything later.
    Taken,
    /// They stay in the ring: the sender could not, or the wish was taken back.
    Kept,
}

impl Receiver {
    /// The ring's end.
    #[inline]
    pub fn consumer(&mut self) -> &mut Consumer {
        &mut self.consumer
    }

    /// Whether nothing was ever read from the ring.
    pub fn is_untouched(&self) -> bool {
        self.consumer == Consumer::default()
    }

    /// Begins to read by the lane's rules, and lets the sender use the ring: `read` bytes of the
    /// stream were read from TCP so far, and `unread` more are known to come before all of the ring's.
    pub fn enable(&mut self, into: &Direction, read: u64, unread: u64) {
        self.tcp_read = read;
        self.assured = read.saturating_add(unread);
        into.enable();
    }

    /// Takes no more ring bytes than those that are there: an announcement that is never taken back.
    pub fn retire(&self, into: &Direction) {
        into.announce_sleep();
    }

    /// Reads no more. What is in the ring is not lost: somebody else has it, or it is nobody's any more.
    pub fn close(&self, into: &Direction) {
        into.close();
    }

    /// The lane is a new one.
    pub fn restart(&mut self) {
        self.consumer = Consumer::default();
        self.is_uncounted = false;
        self.is_promised = false;
    }

    /// What is next, and whether that may change at once.
    ///
    /// `has_sender`: one may exist. One that died in a write, or was closed since, has published
    /// all that it ever will, whatever its line says.
    #[inline]
    pub fn look(&mut self, into: &Direction, has_sender: bool) -> Look {
        // In this order: a sender that is through by now has published. The other way round it may
        // publish and be through in between, and is missed.
        let in_flight = has_sender && into.is_write_in_flight();
        Look {
            in_flight,
            next: self.next(into),
        }
    }

    /// What is next.
    #[inline]
    pub fn next(&mut self, into: &Direction) -> Result<Next, Broken> {
        let available = self.consumer.available(into)?;
        if available == 0 && into.mode() == Mode::Tcp {
            return Ok(Next::Tcp);
        }
        // Of the segment whose bytes are in the ring, or of the one that has just begun.
        let owed = self.owed(into);
        Ok(match (owed, available) {
            (1.., _) => Next::Owed(owed),
            (0, 1..) => Next::Ring(available),
            (0, 0) => Next::Empty,
        })
    }

    /// TCP bytes that come before the ring segment published last.
    #[inline]
    pub fn owed(&self, into: &Direction) -> u64 {
        into.switch_offset()
            .max(self.assured)
            .saturating_sub(self.tcp_read)
    }

    /// Whether TCP bytes come before whatever the ring has or will have, as far as is known now.
    pub fn has_assured(&self, into: &Direction) -> bool {
        into.switch_offset_if_ring().max(self.assured) > self.tcp_read
    }

    /// How many of the assured bytes were not read.
    pub fn assured_unread(&self) -> u64 {
        self.assured.saturating_sub(self.tcp_read)
    }

    // Reads of TCP without a bound.

    /// Announces a sleep, or a read of TCP without a bound. `true`: it may begin, and
    /// [`Receiver::withdraw`] ends it. `false`: it must not, and nothing is announced.
    #[inline]
    pub fn announce(&mut self, into: &Direction, has_sender: bool) -> bool {
        into.announce_sleep();
        let may = self.may_read_free(into, has_sender);
        if !may {
            into.withdraw_sleep();
        }
        may
    }

    /// Whether a reader whose announcement stands may take TCP bytes without a bound: nothing is in
    /// the ring, nobody is putting anything there, and no TCP bytes are owed before a ring segment.
    #[inline]
    pub fn may_read_free(&mut self, into: &Direction, has_sender: bool) -> bool {
        // Behind a promise a write may begin, and is taken back at once.
        let in_flight = !self.is_promised && has_sender && into.is_write_in_flight();
        !in_flight
            && !self.is_uncounted
            && matches!(self.consumer.available(into), Ok(0))
            && (into.mode() == Mode::Tcp || self.tcp_read >= into.switch_offset())
    }

    /// Announces a sleep that ends when the socket is readable. As [`Receiver::announce`], and bytes
    /// that are owed by TCP wake the sleeper, too: they come before what is in the ring, also when
    /// the sender has left it since.
    pub fn announce_wait(&mut self, into: &Direction, has_sender: bool) -> bool {
        into.announce_sleep();
        let look = self.look(into, has_sender);
        let is_owed =
            !look.in_flight && !self.is_uncounted && matches!(look.next, Ok(Next::Owed(_)));
        let may = is_owed || self.may_read_free(into, has_sender);
        if !may {
            into.withdraw_sleep();
        }
        may
    }

    /// Takes back what was announced.
    #[inline]
    pub fn withdraw(&self, into: &Direction) {
        into.withdraw_sleep();
    }

    // Promises, for lanes to another host.

    /// Asked before a program is told that the kernel has bytes: whether a read that follows gets
    /// them. Behind a grant of the ring the kernel's bytes would have to wait, and a program that
    /// was told and finds nothing may take that for an error of the connection. So `true` is a
    /// promise: either the bytes come before the ring's in any case, or a sleep is announced, which
    /// keeps sluiced from granting the ring until the program reads ([`Receiver::keep_promise`]).
    pub fn promise(&mut self, into: &Direction, has_sender: bool) -> bool {
        // The switch offset may be taken back, and what is before it comes next all the same.
        self.assured = self.assured.max(into.switch_offset_if_ring());
        self.is_promised || self.tcp_read < self.assured || self.promise_all(into, has_sender)
    }

    /// The same without a bound: whatever comes by TCP is next.
    pub fn promise_all(&mut self, into: &Direction, has_sender: bool) -> bool {
        if self.is_promised {
            return self.may_read_free(into, has_sender);
        }
        self.is_promised = self.announce(into, has_sender);
        self.is_promised
    }

    /// Whether a promise stands, with its announcement.
    #[inline]
    pub fn is_promised(&self) -> bool {
        self.is_promised
    }

    /// The announcement of the promise, if one stands, is the caller's to withdraw.
    #[inline]
    pub fn keep_promise(&mut self) -> bool {
        core::mem::take(&mut self.is_promised)
    }

    /// A program has read what it was told of: a promise that stands is kept, and its announcement
    /// taken back.
    #[inline]
    pub fn redeem_promise(&mut self, into: &Direction) {
        if self.keep_promise() {
            self.withdraw(into);
        }
    }

    // Ring bytes on their way back.

    /// Wishes that the sender takes back what is in the ring and was not read, so many bytes. Until
    /// [`Receiver::hear_back`] nothing is read from the ring.
    pub fn ask_back(&self, into: &Direction) {
        into.ask_reclaim();
    }

    /// What became of that wish. `is_over`: it is taken back if it was not answered.
    pub fn hear_back(&mut self, into: &Direction, is_over: bool) -> Back {
        match into.reclaim() {
            Reclaim::Asked if !is_over => return Back::Asked,
            Reclaim::Asked if into.withdraw_reclaim() => return Back::Kept,
            // It was answered in this moment.
            Reclaim::Asked => return Back::Asked,
            Reclaim::Taken => {}
            Reclaim::Refused | Reclaim::None => return Back::Kept,
        }
        if let Ok(taken) = self.consumer.available(into) {
            self.consumer.consume(into, taken);
        }
        Back::Taken
    }

    // Counting what is read from TCP.

    /// TCP bytes were read by an end that does not go by the lane's rules.
    #[inline]
    pub fn count(&mut self, bytes: u64) {
        self.tcp_read += bytes;
    }

    /// TCP bytes were read: the sender, too, is told that this end reads, if not from the ring.
    #[inline]
    pub fn count_said(&mut self, into: &Direction, bytes: u64) {
        self.count(bytes);
        into.publish_tcp_read(self.tcp_read);
    }

    /// Runs a read of TCP bytes up to the switch offset, under the lock of this half, and counts them. Whoever
    /// gets the lock from a reader that died in between finds [`Receiver::is_uncounted`].
    #[inline]
    pub fn count_read<E>(
        &mut self,
        into: &Direction,
        read: impl FnOnce() -> Result<usize, E>,
    ) -> Result<usize, E> {
        self.is_uncounted = true;
        compiler_fence(Ordering::SeqCst);
        let result = read();
        if let Ok(bytes) = result {
            self.count_said(into, bytes as u64);
        }
        compiler_fence(Ordering::SeqCst);
        self.is_uncounted = false;
        result
    }

    /// Somebody may have read TCP bytes and not counted them. Nothing is read by the lane's rules
    /// before [`Receiver::recount`].
    pub fn doubt_count(&mut self) {
        self.is_uncounted = true;
    }

    /// Whether the count is in doubt.
    #[inline]
    pub fn is_uncounted(&self) -> bool {
        self.is_uncounted
    }

    /// The kernel's own count; `None` where it has none any more, as its next answer is the end of
    /// the stream, whatever was owed.
    pub fn recount(&mut self, read: Option<u64>) {
        self.tcp_read = read.unwrap_or(self.tcp_read);
        self.is_uncounted = false;
    }
}
