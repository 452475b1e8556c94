//! Memory regions.

use std::sync::{Arc, Mutex};

use sluice_verbs_model::error::{Error, Result};
use sluice_verbs_model::keys::KeyInfo;
use sluice_verbs_model::types::{access, rereg};

use crate::domain::Domain;
use crate::keys::KeyTable;
use crate::locks::{Guard, lock};
use crate::memory;

/// A registered range of the process's memory.
pub struct Mr {
    domain: Arc<Domain>,
    state: Mutex<State>,
}

struct State {
    info: KeyInfo,
    /// Where `rereg` moved it, if it did.
    moved_to: Option<Arc<Domain>>,
    windows: u32,
    registered: bool,
    /// The keys open something: always, but for a region that [`Mr::rereg`] has broken.
    open: bool,
}

const KNOWN: u32 = access::LOCAL_WRITE
    | access::REMOTE_ANY
    | access::MW_BIND
    | access::ZERO_BASED
    | access::ON_DEMAND
    | access::HUGETLB
    | access::OPTIONAL;

/// What a registration's flags must fulfil (IBTA 10.6.3.1, ibv_reg_mr(3)).
fn check_access(flags: u32) -> Result<()> {
    let remote_change = flags & (access::REMOTE_WRITE | access::REMOTE_ATOMIC) != 0;
    if flags & !KNOWN != 0 || (remote_change && flags & access::LOCAL_WRITE == 0) {
        return Err(Error::BadRegion);
    }
    Ok(())
}

/// Bytes that are there, for what the flags allow. Nothing is pinned, but the pages are brought in
/// at once unless they are to come on demand.
fn check_range(addr: u64, len: u64, iova: u64, flags: u32) -> Result<()> {
    let whole = addr.checked_add(len).and(iova.checked_add(len));
    // A region of no bytes can be nobody's target, and it holds no pages.
    let empty = len == 0;
    if whole.is_none() || (empty && flags & access::REMOTE_ANY != 0) {
        return Err(Error::BadRegion);
    }
    if empty {
        return Ok(());
    }
    let write = flags & access::LOCAL_WRITE != 0;
    if flags & access::ON_DEMAND != 0 {
        return memory::is_there(addr, len, write);
    }
    memory::populate(addr, len, write)
}

impl Mr {
    pub(crate) fn register(
        domain: &Arc<Domain>,
        addr: u64,
        len: u64,
        iova: u64,
        access: u32,
    ) -> Result<Arc<Mr>> {
        check_access(access)?;
        let zero_based = access & access::ZERO_BASED != 0;
        let iova = if zero_based { 0 } else { iova };
        check_range(addr, len, iova, access)?;
        let info = KeyInfo {
            pd: domain.id,
            iova,
            len,
            host: addr,
            access,
            ..KeyInfo::default()
        };
        let info = with_new_key(domain, info)?;
        domain.add_user();
        Ok(Arc::new(Mr {
            domain: domain.clone(),
            state: Mutex::new(State {
                info,
                moved_to: None,
                windows: 0,
                registered: true,
                open: true,
            }),
        }))
    }

    pub fn lkey(&self) -> u32 {
        self.lock().info.key
    }

    pub fn rkey(&self) -> u32 {
        self.lock().info.key
    }

    /// Address in this process.
    pub fn addr(&self) -> u64 {
        self.lock().info.host
    }

