//! Multicast groups: who is in which. Their datagrams go to the queue pair number of all ones (IBTA
//! 10.5), so the address says which group is meant.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, RwLock};

use sluice_packet::Received;

use crate::locks::{Guard, Rank, Ranked, lock, read, write};
use crate::queue_pair::part::Part;

/// Which queue pairs are in which groups.
#[derive(Default)]
pub struct Groups {
    /// Held by whoever joins or leaves, so that the sockets follow the members. In front of a
    /// shard's lock; whoever holds a shard takes only the members'.
    changes: Mutex<()>,
    members: RwLock<HashMap<IpAddr, Vec<Arc<Part>>>>,
}

impl Groups {
    /// Who gets a datagram to a group.
    pub fn members(&self, received: &Received<'_>) -> Vec<Arc<Part>> {
        read(&self.members)
            .get(&received.destination)
            .cloned()
            .unwrap_or_default()
    }

    /// To join or to leave, and to have the sockets follow before somebody else does.
    pub fn change(&self) -> Change<'_> {
        let rank = Rank::Change.wait();
        Change {
            groups: self,
            _alone: lock(&self.changes),
            _rank: rank,
        }
    }
}

/// The groups while nobody else joins or leaves.
pub struct Change<'a> {
    groups: &'a Groups,
    _alone: Guard<'a, ()>,
    _rank: Ranked,
}

impl Change<'_> {
    /// Whether anybody is in a group.
    pub fn has_members(&self, group: IpAddr) -> bool {
        read(&self.groups.members).contains_key(&group)
    }

    /// A queue pair is in a group from now on.
    pub fn add(&self, group: IpAddr, part: &Arc<Part>) {
        let mut groups = write(&self.groups.members);
        let members = groups.entry(group).or_default();
        if !members.iter().any(|member| member.index == part.index) {
            members.push(part.clone());
        }
    }

    /// A queue pair is in such groups no longer. Those that nobody is in now.
    pub fn remove(&self, part: &Part, of: impl Fn(&IpAddr) -> bool) -> Vec<IpAddr> {
        let mut empty = Vec::new();
        write(&self.groups.members).retain(|group, members| {
            if of(group) {
                members.retain(|member| member.index != part.index);
            }
            if members.is_empty() {
                empty.push(*group);
            }
            !members.is_empty()
        });
        empty
    }
}
