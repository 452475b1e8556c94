//! The shared receive queue and its buffers.
//!
//! A write with a number uses up one entry of the queue and touches no buffer; a message fills one.
//! Both may come from any link, so every entry has a buffer. Entries that were used are posted again
//! in batches, before half of them are gone, and all before a sleep.
#![allow(unsafe_code)]

use std::ptr;
use std::sync::Arc;

use sluice_verbs_abi::*;

use crate::device::Device;
use crate::error::Error;
use crate::library::{check, object};
use crate::limits::MESSAGE_BYTES_MAX;
use crate::link::RECEIVE;
use crate::pages::Pages;
use crate::region::{Access, Paging, Region};

/// Posted with one call, unless there are fewer buffers.
const BATCH: usize = 64;

pub(crate) struct ReceiveQueue {
    device: Arc<Device>,
    srq: *mut ibv_srq,
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
    pub fn new(device: &Arc<Device>, buffers: u32) -> Result<Self, Error> {
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
        let requests = (0_u64..)
            .zip(&mut entries)
            .map(|(buffer, entry)| ibv_recv_wr {
                wr_id: RECEIVE | buffer,
                next: ptr::null_mut(),
                sg_list: ptr::from_mut(entry),
                num_sge: 1,
            });
        let requests = requests.collect();
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
        let mut queue = Self {
            device: device.clone(),
            srq: object("ibv_create_srq", srq)?,
            requests,
            _entries: entries,
            idle: (0..buffers).collect(),
            batch: BATCH.min(buffers as usize / 2).max(1),
            _region: region,
            pages,
        };
        queue.post_idle()?;
        Ok(queue)
    }

    pub fn srq(&self) -> *mut ibv_srq {
        self.srq
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
        // SAFETY: the queue exists; the chain ends with NULL, and its entries are of a region that
        // outlives the queue.
        let answer = unsafe {
            let post = (*(*self.srq).context).ops.post_srq_recv;
            let Some(post) = post else {
                return check("ibv_post_srq_recv", libc::EOPNOTSUPP);
            };
            post(self.srq, first, &raw mut refused)
        };
        if answer == 0 {
            self.idle.clear();
            return Ok(());
        }
        let at = refused.addr().wrapping_sub(start.addr()) / size_of::<ibv_recv_wr>();
        let posted = self.idle.iter().position(|buffer| *buffer as usize == at);
        self.idle.drain(..posted.unwrap_or(0));
        check("ibv_post_srq_recv", answer)
    }
}

impl Drop for ReceiveQueue {
    fn drop(&mut self) {
        // SAFETY: the queue exists, and the queue pairs that use it are gone.
        unsafe { (self.device.functions.destroy_srq)(self.srq) };
    }
}
