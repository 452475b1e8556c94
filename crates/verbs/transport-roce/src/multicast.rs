//! Multicast groups. Their datagrams go to the queue pair number of all ones (IBTA 10.5), so the
//! address says which group is meant.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, RwLock};

use sluice_packet::Received;
use sluice_verbs::{Error, Gid, QpType, Result};

use crate::locks::{lock, unpoisoned};
use crate::part::Part;
use crate::path::{UDP_PORT, address};

/// Which queue pairs are in which groups.
#[derive(Default)]
pub struct Groups {
    /// Held by whoever joins or leaves, so that the sockets follow the members. In front of a
    /// lane's lock; whoever holds a lane takes only the members'.
    changes: Mutex<()>,
    members: RwLock<HashMap<IpAddr, Vec<Arc<Part>>>>,
}

impl Groups {
    /// Datagrams to the group are to come to the queue pair, whichever interface they come by.
    pub fn attach(&self, part: &Arc<Part>, gid: &Gid) -> Result<()> {
        if part.kind != QpType::Ud || !gid.is_multicast() {
            return Err(Error::BadValue);
        }
        let group = address(gid);
        let _changes = lock(&self.changes);
        let has_members = unpoisoned(self.members.read()).contains_key(&group);
        if !has_members {
            join(part, group, true)?;
        }
        let mut groups = unpoisoned(self.members.write());
        let members = groups.entry(group).or_default();
        if !members.iter().any(|member| member.index == part.index) {
            members.push(part.clone());
        }
        Ok(())
    }

    /// No longer.
    pub fn detach(&self, part: &Part, gid: &Gid) {
        let wanted = address(gid);
        self.leave(part, |group| *group == wanted);
    }

    /// Who gets a datagram to a group.
    pub fn members(&self, received: &Received<'_>) -> Vec<Arc<Part>> {
        unpoisoned(self.members.read())
            .get(&received.destination)
            .cloned()
            .unwrap_or_default()
    }

    /// The queue pair is about to be gone.
    pub fn forget(&self, part: &Part) {
        if part.kind == QpType::Ud {
            self.leave(part, |_| true);
        }
    }

    fn leave(&self, part: &Part, of: impl Fn(&IpAddr) -> bool) {
        let _changes = lock(&self.changes);
        let mut empty = Vec::new();
        unpoisoned(self.members.write()).retain(|group, members| {
            if of(group) {
                members.retain(|member| member.index != part.index);
            }
            if members.is_empty() {
                empty.push(*group);
            }
            !members.is_empty()
        });
        for group in empty {
            // An interface that is gone has left its groups.
            let _ = join(part, group, false);
        }
    }
}

/// Joins a group, or leaves it, on all interfaces that have it. It is enough if one has.
fn join(part: &Part, group: IpAddr, join: bool) -> Result<()> {
    let node = &part.node;
    let interfaces = node.network.multicast_interfaces();
    // Of the sockets at one port each that has joined gets a datagram to a group: one is enough.
    let lane = node.first_lane();
    let joined = lane.with_ports(|ports| {
        let port = &ports[UDP_PORT];
        let tried = interfaces
            .iter()
            .map(|interface| port.join(group, *interface, join));
        tried.filter(core::result::Result::is_ok).count()
    });
    // Whoever posted while the lane was held left a note.
    lane.sleeper.wake();
    if joined > 0 {
        Ok(())
    } else {
        Err(Error::NotFound)
    }
}
