//! Posting requests.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::ptr;

use sluice_verbs_abi::*;

use crate::error::PostError;
use crate::limits::MESSAGE_BYTES_MAX;
use crate::link::{Link, LinkId, State};
use crate::node::Node;
use crate::queue::Kind;
use crate::region::{Remote, Slice};
use crate::request::{WriteRequest, entry_of, post, post_marker, request, write_request};
use crate::status::Status;

/// Requests that go to the device with one call.
const CHAIN_MAX: usize = 32;

impl Node {
    /// Writes the slice into the peer's memory; see [`WriteRequest`]. `id` comes back with
    /// [`Event::Done`](crate::Event::Done) or [`Event::Failed`](crate::Event::Failed); until then
    /// the bytes must stay what they are.
    ///
    /// # Errors
    /// Nothing happened then; see [`PostError`].
    pub fn write(
        &mut self,
        link: LinkId,
        local: Slice,
        remote: Remote,
        number: Option<u32>,
        id: u64,
    ) -> Result<(), PostError> {
        let write = WriteRequest {
            local,
            remote,
            number,
            id,
        };
        self.write_all(link, &[write]).map(drop)
    }

    /// Several writes at once, in order, which costs less than one after the other. How many of them
    /// were posted: those there was room for.
    ///
    /// # Errors
    /// Nothing happened then; see [`PostError`].
    pub fn write_all(&mut self, link: LinkId, writes: &[WriteRequest]) -> Result<usize, PostError> {
        let inline_bytes = self.inline_bytes;
        let link = connected(self.links.get_mut(link))?;
        let count = writes.len().min(link.queue.room()).min(CHAIN_MAX);
        let mut entries = [const { MaybeUninit::<ibv_sge>::uninit() }; CHAIN_MAX];
        let mut requests = [const { MaybeUninit::<ibv_send_wr>::uninit() }; CHAIN_MAX];
        let mut signalled = [0; CHAIN_MAX];
        for (at, write) in writes[..count].iter().enumerate() {
            signalled[at] = link.queue.signalled();
            let signal = link.queue.wants_signal();
            let entry = entries[at].write(entry_of(write.local));
            let mut request = write_request(link, write, entry, signal, inline_bytes);
            if at + 1 < count {
                request.next = requests[at + 1].as_mut_ptr();
            }
            requests[at].write(request);
            link.queue.push(write.id, Kind::Write, signal);
        }
        let Some(last) = count.checked_sub(1) else {
            return Ok(0);
        };
        // SAFETY: all of the list is written. Slices are of regions, whose memory is valid by the
        // contract of register.
        let posted = unsafe { post(link.qp, requests[0].assume_init_mut()) };
        let done = match posted {
            Ok(()) => count,
            Err(refusal) => {
                let is_it = |request: &MaybeUninit<_>| ptr::eq(request.as_ptr(), refusal.request);
                // Who does not say which one it was has taken none.
                let done = requests[..count].iter().position(is_it).unwrap_or(0);
                let back = (count - done) as u32;
                link.queue.take_back(back, signalled[done]);
                if done == 0 {
                    return Err(PostError::Refused(refusal.errno));
                }
                done
            }
        };
        link.remote = writes[last].remote;
        Ok(done)
    }

    /// Writes that [`write_all`](Self::write_all) takes now, 0 if there is no such link.
    pub fn room(&self, link: LinkId) -> usize {
        let link = self.links.get(link);
        let link = link.filter(|link| link.state == State::Connected);
        link.map_or(0, |link| link.queue.room())
    }

    /// Sends a message, which the peer gets as [`Event::Message`](crate::Event::Message), after
    /// everything that was written before. The bytes are copied. `id` comes back as with
    /// [`write`](Self::write).
    ///
    /// # Errors
    /// Nothing happened then; see [`PostError`].
    pub fn send(&mut self, link: LinkId, bytes: &[u8], id: u64) -> Result<(), PostError> {
        if bytes.len() > MESSAGE_BYTES_MAX {
            return Err(PostError::TooLong);
        }
        let (index, inline) = (link.index(), bytes.len() <= self.inline_bytes as usize);
        let link = connected(self.links.get_mut(link))?;
        let mut entry = ibv_sge {
            addr: bytes.as_ptr().expose_provenance() as u64,
            length: bytes.len() as u32,
            lkey: 0,
        };
        let kind = if inline {
            Kind::InlineMessage
        } else {
            let buffer = link.queue.message_buffer().ok_or(PostError::Full)? as usize;
            let buffer = index * self.limits.messages_max as usize + buffer;
            let pool = &mut self.messages;
            // SAFETY: the queue says that no message is on its way from this buffer, and only this
            // link uses it.
            unsafe { pool.pages.fill(buffer, bytes) };
            entry.addr = pool.pages.address(buffer).as_ptr().expose_provenance() as u64;
            entry.lkey = pool.region.local_key();
            Kind::Message
        };
        // Messages are few, and an empty one cannot be a marker: it would use up a buffer there.
        let mut request = request(link, &mut entry, true);
        request.opcode = IBV_WR_SEND;
        if inline {
            request.send_flags |= IBV_SEND_INLINE;
        }
        // SAFETY: inline bytes are read before the call returns; others lie in the pool, which
        // lives as long as the node.
        let posted = unsafe { post(link.qp, &mut request) };
        posted.map_err(|refusal| PostError::Refused(refusal.errno))?;
        link.queue.push(id, kind, true);
        Ok(())
    }

    /// Posts a marker on each link that needs one.
    pub(crate) fn post_markers(&mut self) {
        while let Some(slot) = self.marker_due.pop() {
            let Some(link) = self.links.slot(slot) else {
                continue;
            };
            link.listed = false;
            if link.state != State::Connected || !link.queue.needs_marker() {
                continue;
            }
            let id = link.id;
            if post_marker(link).is_err() {
                self.fail(id, Status::GENERAL);
            }
        }
    }
}

/// The link, if it takes a request.
fn connected(link: Option<&mut Link>) -> Result<&mut Link, PostError> {
    match link {
        Some(link) if link.state == State::Connected => match link.queue.has_room() {
            true => Ok(link),
            false => Err(PostError::Full),
        },
        _ => Err(PostError::NotConnected),
    }
}
