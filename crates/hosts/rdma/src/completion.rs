//! What a work completion means. Nothing in it is believed that could hurt: numbers that nobody
//! gave are ignored, and lengths are checked.
#![allow(unsafe_code)]

use sluice_verbs_abi::*;

use crate::event::Event;
use crate::limits::MESSAGE_BYTES_MAX;
use crate::link::{LinkId, RECEIVE, State, requested};
use crate::node::Node;
use crate::receive::ReceiveQueue;
use crate::status::Status;

impl Node {
    /// Tells what the completion means; answers how many events that were.
    pub(crate) fn take_completion(
        &mut self,
        completion: &ibv_wc,
        each: &mut dyn FnMut(Event<'_>),
    ) -> usize {
        if completion.wr_id & RECEIVE == 0 {
            self.take_sent(completion, each)
        } else {
            self.take_received(completion, each)
        }
    }

    /// A request is done or has failed, and with it those before.
    fn take_sent(&mut self, completion: &ibv_wc, each: &mut dyn FnMut(Event<'_>)) -> usize {
        let (id, position) = requested(completion.wr_id);
        let Some(link) = self.links.get_mut(id) else {
            return 0;
        };
        let Some(mut covered) = link.queue.covered(position) else {
            return 0;
        };
        let told = link.state != State::Retiring;
        let status = Status(completion.status);
        let good = status.0 == IBV_WC_SUCCESS;
        // Requests before the first one that fails have succeeded, whether or not they asked for
        // a completion (IBTA 10.7.3.1). Once the link is given up nobody knows.
        let first_failure = !good && link.state == State::Connected;
        let mut events = 0;
        while covered > 0 {
            covered -= 1;
            let Some(finished) = link.queue.pop() else {
                break;
            };
            let Some(number) = finished.id.filter(|_| told) else {
                continue;
            };
            let link = id;
            if good || first_failure && finished.position != position {
                each(Event::Done { link, id: number });
            } else {
                each(Event::Failed {
                    link,
                    id: number,
                    status,
                });
            }
            events += 1;
        }
        if link.queue.needs_marker() && !link.listed {
            link.listed = true;
            self.marker_due.push(id.slot);
        }
        if !good {
            self.fail(id, status);
        }
        events
    }

    /// A receive buffer was used: for a message, or to tell of a write.
    fn take_received(&mut self, completion: &ibv_wc, each: &mut dyn FnMut(Event<'_>)) -> usize {
        let (owner, buffer) = requested(completion.wr_id & !RECEIVE);
        let link = match self.receive.is_some() {
            true => self.links.by_number(completion.qp_num),
            // Which queue pair a flushed buffer was of is not worth asking.
            false => Some(owner),
        };
        if !self.receive_queue(owner).is_some_and(|it| it.has(buffer)) {
            return 0;
        }
        let events = link.map_or(0, |link| self.take_arrival(link, buffer, completion, each));
        self.give_back(owner, buffer);
        events
    }

    /// The shared receive queue, or the owner's own.
    fn receive_queue(&self, owner: LinkId) -> Option<&ReceiveQueue> {
        let own = || self.links.get(owner)?.receive.as_ref();
        self.receive.as_ref().or_else(own)
    }

    /// A receive buffer is free again: a shared one, or one of the owner's.
    fn give_back(&mut self, owner: LinkId, buffer: u32) {
        if let Some(queue) = &mut self.receive {
            queue.give_back(buffer);
            return;
        }
        let Some(link) = self.links.get_mut(owner) else {
            return;
        };
        if let Some(queue) = &mut link.receive {
            queue.give_back(buffer);
        }
        if link.replenish(false).is_err() {
            self.fail(owner, Status::GENERAL);
        }
    }

    fn take_arrival(
        &mut self,
        link: LinkId,
        buffer: u32,
        completion: &ibv_wc,
        each: &mut dyn FnMut(Event<'_>),
    ) -> usize {
        if !matches!(
            self.links.get(link).map(|link| link.state),
            Some(State::Connected | State::Failing(_))
        ) {
            return 0;
        }
        let length = completion.byte_len;
        match (completion.status, completion.opcode) {
            (IBV_WC_SUCCESS, IBV_WC_RECV_RDMA_WITH_IMM) => each(Event::Arrived {
                link,
                number: u32::from_be(completion.imm_data),
                bytes: length,
            }),
            (IBV_WC_SUCCESS, IBV_WC_RECV) if length as usize <= MESSAGE_BYTES_MAX => {
                let Some(queue) = self.receive_queue(link) else {
                    return 0;
                };
                // SAFETY: this is the buffer's completion, and the buffer is given back later.
                let bytes = unsafe { queue.message(buffer, length as usize) };
                each(Event::Message { link, bytes });
            }
            (IBV_WC_SUCCESS, _) => {
                self.fail(link, Status::GENERAL);
                return 0;
            }
            (status, _) => {
                self.fail(link, Status(status));
                return 0;
            }
        }
        1
    }
}
