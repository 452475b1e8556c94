//! Copying between bytes of a transport and memory of the program, for transports that do it by
//! themselves: with these they need no unsafe code for it.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering};

use sluice_verbs_model::opcode::facts;
use sluice_verbs_model::types::WrOpcode;

use crate::memory;
use crate::qp::responder::RemoteMemory;
use crate::qp::{LocalMemory, Qp};
use crate::wr::Wqe;

impl Wqe<'_> {
    /// A copy of the bytes that the request sends or writes: none for one that reads. For
    /// [`QpTransport::post`](crate::QpTransport::post), as long as what it borrows is valid.
    pub fn gather(&self) -> Vec<u8> {
        if facts(self.wr.opcode).reads {
            return Vec::new();
        }
        let mut bytes = vec![0; self.length as usize];
        memory::gather(self.wr.sges, &mut bytes);
        bytes
    }
}

impl Qp {
    /// Puts what a READ or an atomic brings where request `seq` wants it; bytes that are too many are
    /// left. False: the memory is not registered any more, and the request is to end with LOC_PROT_ERR.
    /// Where the request has been flushed nothing is touched. Runs with the send half's lock held.
    #[must_use]
    pub fn scatter_answer(&self, seq: u64, mut bytes: &[u8]) -> bool {
        let put = self.with_wqe(seq, |wqe| {
            let reads = facts(wqe.wr.opcode).reads;
            let mut pieces = wqe.wr.sges.iter().filter(|piece| piece.length != 0);
            !reads
                || pieces.all(|piece| {
                    let Some(memory) = self.pin_local(piece, true) else {
                        return false;
                    };
                    let (now, later) = bytes.split_at(bytes.len().min(memory.len()));
                    memory.write(now);
                    bytes = later;
                    true
                })
        });
        put.unwrap_or(true)
    }
}

impl LocalMemory<'_> {
    /// Writes the piece's first bytes; it was asked for to be written.
    fn write(&self, bytes: &[u8]) {
        debug_assert!(bytes.len() <= self.len());
        let len = bytes.len().min(self.len());
        // SAFETY: inside the piece, which stays registered while this lives. Raw pointers, because
        // the program may touch it at the same time.
        unsafe { core::ptr::copy(bytes.as_ptr(), self.as_ptr(), len) };
    }
}

impl RemoteMemory<'_> {
    /// Carries out the operation that the memory was checked for, with the bytes of a WRITE or the
    /// operands of an atomic (what to compare with or to add, what to swap in). The bytes are what a
    /// READ or an atomic brings.
    ///
    /// # Panics
    /// When the memory was checked for something else: fewer bytes, or no aligned word.
    pub(crate) fn carry_out(&self, opcode: WrOpcode, bytes: &[u8], operands: [u64; 2]) -> Vec<u8> {
        let [first, second] = operands;
        let order = Ordering::SeqCst;
        let old = match opcode {
            WrOpcode::RdmaRead => return self.read(),
            WrOpcode::AtomicFetchAndAdd => self.word().fetch_add(first, order),
            WrOpcode::AtomicCmpAndSwp => {
                let swapped = self.word().compare_exchange(first, second, order, order);
                swapped.unwrap_or_else(|old| old)
            }
            _ => {
                self.write(bytes);
                return Vec::new();
            }
        };
        old.to_ne_bytes().into()
    }

    fn write(&self, bytes: &[u8]) {
        assert!(bytes.len() <= self.len(), "more than was checked");
        // SAFETY: inside of what was checked, which stays registered while this lives. Raw
        // pointers, because the program and other peers may touch it at the same time.
        unsafe { core::ptr::copy(bytes.as_ptr(), self.as_ptr(), bytes.len()) };
    }

    fn read(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len()];
        // SAFETY: inside of what was checked, which stays registered while this lives; `bytes` is as long, and
        // ours. Raw pointers, because the program and other peers may touch the memory at the same time.
        unsafe { core::ptr::copy(self.as_ptr(), bytes.as_mut_ptr(), bytes.len()) };
        bytes
    }

    fn word(&self) -> &AtomicU64 {
        let word = self.as_ptr().cast::<u64>();
        let is_word = self.len() == size_of::<u64>() && word.is_aligned();
        assert!(is_word, "not checked for an atomic");
        // SAFETY: eight aligned bytes that stay registered while this lives. The program and
        // peers touch them by the processor's operations, which atomics are.
        unsafe { AtomicU64::from_ptr(word) }
    }
}
