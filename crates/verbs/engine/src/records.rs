//! The one record of each request of a send queue: written when it is posted, read by the engine and,
//! where the transport works on it later, by the transport, which it is lent to until it has ended.
#![allow(unsafe_code)]

use core::cell::UnsafeCell;
use std::sync::Arc;

use sluice_verbs_model::transport::SendDone;
use sluice_verbs_model::types::{AhAttr, QpCap, Sge, WrOpcode};

use crate::loans::{Borrower, Owner, loans};
use crate::memory;
use crate::mr::Mr;
use crate::mw::Mw;
use crate::wr::{MwBind, SendWr, UdDestination, Wqe};

/// What is kept of a request besides its list and its inline data.
pub(crate) struct Kept {
    seq: u64,
    wr_id: u64,
    opcode: WrOpcode,
    flags: u32,
    imm: u32,
    pieces: u32,
    /// Addresses have taken the place of keys, or the data is inline.
    translated: bool,
    length: u64,
    remote_addr: u64,
    rkey: u32,
    xrc_srqn: u32,
    compare_add: u64,
    swap: u64,
    ud: Option<(AhAttr, u32, u32)>,
    bind: Option<KeptBind>,
}

struct KeptBind {
    mw: Arc<Mw>,
    mr: Option<Arc<Mr>>,
    rkey: u32,
    addr: u64,
    length: u64,
    access: u32,
}

/// Lists and inline data, a fixed part for each record.
struct Parts {
    sges: Box<[UnsafeCell<Sge>]>,
    inline: Box<[UnsafeCell<u8>]>,
    max_sge: usize,
    max_inline: usize,
}

// SAFETY: the parts of a record are read and written as the record itself is, of which `crate::loans` says
// who may do that when: shared in `Owner::read` and `Borrower::read`, alone in `Owner::write`.
unsafe impl Sync for Parts {}

impl Parts {
    /// # Safety
    /// Called in `read` of the record at `at`, and not used behind it.
    unsafe fn list(&self, at: usize, pieces: u32) -> &[Sge] {
        let cells = &self.sges[at * self.max_sge..][..pieces as usize];
        // SAFETY: a cell has its content's layout, and nobody writes this record's while it is read.
        unsafe { core::slice::from_raw_parts(cells.as_ptr().cast(), cells.len()) }
    }

    /// # Safety
    /// Called in `write` of the record at `at`, once, and not used behind it.
    #[expect(
        clippy::mut_from_ref,
        reason = "the cells are, and the caller is alone"
    )]
    unsafe fn whole_list(&self, at: usize) -> &mut [Sge] {
        let cells = &self.sges[at * self.max_sge..][..self.max_sge];
        let first = UnsafeCell::raw_get(cells.as_ptr());
        // SAFETY: the caller's promise: nobody else reads or writes this record's cells, which are side by
        // side.
        unsafe { core::slice::from_raw_parts_mut(first, cells.len()) }
    }

    /// # Safety
    /// As for [`Parts::whole_list`].
    #[expect(
        clippy::mut_from_ref,
        reason = "the cells are, and the caller is alone"
    )]
    unsafe fn inline(&self, at: usize, length: usize) -> &mut [u8] {
        let cells = &self.inline[at * self.max_inline..][..length];
        let first = UnsafeCell::raw_get(cells.as_ptr());
        // SAFETY: the caller's promise: nobody else reads or writes this record's inline bytes, which are side
        // by side.
        unsafe { core::slice::from_raw_parts_mut(first, cells.len()) }
    }
}

impl Kept {
    const fn empty() -> Kept {
        Kept {
            seq: 0,
            wr_id: 0,
            opcode: WrOpcode::Send,
            flags: 0,
            imm: 0,
            pieces: 0,
            translated: false,
            length: 0,
            remote_addr: 0,
            rkey: 0,
            xrc_srqn: 0,
            compare_add: 0,
            swap: 0,
            ud: None,
            bind: None,
        }
    }

    fn name(&self) -> Name {
        Name {
            wr_id: self.wr_id,
            opcode: self.opcode,
            flags: self.flags,
        }
    }

