//! Memory windows (IBTA 10.6.7).

use std::sync::{Arc, Mutex};

use sluice_verbs_model::error::{Error, Result};
use sluice_verbs_model::keys::{KeyInfo, WINDOW};
use sluice_verbs_model::types::{MwType, WcStatus, access};

use crate::domain::Domain;
use crate::keys::KeyTable;
use crate::locks::{Guard, lock};
use crate::mr::Mr;
use crate::windows::Window;

/// What a window is to cover (`ibv_mw_bind_info`, and the new key of a type 2 window).
#[derive(Clone, Copy)]
pub struct MwBind<'a> {
    pub mw: &'a Arc<Mw>,
    /// Type 2: the window's key, with the low byte that the program chose. Type 1: what
    /// [`Mw::next_rkey`] said.
    pub rkey: u32,
    pub mr: Option<&'a Arc<Mr>>,
    pub addr: u64,
    /// Bytes; 0 takes a type 1 window off its region.
    pub length: u64,
    pub access: u32,
}

/// A window on a region, with a key of its own.
pub struct Mw {
    domain: Arc<Domain>,
    mw_type: MwType,
    state: Mutex<State>,
}

struct State {
    key: u32,
    bound: Option<(Arc<Mr>, KeyInfo)>,
    allocated: bool,
}

/// The same place, another low byte.
const fn next(key: u32) -> u32 {
    (key & !0xff) | (key.wrapping_add(1) & 0xff)
}

impl Mw {
    pub(crate) fn new(domain: &Arc<Domain>, mw_type: MwType) -> Result<Arc<Mw>> {
        let key = domain.adapter().keys.reserve()?;
        domain.add_user();
        let mw = Arc::new(Mw {
            domain: domain.clone(),
            mw_type,
            state: Mutex::new(State {
                key,
                bound: None,
                allocated: true,
            }),
        });
        let window: Arc<dyn Window> = mw.clone();
        domain.adapter().windows.add(key, Arc::downgrade(&window));
        Ok(mw)
    }

    pub fn mw_type(&self) -> MwType {
        self.mw_type
    }

    /// The current key.
    pub fn rkey(&self) -> u32 {
        self.lock().key
    }

    /// The key that the next binding of a type 1 window is to have (`MwBind::rkey`).
    pub fn next_rkey(&self) -> u32 {
        next(self.lock().key)
    }

    /// Unbinds and frees it.
    pub fn destroy(&self) -> Result<()> {
        let mut state = self.lock();
        if !core::mem::replace(&mut state.allocated, false) {
            return Ok(());
        }
        let adapter = self.domain.adapter();
        self.unbind(&mut state);
        adapter.windows.remove(state.key);
        adapter.keys.release(state.key);
        self.domain.drop_user();
        Ok(())
    }

    /// Carries a binding out, in its turn in the send queue of QP `qpn` in domain `pd`. What is
    /// wrong with it is the request's completion status.
    pub(crate) fn bind(&self, bind: &MwBind<'_>, pd: u32, qpn: u32) -> WcStatus {
        let mut state = self.lock();
        let same_place = bind.rkey >> 8 == state.key >> 8;
        // A type 2 window must be invalidated before it is bound again (IBTA 10.6.7.2.4).
        let still_bound = self.mw_type == MwType::Type2 && state.bound.is_some();
        if !state.allocated || self.domain.id != pd || !same_place || still_bound {
            return WcStatus::MwBindErr;
        }
        if bind.length == 0 {
            self.unbind(&mut state);
            state.key = bind.rkey;
            return WcStatus::Success;
        }
        let Some(mr) = bind.mr else {
            return WcStatus::MwBindErr;
        };
        let Some(region) = mr.add_window() else {
            return WcStatus::MwBindErr;
        };
        let Some(info) = self.opens(bind, &region, qpn) else {
            mr.drop_window();
            return WcStatus::MwBindErr;
        };
        self.unbind(&mut state);
        let adapter = self.domain.adapter();
        adapter.keys.publish(&info);
        if adapter.medium.key_published(&info).is_err() {
            adapter.keys.withdraw(info.key);
            mr.drop_window();
            return WcStatus::MwBindErr;
        }
        state.key = bind.rkey;
        state.bound = Some((mr.clone(), info));
        WcStatus::Success
    }

    /// What the window would open, if it may be bound like that.
    fn opens(&self, bind: &MwBind<'_>, region: &KeyInfo, qpn: u32) -> Option<KeyInfo> {
        let changes = bind.access & (access::REMOTE_WRITE | access::REMOTE_ATOMIC) != 0;
        let may_change = region.access & access::LOCAL_WRITE != 0;
        if (changes && !may_change) || region.pd != self.domain.id {
            return None;
        }
        let host = region.translate(bind.addr, bind.length)?;
        let zero_based = bind.access & access::ZERO_BASED != 0;
        Some(KeyInfo {
            slot: KeyTable::slot_number(bind.rkey),
            key: bind.rkey,
            pd: self.domain.id,
            qpn: if self.mw_type == MwType::Type2 {
                qpn
            } else {
                0
            },
            iova: if zero_based { 0 } else { bind.addr },
            len: bind.length,
            host,
            access: bind.access & access::REMOTE_ANY | WINDOW,
        })
    }

    fn unbind(&self, state: &mut State) {
        if let Some((mr, info)) = state.bound.take() {
            let adapter = self.domain.adapter();
            adapter.keys.withdraw(info.key);
            adapter.medium.key_withdrawn(&info);
            mr.drop_window();
        }
    }

    fn lock(&self) -> Guard<'_, State> {
        lock(&self.state)
    }
}

impl Window for Mw {
    fn invalidate(&self, rkey: u32, pd: u32, qpn: u32) -> bool {
        let mut state = self.lock();
        let its =
            |(_, info): &(Arc<Mr>, KeyInfo)| info.key == rkey && info.qpn == qpn && info.pd == pd;
        let found = self.mw_type == MwType::Type2 && state.bound.as_ref().is_some_and(its);
        if found {
            self.unbind(&mut state);
        }
        found
    }

    fn invalidate_of(&self, qpn: u32) {
        let mut state = self.lock();
        if state
            .bound
            .as_ref()
            .is_some_and(|(_, info)| info.qpn == qpn)
        {
            self.unbind(&mut state);
        }
    }
}

impl Drop for Mw {
    fn drop(&mut self) {
        let _ = self.destroy();
    }
}

/// Flags that a binding may have. A window opens memory to peers and gives nobody local rights,
/// nor can a window be bound to it: the flags for those mean nothing, and programs that have one
/// set of flags for everything set them. Flags that a device may ignore are ignored.
const FLAGS: u32 = access::REMOTE_ANY
    | access::ZERO_BASED
    | access::MW_BIND
    | access::LOCAL_WRITE
    | access::OPTIONAL;

/// What posting a binding refuses at once.
pub(crate) fn check_bind(bind: &MwBind<'_>) -> Result<()> {
    if bind.length != 0 && bind.mr.is_none() {
        return Err(Error::WrongObject);
    }
    if bind.access & !FLAGS != 0 {
        return Err(Error::BadRegion);
    }
    Ok(())
}
