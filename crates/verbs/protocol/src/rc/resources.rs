//! READs and atomics that a responder remembers, so that it can answer them again (IBTA 9.7.5.1.5,
//! 9.7.5.1.9), and the responses that it owes.

use alloc::collections::VecDeque;

use sluice_wire::{Mtu, Psn, Qpn};

use crate::memory::Atomic;
use crate::request::Remote;

/// What was asked for, and what is needed to answer once more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Deed {
    Read {
        remote: Remote,
        length: u32,
    },
    Atomic {
        remote: Remote,
        atomic: Atomic,
        original: u64,
    },
}

/// A READ or atomic that was carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Resource {
    pub deed: Deed,
    /// The first packet of its response.
    pub first: u64,
    /// Packets of the response.
    pub packets: u32,
    /// The shared receive queue that the request named.
    pub srq: Option<Qpn>,
    /// Messages completed with it (IBTA 9.7.7.1).
    pub msn: Psn,
}

impl Resource {
    pub fn end(&self) -> u64 {
        self.first + u64::from(self.packets)
    }
}

/// A response under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reply {
    pub resource: Resource,
    /// The packet with which it began: the resource's first, or a later one if the requester had
    /// the beginning.
    pub begin: u64,
    /// The packet to send next.
    pub next: u64,
    /// After the last packet to send.
    pub end: u64,
    /// Bytes from `begin` to `end`; 0 for atomics.
    pub length: u32,
    /// It was answered before.
    repeated: bool,
}

/// A responder's memory of READs and atomics. At most `max` resources, and one reply for each.
#[derive(Debug)]
pub(super) struct Resources {
    max: usize,
    /// The newest is last.
    known: VecDeque<Resource>,
    /// In the order of sequence numbers, in which they leave (IBTA 9.7.5.1.1).
    replies: VecDeque<Reply>,
}

impl Resources {
    /// `max`: `max_dest_rd_atomic`.
    pub fn new(max: u8) -> Self {
        Self {
            max: usize::from(max),
            known: VecDeque::new(),
            replies: VecDeque::new(),
        }
    }

    /// Whether one more may come. If not, the requester has more under way than it may, or none
    /// is allowed at all.
    pub fn has_room(&self) -> bool {
        let unanswered = self.replies.iter().filter(|reply| !reply.repeated);
        unanswered.count() < self.max
    }

    /// A new READ or atomic, which is to be answered.
    pub fn add(&mut self, resource: Resource) {
        if self.known.len() >= self.max
            && let Some(old) = self.known.pop_front()
        {
            // Only ever a repetition that nobody waits for: a requester that is owed as many
            // responses as it may have sends no new request.
            self.replies
                .retain(|reply| !(reply.repeated && reply.resource.first == old.first));
        }
        self.known.push_back(resource);
        let length = match resource.deed {
            Deed::Read { length, .. } => length,
            Deed::Atomic { .. } => 0,
        };
        self.replies.push_back(Reply {
            length,
            resource,
            begin: resource.first,
            next: resource.first,
            end: resource.end(),
            repeated: false,
        });
    }

    fn find(&self, index: u64) -> Option<Resource> {
        self.known
            .iter()
            .find(|known| (known.first..known.end()).contains(&index))
            .copied()
    }

    /// A READ that was answered is asked for again, or the rest of it. False if it is none that
    /// we know: then it is dropped (IBTA 9.7.5.1.9).
    pub fn repeat_read(&mut self, index: u64, remote: Remote, length: u32, mtu: Mtu) -> bool {
        let Some(resource) = self.find(index) else {
            return false;
        };
        let Deed::Read {
            remote: asked,
            length: all,
        } = resource.deed
        else {
            return false;
        };
        let offset = (index - resource.first) * mtu.bytes() as u64;
        let rest = u64::from(all).saturating_sub(offset);
        // Less than the rest is whole packets, so that none of them differs from the first time.
        let whole = length > 0 && (length as usize).is_multiple_of(mtu.bytes());
        let length_fits = u64::from(length) == rest || (whole && u64::from(length) < rest);
        let end = index + mtu.packets(u64::from(length));
        let same = remote.rkey == asked.rkey
            && remote.address == asked.address.wrapping_add(offset)
            && length_fits;
        if same {
            self.insert(Reply {
                resource,
                begin: index,
                next: index,
                end,
                length,
                repeated: true,
            });
        }
        same
    }

    /// The same for an atomic, which is answered with the value that it gave.
    pub fn repeat_atomic(&mut self, index: u64, remote: Remote, atomic: Atomic) -> bool {
        let Some(resource) = self.find(index) else {
            return false;
        };
        let same = matches!(resource.deed, Deed::Atomic { remote: r, atomic: a, .. }
            if r == remote && a == atomic);
        if same {
            self.insert(Reply {
                resource,
                begin: index,
                next: index,
                end: index + 1,
                length: 0,
                repeated: true,
            });
        }
        same
    }

    /// Puts a reply where its sequence numbers belong, in place of what was left of an earlier
    /// one to the same request.
    fn insert(&mut self, mut reply: Reply) {
        let place = self
            .replies
            .partition_point(|other| other.resource.first < reply.resource.first);
        match self.replies.get_mut(place) {
            Some(other) if other.resource.first == reply.resource.first => {
                // What has not been answered once is still owed.
                reply.repeated = other.repeated;
                *other = reply;
            }
            _ => self.replies.insert(place, reply),
        }
    }

    /// The response whose turn it is.
    pub fn reply(&self) -> Option<&Reply> {
        self.replies.front()
    }

    /// Its next packet was sent.
    pub fn advance(&mut self) {
        if let Some(reply) = self.replies.front_mut() {
            reply.next += 1;
            if reply.next >= reply.end {
                self.replies.pop_front();
            }
        }
    }

    /// No more responses from this packet on.
    pub fn forget_replies_from(&mut self, index: u64) {
        self.replies.retain(|reply| reply.resource.end() <= index);
    }
}
