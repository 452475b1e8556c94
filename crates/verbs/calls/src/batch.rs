//! What the `ibv_wr_*` calls have put together between `ibv_wr_start` and `ibv_wr_complete`.

use std::ops::Range;

use sluice_verbs as engine;
use sluice_verbs::{SendWr, Sge, WrOpcode};

use super::named::{destination, window_binding};
use crate::ffi::*;

/// Requests that a batch has room for without allocating.
const REQUESTS: usize = 32;

pub struct Batch {
    requests: Vec<Request>,
    /// The pieces of memory of all requests. Those of inline requests have offsets in `inline` in
    /// place of addresses until the end, because that may move while it grows.
    sges: Vec<Sge>,
    inline: Vec<u8>,
    /// The first mistake; it is told at the end, as the manual page says.
    fault: Option<engine::Error>,
}

/// One request, without its data.
pub struct Request {
    pub wr_id: u64,
    pub opcode: WrOpcode,
    pub flags: u32,
    pub imm: u32,
    pub remote_addr: u64,
    pub rkey: u32,
    pub compare_add: u64,
    pub swap: u64,
    pub xrc_srqn: u32,
    pub ud: Option<(*mut ibv_ah, u32, u32)>,
    pub bind: Option<(*mut ibv_mw, ibv_mw_bind_info)>,
    sges: Range<usize>,
}

impl Request {
    pub fn new(opcode: WrOpcode, wr_id: u64, flags: u32) -> Self {
        Self {
            wr_id,
            opcode,
            flags,
            imm: 0,
            remote_addr: 0,
            rkey: 0,
            compare_add: 0,
            swap: 0,
            xrc_srqn: 0,
            ud: None,
            bind: None,
            sges: 0..0,
        }
    }
}

impl Batch {
    /// For a QP that has the calls; others get an empty one, which allocates nothing.
    pub fn new(in_use: bool, max_inline: u32) -> Self {
        let requests = if in_use { REQUESTS } else { 0 };
        Self {
            requests: Vec::with_capacity(requests),
            sges: Vec::with_capacity(requests),
            inline: Vec::with_capacity(if in_use { max_inline as usize } else { 0 }),
            fault: None,
        }
    }

    pub fn clear(&mut self) {
        self.requests.clear();
        self.sges.clear();
        self.inline.clear();
        self.fault = None;
    }

    pub fn begin(&mut self, request: Request) {
        self.requests.push(request);
    }

    /// The request that is being put together; a setter without one is a mistake of the program.
    pub fn last(&mut self) -> Option<&mut Request> {
        if self.requests.is_empty() {
            self.fault.get_or_insert(engine::Error::BadOpcode);
        }
        self.requests.last_mut()
    }

    pub fn set_sges(&mut self, sges: impl Iterator<Item = Sge>) {
        let start = self.sges.len();
        self.sges.extend(sges);
        let end = self.sges.len();
        if let Some(request) = self.last() {
            request.sges = start..end;
        }
    }

    /// Copies the data: the program may use its buffer again at once.
    pub fn set_inline<'a>(&mut self, pieces: impl Iterator<Item = &'a [u8]>) {
        let offset = self.inline.len();
        for piece in pieces {
            self.inline.extend_from_slice(piece);
        }
        let Ok(length) = u32::try_from(self.inline.len() - offset) else {
            self.fault.get_or_insert(engine::Error::InlineTooLong);
            return;
        };
        self.set_sges(std::iter::once(Sge {
            addr: offset as u64,
            length,
            lkey: 0,
        }));
        if let Some(request) = self.last() {
            request.flags |= IBV_SEND_INLINE;
        }
    }

    /// Posts everything in order, or nothing when one is refused, and forgets it.
    ///
    /// # Safety
    /// The header's contract for the objects that the requests name.
    pub unsafe fn post(&mut self, qp: &engine::Qp) -> engine::Result<()> {
        // SAFETY: the caller's contract.
        let result = unsafe { self.try_post(qp) };
        self.clear();
        result
    }

    unsafe fn try_post(&mut self, qp: &engine::Qp) -> engine::Result<()> {
        if let Some(fault) = self.fault {
            return Err(fault);
        }
        let data = self.inline.as_ptr().expose_provenance() as u64;
        for request in &self.requests {
            if request.flags & IBV_SEND_INLINE != 0 {
                for sge in &mut self.sges[request.sges.clone()] {
                    sge.addr += data;
                }
            }
        }
        let mut sender = qp.sender();
        for (ahead, request) in self.requests.iter().enumerate() {
            // SAFETY: the caller's contract.
            unsafe { self.with_request(request, |wr| sender.check(wr, ahead)) }?;
        }
        for request in &self.requests {
            // SAFETY: the caller's contract.
            unsafe { self.with_request(request, |wr| sender.post(wr)) }?;
        }
        Ok(())
    }

    /// The request as the engine takes it.
    unsafe fn with_request(
        &self,
        request: &Request,
        use_it: impl FnOnce(&SendWr<'_>) -> engine::Result<()>,
    ) -> engine::Result<()> {
        let mut wr = SendWr::new(request.opcode, request.wr_id);
        wr.flags = request.flags;
        wr.imm = request.imm;
        wr.sges = &self.sges[request.sges.clone()];
        (wr.remote_addr, wr.rkey) = (request.remote_addr, request.rkey);
        (wr.compare_add, wr.swap) = (request.compare_add, request.swap);
        wr.xrc_srqn = request.xrc_srqn;
        // SAFETY: the caller's contract.
        unsafe {
            if let Some((ah, qpn, qkey)) = request.ud {
                wr.ud = Some(destination(ah, qpn, qkey)?);
            }
            if let Some((mw, info)) = &request.bind {
                wr.bind = Some(window_binding(*mw, request.rkey, info)?);
            }
        }
        use_it(&wr)
    }
}
