//! Multicast groups: a directory per group beside the sockets, with a file per member block.
//!
//! A file of a process that has ended leads to a block that nobody listens on, and is taken
//! away by the first sender that notices.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use sluice_shmem::verbs::directory::BLOCK_QPS;
use sluice_verbs::{Error, Gid, Result};

use crate::connect;
use crate::lock::lock;
use crate::node::Node;
use crate::part::Part;
use crate::route::Route;

/// Members of one group that a message goes to at most.
const MEMBERS_MAX: usize = 1024;

/// Which queue pairs of this process are in which groups, by their place.
#[derive(Default)]
pub struct Groups(Mutex<HashMap<Gid, Vec<u32>>>);

fn directory(node: &Node, gid: &Gid) -> PathBuf {
    let mut name = String::from("group-");
    for byte in gid.0 {
        // Writing to a string cannot fail.
        let _ = write!(name, "{byte:02x}");
    }
    node.rendezvous.path().join(name)
}

/// Messages to the group are to come to the queue pair.
pub fn attach(node: &Node, part: &Part, gid: &Gid) -> Result<()> {
    let mut groups = lock(&node.groups.0);
    let path = directory(node, gid);
    let made = fs::create_dir(&path).or_else(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => Ok(()),
        _ => Err(error),
    });
    let block = part.qpn / BLOCK_QPS as u32;
    made.and_then(|()| fs::write(path.join(block.to_string()), b""))
        .map_err(|_| Error::NoResources)?;
    let members = groups.entry(*gid).or_default();
    if !members.contains(&part.slot) {
        members.push(part.slot);
    }
    Ok(())
}

pub fn detach(node: &Node, part: &Part, gid: &Gid) {
    let mut groups = lock(&node.groups.0);
    let Some(members) = groups.get_mut(gid) else {
        return;
    };
    members.retain(|slot| *slot != part.slot);
    let block = part.slot / BLOCK_QPS as u32;
    if !members.iter().any(|slot| slot / BLOCK_QPS as u32 == block) {
        let path = directory(node, gid);
        let _ = fs::remove_file(path.join((part.qpn / BLOCK_QPS as u32).to_string()));
        // Fails while there are other members.
        let _ = fs::remove_dir(path);
    }
    if members.is_empty() {
        groups.remove(gid);
    }
}

/// The queue pairs of this process in a group.
pub fn attached(node: &Node, gid: &Gid) -> Vec<Arc<Part>> {
    let slots = lock(&node.groups.0).get(gid).cloned().unwrap_or_default();
    slots
        .into_iter()
        .filter_map(|slot| node.part(slot))
        .collect()
}

/// A way to each process with members. One that has no link yet misses the message.
pub fn members(node: &Node, gid: &Gid) -> Vec<Arc<Route>> {
    let path = directory(node, gid);
    let Ok(entries) = fs::read_dir(&path) else {
        return Vec::new();
    };
    let mut routes: Vec<Arc<Route>> = Vec::new();
    for entry in entries.flatten().take(MEMBERS_MAX) {
        let Some(block) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse::<u32>().ok())
            .filter(|block| *block <= sluice_rendezvous::BLOCK_MAX)
        else {
            continue;
        };
        match connect::to(node, block * BLOCK_QPS as u32) {
            Ok(route) if !routes.iter().any(|known| Arc::ptr_eq(known, &route)) => {
                routes.push(route);
            }
            Ok(_) => {}
            Err(_) => {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
    routes
}
