//! Receive queues and their buffers: one that all links share, or, where the device has none such, one
//! for each link.
//!
//! A write with a number uses up one entry of the queue and touches no buffer; a message fills one.
//! Both may come at any time, so every entry has a buffer. Entries that were used are posted again
//! in batches, before half of them are gone, and all before a sleep.
#![allow(unsafe_code)]

use std::ptr;
use std::sync::Arc;

use sluice_verbs_abi::*;

use crate::device::Device;
use crate::error::Error;
use crate::library::check;
use crate::limits::MESSAGE_BYTES_MAX;
use crate::pages::Pages;
use crate::region::{Access, Paging, Region};

/// Posted with one call, unless there are fewer buffers.
const BATCH: usize = 64;

/// Where buffers are posted.
#[derive(Clone, Copy)]
enum Target {
    /// The links' shared one, which is this value's own.
    Shared(*mut ibv_srq),
    /// The queue of a link's queue pair, which is the link's.
    QueuePair(*mut ibv_qp),
}

pub(crate) struct ReceiveQueue {
    device: Arc<Device>,
    target: Target,
    /// For each buffer, made once.
    requests: Box<[ibv_recv_wr]>,
    /// What `requests` point to.
    _entries: Box<[ibv_sge]>,
    /// Buffers that are not posted.
    idle: Vec<u32>,
    batch: usize,
    // Last: the device uses them as long as the queue is there.
    _region: Region,
    pages: Pages,
}

impl ReceiveQueue {
    /// One that all links share. `None`: the device makes none. `number` is the first buffer's `wr_id`.
    pub fn shared(device: &Arc<Device>, buffers: u32, number: u64) -> Result<Option<Self>, Error> {
        let mut init = ibv_srq_init_attr {
            srq_context: ptr::null_mut(),
            attr: ibv_srq_attr {
                max_wr: buffers,
                max_sge: 1,
                srq_limit: 0,
            },
        };
        // SAFETY: the domain lives as long as the device.
        let srq = unsafe { (device.functions.create_srq)(device.pd, &raw mut init) };
        if srq.is_null() {
            return Ok(None);
        }
        let queue = Self::new(device, Target::Shared(srq), buffers, number);
        if queue.is_err() {
            // SAFETY: the queue was made above, and nobody has it.
            unsafe { (device.functions.destroy_srq)(srq) };
        }
        let mut queue = queue?;
        queue.post_idle()?;
        Ok(Some(queue))
    }

    /// The one of a link whose queue pair takes receive buffers already, and is destroyed before this
    /// is dropped. `number` is the first buffer's `wr_id`.
    pub fn of_link(
        device: &Arc<Device>,
        qp: *mut ibv_qp,
        buffers: u32,
        number: u64,
    ) -> Result<Self, Error> {
        let mut queue = Self::new(device, Target::QueuePair(qp), buffers, number)?;
        queue.post_idle()?;
        Ok(queue)
    }

    /// Nothing is posted yet.
    fn new(device: &Arc<Device>, target: Target, buffers: u32, number: u64) -> Result<Self, Error> {
        let pages = Pages::new(buffers as usize);
        // SAFETY: the pages live as long as the region, which is dropped first.
        let region = unsafe {
            Region::new(
                device,
                pages.start(),
                pages.bytes(),
                Access::Receive,
                Paging::AtOnce,
            )
        }?;
        let entries = (0..buffers).map(|buffer| ibv_sge {
            addr: pages.address(buffer as usize).as_ptr().expose_provenance() as u64,
            length: MESSAGE_BYTES_MAX as u32,
            lkey: region.local_key(),
        });
        let mut entries: Box<[ibv_sge]> = entries.collect();
        let requests = (number..)
            .zip(&mut entries)
            .map(|(wr_id, entry)| ibv_recv_wr {
                wr_id,
                next: ptr::null_mut(),
                sg_list: ptr::from_mut(entry),
                num_sge: 1,
            });
        let requests = requests.collect();
        Ok(Self {
            device: device.clone(),
            target,
            requests,
            _entries: entries,
            idle: (0..buffers).collect(),
            batch: BATCH.min(buffers as usize / 2).max(1),
            _region: region,
            pages,
        })
    }

