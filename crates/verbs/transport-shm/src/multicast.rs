//! Multicast groups: a directory per group beside the sockets, with a file per member block.
//!
//! A file of a process that has ended leads to a block that nobody listens on, and is taken
//! away by the first sender that notices.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::Mutex;

use sluice_rendezvous::{BLOCK_MAX, Rendezvous};
use sluice_shmem::verbs::directory::BLOCK_QPS;
use sluice_verbs::{Error, Gid, Result};

use sluice_verbs::locks::lock;

/// Members of one group that a message goes to at most.
const MEMBERS_MAX: usize = 1024;

/// Which queue pairs of this process are in which groups, by their place.
#[derive(Default)]
pub struct Groups(Mutex<HashMap<Gid, Vec<u32>>>);

impl Groups {
    /// Messages to the group are to come to the queue pair `qpn`, whose place is `slot`.
    pub fn attach(&self, rendezvous: &Rendezvous, gid: &Gid, qpn: u32, slot: u32) -> Result<()> {
        let mut groups = lock(&self.0);
        let path = directory(rendezvous, gid);
        let made = fs::create_dir(&path).or_else(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => Ok(()),
            _ => Err(error),
        });
        let block = qpn / BLOCK_QPS as u32;
        made.and_then(|()| fs::write(path.join(block.to_string()), b""))
            .map_err(|_| Error::NoResources)?;
        let members = groups.entry(*gid).or_default();
        if !members.contains(&slot) {
            members.push(slot);
        }
        Ok(())
    }

    /// No longer.
    pub fn detach(&self, rendezvous: &Rendezvous, gid: &Gid, qpn: u32, slot: u32) {
        let mut groups = lock(&self.0);
        let Some(members) = groups.get_mut(gid) else {
            return;
        };
        members.retain(|other| *other != slot);
        let block = slot / BLOCK_QPS as u32;
        if !members.iter().any(|slot| slot / BLOCK_QPS as u32 == block) {
            let path = directory(rendezvous, gid);
            let _ = fs::remove_file(path.join((qpn / BLOCK_QPS as u32).to_string()));
            // Fails while there are other members.
            let _ = fs::remove_dir(path);
        }
        if members.is_empty() {
            groups.remove(gid);
        }
    }

    /// The queue pairs of this process in a group.
    pub fn attached(&self, gid: &Gid) -> Vec<u32> {
        lock(&self.0).get(gid).cloned().unwrap_or_default()
    }
}

/// A block of numbers with members of a group.
pub struct Member {
    pub block: u32,
    file: PathBuf,
}

impl Member {
    /// Nobody has the block any more.
    pub fn forget(&self) {
        let _ = fs::remove_file(&self.file);
    }
}

/// The members of a group, of all processes.
pub fn members(rendezvous: &Rendezvous, gid: &Gid) -> impl Iterator<Item = Member> {
    let entries = fs::read_dir(directory(rendezvous, gid)).into_iter();
    entries
        .flatten()
        .flatten()
        .take(MEMBERS_MAX)
        .filter_map(|entry| {
            let name = entry.file_name();
            let block = name.to_str()?.parse::<u32>().ok()?;
            (block <= BLOCK_MAX).then(|| Member {
                block,
                file: entry.path(),
            })
        })
}

fn directory(rendezvous: &Rendezvous, gid: &Gid) -> PathBuf {
    let mut name = String::from("group-");
    for byte in gid.0 {
        // Writing to a string cannot fail.
        let _ = write!(name, "{byte:02x}");
    }
    rendezvous.path().join(name)
}
