//! Polling and sleeping.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::os::fd::AsRawFd;
use std::ptr;

use sluice_verbs_abi::*;

use crate::error::Error;
use crate::event::{DeviceEvents, Event};
use crate::library::check;
use crate::link::State;
use crate::node::{CHANNEL, Node};
use crate::status::Status;

/// Who polls all the time hears of events of the device after so many times: looking for them is
/// a system call.
const POLLS_PER_LOOK: u32 = 1024;
/// Events of the device that are taken in one go. More are found the next time.
const EVENTS_AT_ONCE: u32 = 64;

impl Node {
    /// Tells what has happened: takes about `max` completions and calls `each` for what they mean,
    /// which is more than one event where a completion tells of several requests. Answers how many
    /// events that were; 0 says that there was nothing.
    ///
    /// Enters the kernel once in a thousand times, to look for events of the device.
    pub fn poll(&mut self, max: usize, each: &mut dyn FnMut(Event<'_>)) -> usize {
        self.polls = self.polls.wrapping_add(1);
        if self.polls.is_multiple_of(POLLS_PER_LOOK) {
            self.look_for_events();
        }
        self.post_markers();
        let mut events = self.tell_device_events(each);
        let mut taken = 0;
        // Completions that mean nothing to the caller do not count, so that 0 says that the queue
        // was empty. Not more than the queue can hold at one time.
        let bound = self.limits.completions(self.receive.is_some()) as usize;
        while taken < max || events == 0 && taken < bound {
            let left = match max.saturating_sub(taken) {
                0 => bound - taken,
                left => left,
            };
            let wanted = self.completions.len().min(left);
            let got = self.take_completions(wanted, each, &mut events);
            taken += got;
            if got < wanted {
                self.reap();
                break;
            }
        }
        let receive = self.receive.as_mut();
        if receive.is_some_and(|queue| queue.replenish().is_err()) {
            self.lose_device();
        }
        events + self.tell_failures(each)
    }

    /// Polls the queue once. Answers how many completions there were.
    fn take_completions(
        &mut self,
        wanted: usize,
        each: &mut dyn FnMut(Event<'_>),
        events: &mut usize,
    ) -> usize {
        let start = self.completions.as_mut_ptr();
        // SAFETY: the queue exists, and there is room for so many.
        let got = unsafe {
            match (*(*self.cq).context).ops.poll_cq {
                Some(poll) => poll(self.cq, wanted as c_int, start),
                None => -libc::EOPNOTSUPP,
            }
        };
        let Ok(got) = usize::try_from(got) else {
            self.lose_device();
            return 0;
        };
        let got = got.min(wanted);
        for at in 0..got {
            let Some(&completion) = self.completions.get(at) else {
                break;
            };
            *events += self.take_completion(&completion, each);
        }
        got
    }

    fn lose_device(&mut self) {
        self.device_events.gone |= !self.lost;
        self.lost = true;
    }

    fn tell_device_events(&mut self, each: &mut dyn FnMut(Event<'_>)) -> usize {
        let happened = std::mem::take(&mut self.device_events);
        if happened == DeviceEvents::default() {
            return 0;
        }
        each(Event::Device(happened));
        1
    }

    /// Tells of links that failed and whose requests have all come back.
    fn tell_failures(&mut self, each: &mut dyn FnMut(Event<'_>)) -> usize {
        let mut events = 0;
        let mut at = 0;
        while let Some(&id) = self.failing.get(at) {
            match self.links.get_mut(id) {
                Some(link) if !link.is_drained() => at += 1,
                Some(link) => {
                    self.failing.remove(at);
                    while let Some(finished) = link.queue.pop() {
                        if let Some(number) = finished.id {
                            each(Event::Failed {
                                link: id,
                                id: number,
                                status: Status::FLUSHED,
                            });
                            events += 1;
                        }
                    }
                    if let State::Failing(status) = link.state {
                        link.state = State::Failed;
                        each(Event::Broken { link: id, status });
                        events += 1;
                    }
                }
                None => {
                    self.failing.remove(at);
                }
            }
        }
        events
    }

    /// Makes [`fd`](Self::fd) readable when something happens from now on. What happened before is
    /// not told of, so that one more [`poll`](Self::poll) belongs between this call and sleeping.
    ///
    /// Does not block. One call arms for one wake-up.
    ///
    /// # Errors
    /// [`Error::Call`]: the device is broken.
    pub fn arm(&mut self) -> Result<(), Error> {
        self.post_markers();
        self.look_for_events();
        self.post_idle()?;
        if self.lost {
            return check("the device", libc::EIO);
        }
        // SAFETY: the queue exists.
        let answer = unsafe {
            match (*(*self.cq).context).ops.req_notify_cq {
                Some(arm) => arm(self.cq, 0),
                None => libc::EOPNOTSUPP,
            }
        };
        check("ibv_req_notify_cq", answer)
    }

    /// Posts every receive buffer that was given back. A link that takes none of its own has failed.
    fn post_idle(&mut self) -> Result<(), Error> {
        if let Some(queue) = &mut self.receive {
            return queue.post_idle();
        }
        for slot in 0..self.limits.links_max {
            if let Some(link) = self.links.slot(slot)
                && link.replenish(true).is_err()
            {
                let id = link.id;
                self.fail(id, Status::GENERAL);
            }
        }
        Ok(())
    }

    /// Takes what made [`fd`](Self::fd) readable.
    fn look_for_events(&mut self) {
        let mut ready = [libc::epoll_event { events: 0, u64: 0 }; 2];
        // SAFETY: there is room for so many events.
        let count = unsafe {
            libc::epoll_wait(
                self.events_fd.as_raw_fd(),
                ready.as_mut_ptr(),
                ready.len() as c_int,
                0,
            )
        };
        for event in ready.iter().take(usize::try_from(count).unwrap_or(0)) {
            match event.u64 {
                CHANNEL => self.take_channel_event(),
                _ => self.take_device_events(),
            }
        }
    }

    fn take_device_events(&mut self) {
        for _ in 0..EVENTS_AT_ONCE {
            let mut event = ibv_async_event {
                element: ptr::null_mut(),
                event_type: 0,
            };
            // SAFETY: the context is open, and its descriptor does not block.
            let answer = unsafe {
                (self.device.functions.get_async_event)(self.device.context, &raw mut event)
            };
            if answer != 0 {
                return;
            }
            match event.event_type {
                IBV_EVENT_QP_FATAL
                | IBV_EVENT_QP_REQ_ERR
                | IBV_EVENT_QP_ACCESS_ERR
                | IBV_EVENT_QP_LAST_WQE_REACHED => {
                    if let Some(id) = self.links.by_queue_pair(event.element.cast()) {
                        self.fail(id, Status::of_event(event.event_type));
                    }
                }
                IBV_EVENT_CQ_ERR | IBV_EVENT_SRQ_ERR | IBV_EVENT_DEVICE_FATAL => {
                    self.lose_device();
                }
                IBV_EVENT_PORT_ERR => self.device_events.port_down = true,
                IBV_EVENT_PORT_ACTIVE => self.device_events.port_up = true,
                IBV_EVENT_GID_CHANGE => self.device_events.addresses = true,
                _ => {}
            }
            // SAFETY: the event came from ibv_get_async_event, and its object still exists.
            unsafe { (self.device.functions.ack_async_event)(&raw mut event) };
        }
    }
}