    /// The shared queue; null where this is a link's own.
    pub fn srq(&self) -> *mut ibv_srq {
        match self.target {
            Target::Shared(srq) => srq,
            Target::QueuePair(_) => ptr::null_mut(),
        }
    }

    /// Whether there is such a buffer.
    pub fn has(&self, buffer: u32) -> bool {
        (buffer as usize) < self.requests.len()
    }

    /// What lies in a buffer.
    ///
    /// # Safety
    /// The buffer is not posted: its completion was polled, and it was not given back.
    pub unsafe fn message(&self, buffer: u32, length: usize) -> &[u8] {
        // SAFETY: the caller's contract: the device is done with it.
        unsafe { self.pages.buffer(buffer as usize, length) }
    }

    /// The buffer was used and is free again. Its completion was polled.
    pub fn give_back(&mut self, buffer: u32) {
        // A library that completes a buffer twice must not make the list grow.
        if self.idle.len() < self.requests.len() {
            self.idle.push(buffer);
        }
    }

    /// Posts what was given back if that is worth a call.
    pub fn replenish(&mut self) -> Result<(), Error> {
        if self.idle.len() < self.batch {
            return Ok(());
        }
        self.post_idle()
    }

    /// Posts what was given back.
    pub fn post_idle(&mut self) -> Result<(), Error> {
        let Some(&first) = self.idle.first() else {
            return Ok(());
        };
        let start = self.requests.as_mut_ptr();
        let mut next = ptr::null_mut();
        for &buffer in self.idle.iter().rev() {
            let Some(request) = self.requests.get_mut(buffer as usize) else {
                continue;
            };
            request.next = next;
            // Not a reference: the library is given the chain while nobody else looks at it.
            next = start.wrapping_add(buffer as usize);
        }
        let first = start.wrapping_add(first as usize);
        let mut refused = ptr::null_mut();
        // SAFETY: the queue, or the queue pair, exists as long as this does; the chain ends with NULL,
        // and its entries are of a region that is dropped behind it.
        let (call, answer) = unsafe { self.target.post(first, &raw mut refused) };
        if answer == 0 {
            self.idle.clear();
            return Ok(());
        }
        let at = refused.addr().wrapping_sub(start.addr()) / size_of::<ibv_recv_wr>();
        let posted = self.idle.iter().position(|buffer| *buffer as usize == at);
        self.idle.drain(..posted.unwrap_or(0));
        check(call, answer)
    }
}

impl Target {
    /// Posts a chain of buffers. Which call that was, and what it has answered.
    ///
    /// # Safety
    /// As for ibv_post_srq_recv(3) and ibv_post_recv(3).
    unsafe fn post(
        self,
        first: *mut ibv_recv_wr,
        refused: *mut *mut ibv_recv_wr,
    ) -> (&'static str, i32) {
        match self {
            Self::Shared(srq) => {
                // SAFETY: the caller says that the queue exists, and that the chain is good.
                let answer = unsafe {
                    let post = (*(*srq).context).ops.post_srq_recv;
                    post.map_or(libc::EOPNOTSUPP, |post| post(srq, first, refused))
                };
                ("ibv_post_srq_recv", answer)
            }
            Self::QueuePair(qp) => {
                // SAFETY: the caller says that the queue pair exists, and that the chain is good.
                let answer = unsafe {
                    let post = (*(*qp).context).ops.post_recv;
                    post.map_or(libc::EOPNOTSUPP, |post| post(qp, first, refused))
                };
                ("ibv_post_recv", answer)
            }
        }
    }
}

impl Drop for ReceiveQueue {
    fn drop(&mut self) {
        if let Target::Shared(srq) = self.target {
            // SAFETY: the queue exists, and the queue pairs that use it are gone.
            unsafe { (self.device.functions.destroy_srq)(srq) };
        }
    }
}
