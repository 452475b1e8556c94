//! What all objects of a device share: the keys, the addresses, the numbers, and the transport as
//! far as it knows no object.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, RwLock};

use sluice_verbs_model::error::{Error, Result};
use sluice_verbs_model::gids::{GIDS_MAX, GidEntry, NO_ROCE, ROCE_V2, link_local, merge, needed};
use sluice_verbs_model::keys::KeyInfo;
use sluice_verbs_model::limits::CQS_MAX;
use sluice_verbs_model::transport::TransportCaps;
use sluice_verbs_model::types::AhAttr;

use crate::gids::host;
use crate::keys::KeyTable;
use crate::locks::{lock, read, write};
use crate::moderator::Moderator;
use crate::report::Census;
use crate::windows::Windows;

/// The transport, for objects that are below it: `crate::Transport` has the meaning of each call.
pub(crate) trait Medium: Send + Sync {
    fn caps(&self) -> TransportCaps;
    fn key_published(&self, key: &KeyInfo) -> Result<()>;
    fn key_withdrawn(&self, key: &KeyInfo);
    fn destroy_srq(&self, srqn: u32);
}

pub(crate) struct Adapter {
    guid: [u8; 8],
    pub medium: Box<dyn Medium>,
    gids: RwLock<Arc<[GidEntry]>>,
    pub keys: KeyTable,
    pub windows: Windows,
    pub cq_ids: Ids,
    pub moderator: Moderator,
    ids: AtomicU32,
    pub census: Census,
    /// How often the device is open.
    pub contexts: AtomicUsize,
}

/// Small numbers, the lowest free one first.
pub(crate) struct Ids {
    taken: Mutex<Vec<bool>>,
    max: u32,
}

impl Ids {
    fn new(max: u32) -> Ids {
        Ids {
            taken: Mutex::default(),
            max,
        }
    }

    pub fn take(&self) -> Result<u32> {
        let mut taken = lock(&self.taken);
        if let Some(free) = taken.iter().position(|taken| !taken) {
            taken[free] = true;
            return Ok(free as u32);
        }
        if taken.len() >= self.max as usize {
            return Err(Error::NoResources);
        }
        taken.push(true);
        Ok(taken.len() as u32 - 1)
    }

    pub fn give_back(&self, id: u32) {
        let mut taken = lock(&self.taken);
        if let Some(place) = taken.get_mut(id as usize) {
            *place = false;
        }
    }
}

impl Adapter {
    pub fn new(guid: [u8; 8], medium: Box<dyn Medium>) -> Arc<Adapter> {
        let adapter = Adapter {
            guid,
            medium,
            gids: RwLock::new(Arc::new([])),
            keys: KeyTable::new(),
            windows: Windows::default(),
            cq_ids: Ids::new(CQS_MAX),
            moderator: Moderator::default(),
            ids: AtomicU32::new(1),
            census: Census::default(),
            contexts: AtomicUsize::new(0),
        };
        adapter.refresh_gids();
        Arc::new(adapter)
    }

    /// Network byte order.
    pub fn guid(&self) -> u64 {
        u64::from_ne_bytes(self.guid)
    }

    /// The addresses at the time of the last `open` or `refresh_gids`. Zero entries
    /// are free ones.
    pub fn gid_table(&self) -> Arc<[GidEntry]> {
        let gids = read(&self.gids);
        gids.clone()
    }

    /// `NotFound` for an index beyond the port's `gid_tbl_len`; a free entry is all zeros, as in
    /// the kernel's tables.
    pub fn gid(&self, port: u8, index: u32) -> Result<GidEntry> {
        check_port(port)?;
        if index as usize >= GIDS_MAX {
            return Err(Error::NotFound);
        }
        let table = self.gid_table();
        Ok(table.get(index as usize).copied().unwrap_or_default())
    }

    /// Reads the host's addresses again. Entries keep their index while their address exists;
    /// an address that is gone leaves a zero entry. Says whether anything changed.
    pub fn refresh_gids(&self) -> bool {
        let [a, b, c, _, _, d, e, f] = self.guid;
        let caps = self.medium.caps();
        let gid_type = match caps.identity.has_roce_gids() {
            true => ROCE_V2,
            false => NO_ROCE,
        };
        let own = GidEntry {
            // The GUID is an EUI-64 already: undo the flipped bit to flip it again.
            gid: link_local([a ^ 2, b, c, d, e, f]),
            gid_type,
            ndev_ifindex: 0,
        };
        let typed = |entry: GidEntry| GidEntry { gid_type, ..entry };
        let addresses: Vec<GidEntry> = host().into_iter().map(typed).collect();
        let mut gids = write(&self.gids);
        let own = needed(own, caps.by_address, &addresses);
        let table = merge(&gids, own, &addresses);
        let changed = **gids != *table;
        if changed {
            *gids = table.into();
        }
        changed
    }

    /// A number that is not used again in this process (2³² objects).
    pub fn next_id(&self) -> u32 {
        self.ids.fetch_add(1, Ordering::Relaxed)
    }

    /// Looks at an address vector. An Ethernet port needs a global route (IBTA annex A17.4.2) where
    /// peers are on a network. Within a host the number alone finds them, so there it is not insisted
    /// on: programs that send by LID work.
    pub fn check_address(&self, attr: &AhAttr) -> Result<()> {
        check_port(attr.port_num).map_err(|_| Error::BadValue)?;
        if attr.is_global == 0 && self.medium.caps().by_address {
            return Err(Error::BadValue);
        }
        if attr.is_global != 0 {
            let own = self.gid(1, u32::from(attr.grh.sgid_index))?;
            if own.gid.is_zero() || attr.grh.dgid.is_zero() {
                return Err(Error::NotFound);
            }
        }
        Ok(())
    }
}

/// Ports count from 1; there is one.
pub(crate) fn check_port(port: u8) -> Result<()> {
    match port {
        1 => Ok(()),
        _ => Err(Error::NotFound),
    }
}
