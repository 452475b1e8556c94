//! Multicast groups. Their datagrams go to the queue pair number of all ones (IBTA 10.5), so the
//! address says which group is meant.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, RwLock};

use sluice_packet::Received;
use sluice_verbs::{Error, Gid, QpType, Result};

use crate::node::unpoisoned;
use crate::part::Part;
use crate::path::{UDP_PORT, address};

/// Which queue pairs are in which groups.
#[derive(Default)]
pub struct Groups(RwLock<HashMap<IpAddr, Vec<Arc<Part>>>>);

impl Groups {
    /// Datagrams to the group are to come to the queue pair, whichever interface they come by.
    pub fn attach(&self, part: &Arc<Part>, gid: &Gid) -> Result<()> {
        if part.kind != QpType::Ud || !gid.is_multicast() {
            return Err(Error::BadValue);
        }
        let group = address(gid);
        let mut groups = unpoisoned(self.0.write());
        let members = groups.entry(group).or_default();
        if members.is_empty() {
            join(part, group, true)?;
        }
        if !members.iter().any(|member| member.index == part.index) {
            members.push(part.clone());
        }
        Ok(())
    }

    /// No longer.
    pub fn detach(&self, part: &Part, gid: &Gid) {
        let group = address(gid);
        let mut groups = unpoisoned(self.0.write());
        let Some(members) = groups.get_mut(&group) else {
            return;
        };
        members.retain(|member| member.index != part.index);
        if members.is_empty() {
            groups.remove(&group);
            // An interface that is gone has left its groups.
            let _ = join(part, group, false);
        }
    }

    /// Who gets a datagram to a group.
    pub fn members(&self, received: &Received<'_>) -> Vec<Arc<Part>> {
        unpoisoned(self.0.read())
            .get(&received.destination)
            .cloned()
            .unwrap_or_default()
    }

    /// The queue pair is about to be gone.
    pub fn forget(&self, part: &Part) {
        unpoisoned(self.0.write()).retain(|_, members| {
            members.retain(|member| member.index != part.index);
            !members.is_empty()
        });
    }
}

/// Joins a group, or leaves it, on all interfaces that have it. It is enough if one has.
fn join(part: &Part, group: IpAddr, join: bool) -> Result<()> {
    let node = &part.node;
    let interfaces = node.network.multicast_interfaces();
    let joined = node.lane.with_ports(|ports| {
        let port = &ports[UDP_PORT];
        let tried = interfaces
            .iter()
            .map(|interface| port.join(group, *interface, join));
        tried.filter(core::result::Result::is_ok).count()
    });
    if joined > 0 {
        Ok(())
    } else {
        Err(Error::NotFound)
    }
}
