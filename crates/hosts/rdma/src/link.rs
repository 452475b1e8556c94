//! One link: its queue pair, its state, and which link a number of the library's means.

use std::fmt;
use std::ptr;

use sluice_verbs_abi::ibv_qp;

use crate::error::Error;
use crate::queue::SendQueue;
use crate::receive::ReceiveQueue;
use crate::region::Remote;
use crate::status::Status;

/// A link of a node. Another link of the same node never has the same one, before a place was used
/// 32768 times.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct LinkId {
    pub(crate) slot: u16,
    /// 15 bits.
    pub(crate) generation: u16,
}

impl LinkId {
    /// Below [`Limits::links_max`](crate::Limits::links_max), and no other link has it at the same
    /// time: for tables of the caller.
    pub fn index(self) -> usize {
        usize::from(self.slot)
    }

    /// The same as a number, for tables and messages of the caller.
    pub fn to_number(self) -> u32 {
        u32::from(self.generation) << 16 | u32::from(self.slot)
    }

    /// What [`to_number`](Self::to_number) was called for. A number that no link has is no link of
    /// any node.
    pub fn from_number(number: u32) -> Self {
        Self {
            slot: number as u16,
            generation: (number >> 16) as u16,
        }
    }
}

impl fmt::Debug for LinkId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "link {}.{}", self.slot, self.generation)
    }
}

/// `wr_id` of a receive buffer has this bit, and the number of the buffer.
pub(crate) const RECEIVE: u64 = 1 << 63;

const GENERATION_MASK: u16 = 0x7fff;

/// `wr_id` of a request.
pub(crate) fn request_id(link: LinkId, position: u32) -> u64 {
    u64::from(link.generation & GENERATION_MASK) << 48
        | u64::from(link.slot) << 32
        | u64::from(position)
}

/// The link and the position that a `wr_id` of [`request_id`] says.
pub(crate) fn requested(wr_id: u64) -> (LinkId, u32) {
    let link = LinkId {
        slot: (wr_id >> 32) as u16,
        generation: (wr_id >> 48) as u16 & GENERATION_MASK,
    };
    (link, wr_id as u32)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// There is no link.
    Free,
    /// It waits to be connected.
    New,
    Connected,
    /// It has failed, and not all requests have come back.
    Failing(Status),
    /// It has failed, and that was told.
    Failed,
    /// It was destroyed, and completions may still come.
    Retiring,
}

/// A place for a link.
pub(crate) struct Link {
    pub id: LinkId,
    pub state: State,
    pub qp: *mut ibv_qp,
    pub qpn: u32,
    pub psn: u32,
    /// The port's MTU when it was made, which the peer was told.
    pub mtu: u8,
    pub queue: SendQueue,
    /// Its receive buffers, where the node's links share none.
    pub receive: Option<ReceiveQueue>,
    /// Of the last write, for a marker.
    pub remote: Remote,
    /// The link is in the node's list of those that may need a marker.
    pub listed: bool,
    /// No completion will tell of what is outstanding.
    pub silent: bool,
}

impl Link {
    pub fn free(slot: u16) -> Self {
        Self {
            id: LinkId {
                slot,
                generation: 0,
            },
            state: State::Free,
            qp: ptr::null_mut(),
            qpn: 0,
            psn: 0,
            mtu: 0,
            queue: SendQueue::new(1, 1),
            receive: None,
            remote: Remote::default(),
            listed: false,
            silent: false,
        }
    }

    /// The next link in this place is another one. The queue pair was destroyed.
    pub fn clear(&mut self) {
        self.id.generation = (self.id.generation + 1) & GENERATION_MASK;
        self.state = State::Free;
        self.qp = ptr::null_mut();
        self.qpn = 0;
        self.queue = SendQueue::new(1, 1);
        self.receive = None;
        self.remote = Remote::default();
        self.silent = false;
    }

    /// Posts receive buffers that were given back, if they are the link's own. A link that fails gets none:
    /// they would come back at once.
    ///
    /// `all`: also where they are too few to be worth a call.
    pub fn replenish(&mut self, all: bool) -> Result<(), Error> {
        if !matches!(self.state, State::New | State::Connected) {
            return Ok(());
        }
        match &mut self.receive {
            Some(receive) if all => receive.post_idle(),
            Some(receive) => receive.replenish(),
            None => Ok(()),
        }
    }

