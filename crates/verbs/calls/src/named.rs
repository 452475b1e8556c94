//! The objects that a work request names, as the engine takes them.

use sluice_verbs as engine;
use sluice_verbs::UdDestination;

use super::objects::{Ah, Mr, Mw, optional};
use crate::ffi::*;

/// # Safety
/// The header's contract for the address handle.
pub unsafe fn destination<'a>(
    ah: *mut ibv_ah,
    qpn: u32,
    qkey: u32,
) -> engine::Result<UdDestination<'a>> {
    // SAFETY: the caller's contract.
    let ah = unsafe { optional::<Ah>(ah) }.ok_or(engine::Error::WrongObject)?;
    Ok(UdDestination {
        ah: ah.engine.attr(),
        qpn,
        qkey,
    })
}

/// # Safety
/// The header's contract for window and region.
pub unsafe fn window_binding<'a>(
    mw: *mut ibv_mw,
    rkey: u32,
    info: &ibv_mw_bind_info,
) -> engine::Result<engine::MwBind<'a>> {
    // SAFETY: the caller's contract.
    let (mw, mr) = unsafe { (optional::<Mw>(mw), optional::<Mr>(info.mr)) };
    Ok(engine::MwBind {
        mw: &mw.ok_or(engine::Error::WrongObject)?.engine,
        rkey,
        mr: mr.map(|mr| &mr.engine),
        addr: info.addr,
        length: info.length,
        access: info.mw_access_flags,
    })
}
