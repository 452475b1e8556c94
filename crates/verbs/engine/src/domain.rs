//! What objects know of the context and of the protection domain that they were made in.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use sluice_verbs_model::error::{Error, Result};

use crate::adapter::Adapter;
use crate::events::AsyncQueue;

/// An opened device, for what was made with it.
pub(crate) struct Opened {
    pub adapter: Arc<Adapter>,
    pub async_queue: AsyncQueue,
}

impl Opened {
    pub fn new(adapter: &Arc<Adapter>) -> Result<Arc<Opened>> {
        let async_queue = AsyncQueue::new()?;
        adapter.contexts.fetch_add(1, Ordering::Relaxed);
        Ok(Arc::new(Opened {
            adapter: adapter.clone(),
            async_queue,
        }))
    }
}

/// With the last of what was made with it.
impl Drop for Opened {
    fn drop(&mut self) {
        self.adapter.contexts.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A protection domain, for what was made in it.
pub(crate) struct Domain {
    pub opened: Arc<Opened>,
    /// Never 0, and not used again in this process.
    pub id: u32,
    users: AtomicU32,
}

impl Domain {
    pub fn new(opened: &Arc<Opened>) -> Arc<Domain> {
        Arc::new(Domain {
            opened: opened.clone(),
            id: opened.adapter.next_id(),
            users: AtomicU32::new(0),
        })
    }

    #[inline]
    pub fn adapter(&self) -> &Adapter {
        &self.opened.adapter
    }

    pub fn add_user(&self) {
        self.users.fetch_add(1, Ordering::AcqRel);
    }

    pub fn drop_user(&self) {
        self.users.fetch_sub(1, Ordering::AcqRel);
    }

    /// EBUSY while anything was made in it and not destroyed.
    pub fn check_unused(&self) -> Result<()> {
        match self.users.load(Ordering::Acquire) {
            0 => Ok(()),
            _ => Err(Error::Busy),
        }
    }
}