    fn view<'a>(&'a self, sges: &'a [Sge]) -> Wqe<'a> {
        let wr = SendWr {
            wr_id: self.wr_id,
            opcode: self.opcode,
            flags: self.flags,
            imm: self.imm,
            sges,
            remote_addr: self.remote_addr,
            rkey: self.rkey,
            xrc_srqn: self.xrc_srqn,
            compare_add: self.compare_add,
            swap: self.swap,
            ud: self.ud.as_ref().map(|(ah, qpn, qkey)| UdDestination {
                ah,
                qpn: *qpn,
                qkey: *qkey,
            }),
            bind: self.bind.as_ref().map(|bind| MwBind {
                mw: &bind.mw,
                rkey: bind.rkey,
                mr: bind.mr.as_ref(),
                addr: bind.addr,
                length: bind.length,
                access: bind.access,
            }),
        };
        Wqe {
            seq: self.seq,
            wr,
            length: self.length,
        }
    }
}

/// What the completion of a request says of it, and what it means for those behind it.
#[derive(Clone, Copy)]
pub(crate) struct Name {
    pub wr_id: u64,
    pub opcode: WrOpcode,
    pub flags: u32,
}

/// How far a request is that is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Held,
    Pending,
    Done(SendDone),
}

/// All records of a send queue, for whoever has the queue.
pub(crate) struct Records {
    owner: Owner<Kept, Phase>,
    parts: Arc<Parts>,
}

/// What the transport has of the records: those that it works on.
pub struct LentRecords {
    borrower: Borrower<Kept, Phase>,
    parts: Arc<Parts>,
}

/// As many records as the queue has places, rounded up to a power of two.
pub(crate) fn records(cap: &QpCap) -> (Records, LentRecords) {
    let places = match cap.max_send_wr {
        0 => 0,
        wanted => wanted.next_power_of_two() as usize,
    };
    let (max_sge, max_inline) = (cap.max_send_sge as usize, cap.max_inline_data as usize);
    let parts = Arc::new(Parts {
        sges: (0..places * max_sge)
            .map(|_| UnsafeCell::default())
            .collect(),
        inline: (0..places * max_inline)
            .map(|_| UnsafeCell::default())
            .collect(),
        max_sge,
        max_inline,
    });
    let (owner, borrower) = loans((0..places).map(|_| Kept::empty()), Phase::Held);
    let lent = LentRecords {
        borrower,
        parts: parts.clone(),
    };
    (Records { owner, parts }, lent)
}

impl Records {
    pub fn len(&self) -> usize {
        self.owner.len()
    }

    /// The same with what its completion says.
    #[inline]
    pub fn state(&self, seq: u64) -> (Phase, Name) {
        self.owner.both(seq, |phase, kept| (*phase, kept.name()))
    }

    #[inline]
    pub fn phase(&self, seq: u64) -> Phase {
        self.owner.note(seq)
    }

    #[inline]
    pub fn set_phase(&mut self, seq: u64, phase: Phase) {
        self.owner.set_note(seq, phase);
    }

    /// Copies a request to its record, inline data included. `pieces`: its list, or nothing where that
    /// is needed no more.
    pub fn keep(
        &mut self,
        seq: u64,
        wr: &SendWr<'_>,
        pieces: &[Sge],
        translated: bool,
        length: u64,
    ) {
        let parts = &*self.parts;
        self.owner.write(seq, |at, kept| {
            let mut count = pieces.len();
            // SAFETY: in `write`, once each.
            let list = unsafe { parts.whole_list(at) };
            if wr.is_inline() && !pieces.is_empty() {
                // SAFETY: in `write` of this record, once; what stays of it is an address, no reference.
                let bytes = unsafe { parts.inline(at, length as usize) };
                memory::gather(pieces, bytes);
                list[0] = Sge {
                    addr: bytes.as_ptr() as u64,
                    length: length as u32,
                    lkey: 0,
                };
                count = 1;
            } else {
                list[..count].copy_from_slice(pieces);
            }
            *kept = Kept {
                seq,
                wr_id: wr.wr_id,
                opcode: wr.opcode,
                flags: wr.flags,
                imm: wr.imm,
                pieces: count as u32,
                translated: translated || wr.is_inline(),
                length,
                remote_addr: wr.remote_addr,
                rkey: wr.rkey,
                xrc_srqn: wr.xrc_srqn,
                compare_add: wr.compare_add,
                swap: wr.swap,
                ud: wr.ud.map(|ud| (*ud.ah, ud.qpn, ud.qkey)),
                bind: wr.bind.map(|bind| KeptBind {
                    mw: bind.mw.clone(),
                    mr: bind.mr.cloned(),
                    rkey: bind.rkey,
                    addr: bind.addr,
                    length: bind.length,
                    access: bind.access,
                }),
            };
        });
    }