    /// Every completion of a request of the link has been found, as far as one comes.
    pub fn is_drained(&self) -> bool {
        self.queue.is_empty() || self.silent
    }
}

/// All places, and which of them has the queue pair with a number.
pub(crate) struct Links {
    slots: Box<[Link]>,
    /// Slot + 1 of a queue pair, at the place that the low bits of its number say or behind, 0 where
    /// nothing is. Four times as many places as links: one look as a rule.
    numbers: Box<[u16]>,
}

impl Links {
    pub fn new(links_max: u16) -> Self {
        let places = (usize::from(links_max) * 4).next_power_of_two();
        Self {
            slots: (0..links_max).map(Link::free).collect(),
            numbers: vec![0; places].into(),
        }
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Link> {
        self.slots.iter_mut()
    }

    /// A place where no link is.
    pub fn free_slot(&mut self) -> Option<&mut Link> {
        self.iter_mut().find(|link| link.state == State::Free)
    }

    /// The link with this queue pair.
    pub fn by_queue_pair(&self, qp: *mut ibv_qp) -> Option<LinkId> {
        let mut used = self.slots.iter().filter(|link| link.state != State::Free);
        used.find(|link| link.qp == qp).map(|link| link.id)
    }

    /// The link, unless it was destroyed for good.
    pub fn get(&self, id: LinkId) -> Option<&Link> {
        let link = self.slots.get(id.index())?;
        (link.id == id && link.state != State::Free).then_some(link)
    }

    pub fn get_mut(&mut self, id: LinkId) -> Option<&mut Link> {
        let link = self.slots.get_mut(id.index())?;
        (link.id == id && link.state != State::Free).then_some(link)
    }

    pub fn slot(&mut self, slot: u16) -> Option<&mut Link> {
        self.slots.get_mut(usize::from(slot))
    }

    /// The link with the queue pair of this number.
    pub fn by_number(&self, qpn: u32) -> Option<LinkId> {
        let mask = self.numbers.len() - 1;
        // There are more places than links, so one of them is empty.
        for step in 0..self.numbers.len() {
            let place = (qpn as usize).wrapping_add(step) & mask;
            let slot = self.numbers.get(place)?.checked_sub(1)?;
            let link = self.slots.get(usize::from(slot))?;
            if link.qpn == qpn {
                return Some(link.id);
            }
        }
        None
    }

    /// To be called when a link came or went.
    pub fn renumber(&mut self) {
        self.numbers.fill(0);
        let mask = self.numbers.len() - 1;
        for link in &self.slots {
            if link.state == State::Free {
                continue;
            }
            let mut place = link.qpn as usize & mask;
            while self.numbers[place] != 0 {
                place = (place + 1) & mask;
            }
            self.numbers[place] = link.id.slot + 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_numbers_are_taken_apart_again() {
        for (slot, generation, position) in [(0, 0, 0), (4095, 0x7fff, u32::MAX), (7, 3, 9)] {
            let id = LinkId { slot, generation };
            let number = request_id(id, position);
            assert_eq!(number & RECEIVE, 0);
            assert_eq!(requested(number), (id, position));
            assert_eq!(LinkId::from_number(id.to_number()), id);
        }
    }

    #[test]
    fn a_link_is_found_by_its_number_also_where_several_share_a_place() {
        let mut links = Links::new(4);
        let numbers = [0x11, 0x21, 0x31, 0x1ff];
        for (link, qpn) in links.iter_mut().zip(numbers) {
            (link.state, link.qpn) = (State::New, qpn);
        }
        links.renumber();
        for (slot, qpn) in numbers.into_iter().enumerate() {
            assert_eq!(links.by_number(qpn).map(LinkId::index), Some(slot));
        }
        for qpn in [0, 0x41, 0x10, 0x22, u32::MAX] {
            assert_eq!(links.by_number(qpn), None);
        }
        links.slot(1).unwrap().clear();
        links.renumber();
        assert_eq!(links.by_number(0x21), None);
        assert_eq!(links.by_number(0x31).map(LinkId::index), Some(2));
    }

    #[test]
    fn a_place_that_is_used_again_is_another_link() {
        let mut links = Links::new(1);
        let first = links.slot(0).unwrap();
        first.state = State::New;
        let id = first.id;
        assert!(links.get(id).is_some());
        let second = links.slot(0).unwrap();
        second.clear();
        second.state = State::New;
        assert_ne!(second.id, id);
        assert!(links.get(id).is_none());
    }
}
