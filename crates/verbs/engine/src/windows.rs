//! The windows of a device by the place of their keys, for who takes keys away: invalidations, and
//! queue pairs that end.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use sluice_verbs_model::keys::place;
use sluice_verbs_model::refusal::NakReason;

use crate::locks::{Guard, lock};

/// A window, as far as others take its key away.
pub(crate) trait Window: Send + Sync {
    /// False if that is not its key, or it was not bound by this QP of this domain.
    fn invalidate(&self, rkey: u32, pd: u32, qpn: u32) -> bool;

    /// Unbinds it if this QP has bound it.
    fn invalidate_of(&self, qpn: u32);
}

#[derive(Default)]
pub(crate) struct Windows {
    by_place: Mutex<HashMap<u32, Weak<dyn Window>>>,
}

impl Windows {
    pub fn add(&self, key: u32, window: Weak<dyn Window>) {
        self.lock().insert(place(key), window);
    }

    pub fn remove(&self, key: u32) {
        self.lock().remove(&place(key));
    }

    /// LOCAL_INV and SEND_WITH_INV: takes away a type 2 window's key. Only the QP that bound it may.
    pub fn invalidate(&self, rkey: u32, pd: u32, qpn: u32) -> Result<(), NakReason> {
        let window = self.lock().get(&place(rkey)).and_then(Weak::upgrade);
        match window {
            Some(window) if window.invalidate(rkey, pd, qpn) => Ok(()),
            _ => Err(NakReason::RemoteAccess),
        }
    }

    /// A QP is gone: its type 2 windows open nothing any more (IBTA 10.6.7.2.6).
    pub fn invalidate_all_of(&self, qpn: u32) {
        let windows: Vec<Arc<dyn Window>> =
            self.lock().values().filter_map(Weak::upgrade).collect();
        for window in windows {
            window.invalidate_of(qpn);
        }
    }

    fn lock(&self) -> Guard<'_, HashMap<u32, Weak<dyn Window>>> {
        lock(&self.by_place)
    }
}