    /// Whether its addresses are the process's.
    pub fn is_translated(&self, seq: u64) -> bool {
        self.owner.read(seq, |_, kept| kept.translated)
    }

    /// Puts the process's addresses into a record, and the key of a datagram that was kept with the queue
    /// pair's own. What `translate` says.
    pub fn translate<E>(
        &mut self,
        seq: u64,
        translate: impl FnOnce(&mut [Sge], u64) -> Result<(), E>,
    ) -> Result<(), E> {
        let parts = &*self.parts;
        self.owner.write(seq, |at, kept| {
            // SAFETY: in `write`, once.
            let list = unsafe { parts.whole_list(at) };
            translate(&mut list[..kept.pieces as usize], kept.length)?;
            kept.translated = true;
            Ok(())
        })
    }

    /// The key that a datagram goes with.
    pub fn set_qkey(&mut self, seq: u64, key: impl FnOnce(u32) -> u32) {
        self.owner.write(seq, |_, kept| {
            if let Some((_, _, qkey)) = &mut kept.ud {
                *qkey = key(*qkey);
            }
        });
    }

    pub fn name(&self, seq: u64) -> Name {
        self.owner.read(seq, |_, kept| kept.name())
    }

    /// A request as it was kept.
    pub fn look<R>(&self, seq: u64, look: impl FnOnce(&Wqe<'_>) -> R) -> R {
        let parts = &*self.parts;
        self.owner.read(seq, |at, kept| {
            // SAFETY: in `read`.
            let list = unsafe { parts.list(at, kept.pieces) };
            look(&kept.view(list))
        })
    }

    /// The transport works on it from now on.
    #[inline]
    pub fn lend(&mut self, seq: u64) {
        self.owner.lend(seq);
    }

    /// Lets go of what a request has held on to.
    pub fn release(&mut self, seq: u64) {
        let binds = self.owner.read(seq, |_, kept| kept.bind.is_some());
        if binds {
            self.owner.write(seq, |_, kept| kept.bind = None);
        }
    }

    /// The same of all.
    pub fn release_all(&mut self) {
        for place in 0..self.len() as u64 {
            self.release(place);
        }
    }
}

/// A transport that works on requests after [`QpTransport::post`](crate::QpTransport::post) has its
/// records from here, in the order of posting. One thread at a time.
impl LentRecords {
    /// The first request that it has not taken up.
    #[inline]
    pub fn next(&self) -> Option<u64> {
        self.borrower.next()
    }

    /// It has taken that up.
    #[inline]
    pub fn take(&mut self) {
        self.borrower.take();
    }

    /// How many it has taken up that have not ended.
    pub fn held(&self) -> u64 {
        self.borrower.held()
    }

    /// The first of these.
    pub fn first(&self) -> Option<u64> {
        self.borrower.first()
    }

    /// Looks at a request, taken up or not, that has not ended.
    #[inline]
    pub fn look<R>(&self, seq: u64, look: impl FnOnce(&Wqe<'_>) -> R) -> Option<R> {
        let parts = &*self.parts;
        self.borrower.read(seq, |at, kept| {
            // SAFETY: in `read`.
            let list = unsafe { parts.list(at, kept.pieces) };
            look(&kept.view(list))
        })
    }

    #[inline]
    pub(crate) fn name(&self, seq: u64) -> Option<Name> {
        self.borrower.read(seq, |_, kept| kept.name())
    }

    /// That request and all before it have ended. In front of
    /// [`Qp::complete_send`](crate::Qp::complete_send).
    #[inline]
    pub fn ended(&mut self, seq: u64) {
        self.borrower.give_back(seq);
    }

    /// All have ended, or are flushed by the engine.
    pub fn all_ended(&mut self) {
        self.borrower.give_all_back();
    }
}
