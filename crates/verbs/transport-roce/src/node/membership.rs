//! Joining and leaving multicast groups: the members, and the sockets that follow them.

use std::net::IpAddr;
use std::sync::Arc;

use sluice_verbs::{Error, Gid, QpType, Result};

use crate::node::Node;
use crate::queue_pair::part::Part;

/// Datagrams to the group are to come to the queue pair, whichever interface they come by.
pub fn attach(node: &Node, part: &Arc<Part>, gid: &Gid) -> Result<()> {
    if part.kind != QpType::Ud || !gid.is_multicast() {
        return Err(Error::BadValue);
    }
    let group = gid.address();
    let change = node.common().groups.change();
    if !change.has_members(group) {
        join(node, group, true)?;
    }
    change.add(group, part);
    Ok(())
}

/// No longer.
pub fn detach(node: &Node, part: &Part, gid: &Gid) {
    let wanted = gid.address();
    leave(node, part, |group| *group == wanted);
}

/// The queue pair is about to be gone.
pub fn forget(node: &Node, part: &Part) {
    if part.kind == QpType::Ud {
        leave(node, part, |_| true);
    }
}

fn leave(node: &Node, part: &Part, of: impl Fn(&IpAddr) -> bool) {
    let change = node.common().groups.change();
    for group in change.remove(part, of) {
        // An interface that is gone has left its groups.
        let _ = join(node, group, false);
    }
}

/// Joins a group, or leaves it, on all interfaces that have it. It is enough if one has.
fn join(node: &Node, group: IpAddr, join: bool) -> Result<()> {
    match node.common().network.join(group, join) {
        true => Ok(()),
        false => Err(Error::NotFound),
    }
}
