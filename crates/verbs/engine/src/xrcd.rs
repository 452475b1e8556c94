//! XRC domains.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};

use sluice_verbs_model::error::{Error, Result};

use crate::domain::Opened;
use crate::locks::{Guard, lock};

/// The domains of a device.
#[derive(Default)]
pub(crate) struct Xrcds(Mutex<Vec<Weak<Xrcd>>>);

impl Xrcds {
    fn lock(&self) -> Guard<'_, Vec<Weak<Xrcd>>> {
        lock(&self.0)
    }
}

/// An XRC domain: the SRQs that messages to its target QPs may name.
pub struct Xrcd {
    all: Arc<Xrcds>,
    /// Keeps the device.
    _opened: Arc<Opened>,
    id: u32,
    pub(crate) inode: Option<(u64, u64)>,
    /// How often it was opened and not closed.
    opened: AtomicU32,
    /// QPs and SRQs.
    pub(crate) users: AtomicU32,
}

impl Xrcd {
    pub(crate) fn open(
        all: &Arc<Xrcds>,
        opened: &Arc<Opened>,
        inode: Option<(u64, u64)>,
        create: bool,
        exclusive: bool,
    ) -> Result<Arc<Xrcd>> {
        let mut known = all.lock();
        known.retain(|xrcd| xrcd.strong_count() > 0);
        let same = inode.and_then(|inode| {
            let open = known.iter().filter_map(Weak::upgrade);
            open.filter(|xrcd| xrcd.opened.load(Ordering::Acquire) > 0)
                .find(|xrcd| xrcd.inode == Some(inode))
        });
        match same {
            Some(_) if exclusive => Err(Error::BadValue),
            Some(xrcd) => {
                xrcd.opened.fetch_add(1, Ordering::AcqRel);
                Ok(xrcd)
            }
            // A domain without a file is new, whatever the flags; with one it must be wished.
            None if inode.is_some() && !create => Err(Error::NotFound),
            None => {
                let xrcd = Arc::new(Xrcd {
                    all: all.clone(),
                    _opened: opened.clone(),
                    id: opened.adapter.next_id(),
                    inode,
                    opened: AtomicU32::new(1),
                    users: AtomicU32::new(0),
                });
                known.push(Arc::downgrade(&xrcd));
                Ok(xrcd)
            }
        }
    }

    pub fn id(&self) -> u32 {
        self.id
    }

    /// EBUSY while QPs or SRQs use it; a domain that was opened several times is closed as often.
    pub fn destroy(&self) -> Result<()> {
        let _known = self.all.lock();
        match self.opened.load(Ordering::Acquire) {
            0 => Ok(()),
            1 if self.users.load(Ordering::Acquire) != 0 => Err(Error::Busy),
            _ => {
                self.opened.fetch_sub(1, Ordering::AcqRel);
                Ok(())
            }
        }
    }
}