    /// Bytes.
    pub fn len(&self) -> u64 {
        self.lock().info.len
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn info(&self) -> KeyInfo {
        self.lock().info
    }

    /// `Mr::rereg` with the domain in place of the `Pd` that stands for it.
    pub(crate) fn rereg_in(
        &self,
        flags: u32,
        domain: Option<&Arc<Domain>>,
        addr: u64,
        len: u64,
        access: u32,
    ) -> Result<()> {
        let known = rereg::TRANSLATION | rereg::PD | rereg::ACCESS;
        if flags == 0 || flags & !known != 0 {
            return Err(Error::BadValue);
        }
        let mut state = self.lock();
        if state.windows != 0 {
            return Err(Error::Busy);
        }
        if !state.registered || !state.open {
            return Err(Error::WrongObject);
        }
        let mut info = state.info;
        if flags & rereg::ACCESS != 0 {
            check_access(access)?;
            info.access = access;
        }
        if flags & rereg::TRANSLATION != 0 {
            info.host = addr;
            info.len = len;
            info.iova = addr;
        }
        if info.access & access::ZERO_BASED != 0 {
            info.iova = 0;
        }
        let new_domain = match (flags & rereg::PD != 0, domain) {
            (true, None) => return Err(Error::WrongObject),
            (true, Some(domain)) if !Arc::ptr_eq(&domain.opened, &self.domain.opened) => {
                return Err(Error::WrongObject);
            }
            (true, Some(domain)) => {
                info.pd = domain.id;
                Some(domain)
            }
            (false, _) => None,
        };
        check_range(info.host, info.len, info.iova, info.access)?;
        close(&self.domain, &state.info);
        if let Err(error) = open(&self.domain, &info) {
            state.open = open(&self.domain, &state.info).is_ok();
            return Err(error);
        }
        state.info = info;
        if let Some(domain) = new_domain {
            domain.add_user();
            let left = state.moved_to.replace(domain.clone());
            left.as_ref().unwrap_or(&self.domain).drop_user();
        }
        Ok(())
    }

    /// False after a [`Mr::rereg`] that failed and could not undo what it had done: the keys
    /// open nothing, and all that is left to do is [`Mr::destroy`].
    pub fn is_open(&self) -> bool {
        self.lock().open
    }

    /// `ibv_dereg_mr`. EBUSY while windows are bound to it. Waits for transfers that are under
    /// way in this memory; afterwards nobody reaches it by its keys.
    pub fn destroy(&self) -> Result<()> {
        let mut state = self.lock();
        if !state.registered {
            return Ok(());
        }
        if state.windows != 0 {
            return Err(Error::Busy);
        }
        state.registered = false;
        if state.open {
            close(&self.domain, &state.info);
        }
        self.domain.adapter().keys.release(state.info.key);
        state.moved_to.as_ref().unwrap_or(&self.domain).drop_user();
        Ok(())
    }

    /// Counts a window that is to be bound to the region, and says what there is to bind to.
    pub(crate) fn add_window(&self) -> Option<KeyInfo> {
        let mut state = self.lock();
        if !state.registered || !state.open || state.info.access & access::MW_BIND == 0 {
            return None;
        }
        state.windows += 1;
        Some(state.info)
    }

    pub(crate) fn drop_window(&self) {
        let mut state = self.lock();
        state.windows = state.windows.saturating_sub(1);
    }

    fn lock(&self) -> Guard<'_, State> {
        lock(&self.state)
    }
}

/// A region that was never deregistered must not stay open behind memory that may be reused.
impl Drop for Mr {
    fn drop(&mut self) {
        let _ = self.destroy();
    }
}

/// Registers with a key of its own.
fn with_new_key(domain: &Domain, mut info: KeyInfo) -> Result<KeyInfo> {
    let keys = &domain.adapter().keys;
    info.key = keys.reserve()?;
    info.slot = KeyTable::slot_number(info.key);
    if let Err(error) = open(domain, &info) {
        keys.release(info.key);
        return Err(error);
    }
    Ok(info)
}

/// Makes a key open its region. Peers learn of it only if they have a right.
fn open(domain: &Domain, info: &KeyInfo) -> Result<()> {
    let adapter = domain.adapter();
    adapter.keys.publish(info);
    if info.access & access::REMOTE_ANY != 0
        && let Err(error) = adapter.medium.key_published(info)
    {
        adapter.keys.withdraw(info.key);
        return Err(error);
    }
    Ok(())
}

/// Makes a key open nothing; it stays the region's. Waits for transfers that use it.
fn close(domain: &Domain, info: &KeyInfo) {
    let adapter = domain.adapter();
    adapter.keys.withdraw(info.key);
    if info.access & access::REMOTE_ANY != 0 {
        adapter.medium.key_withdrawn(info);
    }
}
