//! The process at the other end of a link.
#![allow(unsafe_code)]

use std::sync::{Mutex, OnceLock};

use sluice_shmem::mapping::{Access, Mapping};
use sluice_shmem::verbs::directory::{DIRECTORY_BYTES, Directory, Rung};
use sluice_sys::errno::Errno;
use sluice_sys::unix::{self, Fd};

use crate::area::{File, file_of, map_foreign};
use crate::foreign::Foreign;
use crate::hello::{Identity, MESSAGE_BYTES, Message};
use crate::os;
use sluice_verbs::locks::lock;

/// Regions of a peer that a link can know.
const REGIONS: usize = 1024;
/// Largest region that is accepted from a peer, bytes.
const REGION_BYTES_MAX: u64 = 1 << 40;

/// What a process has of its peer, whichever side.
#[derive(Debug)]
pub struct Peer {
    pub directory: Directory,
    _directory_mapping: Mapping,
    /// As the kernel says; 0 where it is not seen in this pid namespace.
    pub pid: i32,
    /// Its memory, where the kernel lets us reach it.
    pub memory: Option<Foreign>,
    /// The memory of its directory, which tells processes apart. What lies in our own directory
    /// is what we have published, whoever passes it; a peer that repeats our nonce is still a peer.
    pub file: File,
    /// It is this very process: its memory is our own.
    pub same_process: bool,
    /// Whether it said that it can read ours.
    pub can_read_us: bool,
    /// The peer's thread waits on it.
    bell: Fd,
    rung: Rung,
    regions: Box<[OnceLock<Mapping>]>,
    /// Held from taking a message out of the socket to the end of its effect, so that who finds
    /// the socket empty finds the effect.
    reading: Mutex<()>,
}

impl Peer {
    /// `own` is the memory of our own directory.
    pub fn new(
        own: File,
        directory_fd: &Fd,
        bell: Fd,
        pid: i32,
        identity: &Identity,
    ) -> Result<Self, Errno> {
        os::check_bell(bell.raw())?;
        let mapping = map_foreign(directory_fd.raw(), DIRECTORY_BYTES, Access::ReadOnly)?;
        // SAFETY: the mapping is kept beside it.
        let directory = unsafe { Directory::from_raw(mapping.base()) };
        let file = file_of(directory_fd)?;
        Ok(Self {
            directory,
            _directory_mapping: mapping,
            pid,
            memory: Foreign::probe(pid, identity.probe, identity.nonce),
            file,
            same_process: file == own,
            can_read_us: identity.can_read,
            bell,
            rung: Rung::default(),
            regions: (0..REGIONS).map(|_| OnceLock::new()).collect(),
            reading: Mutex::new(()),
        })
    }

    /// Wakes the peer's thread if it sleeps. Call it after whatever the peer is to see.
    pub fn ring_if_asleep(&self) {
        if self.directory.must_ring(&self.rung) {
            os::ring_foreign(self.bell.raw());
        }
    }

    /// Whether its queue pair `peer_qpn` is in place and connected to ours, or was going to be.
    pub fn has_connected(&self, own_qpn: u32, peer_qpn: u32) -> bool {
        let slot = self.directory.qp_slot(peer_qpn);
        let entry = slot.and_then(|slot| self.directory.qp(slot));
        entry.is_some_and(|entry| {
            entry.qpn == peer_qpn && (entry.peer_qpn == own_qpn || entry.peer_qpn == 0)
        })
    }

    /// The region `id`, mapped for writing.
    pub fn region(&self, id: u32) -> Option<&Mapping> {
        self.regions.get(id as usize)?.get()
    }

    fn add_region(&self, id: u32, bytes: u64, fd: &Fd) -> Result<(), Errno> {
        let place = self.regions.get(id as usize).ok_or(Errno::PROTO)?;
        if bytes == 0 || bytes > REGION_BYTES_MAX || place.get().is_some() {
            return Err(Errno::PROTO);
        }
        let bytes = usize::try_from(bytes).map_err(|_| Errno::PROTO)?;
        let mapping = map_foreign(fd.raw(), bytes, Access::ReadWrite)?;
        let _ = place.set(mapping);
        Ok(())
    }

    /// Takes what waits in the link's socket: regions. False when the link is over.
    pub fn read_socket(&self, socket: i32) -> bool {
        let _reading = lock(&self.reading);
        let mut buffer = [0; MESSAGE_BYTES];
        // A bound on what one call does; the rest stays readable.
        for _ in 0..REGIONS {
            match unix::receive_with_fds(socket, &mut buffer) {
                Err(Errno::AGAIN) => return true,
                Err(_) => return false,
                Ok(received) if received.len == 0 => return false,
                Ok(mut received) => match Message::decode(&buffer[..received.len]) {
                    Some(Message::Region { id, bytes }) => match received.take_fd(0) {
                        Some(fd) if self.add_region(id, bytes, &fd).is_ok() => {}
                        _ => return false,
                    },
                    _ => return false,
                },
            }
        }
        true
    }
}
