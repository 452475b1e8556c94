//! A datagram that is kept back, to come late ([`sluice_transport::fault`]).

use sluice_shmem::verbs::record::Header;
use sluice_verbs::Gid;

use crate::wire::Datagram;

pub struct Kept {
    pub header: Header,
    pub head: [u8; Datagram::BYTES],
    pub data: Vec<u8>,
    /// To this group, or to the queue pair that the header names.
    pub group: Option<Gid>,
}
