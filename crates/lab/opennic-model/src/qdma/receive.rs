//! Card to host: packets into the host's buffers, and completions that say so (PG302, "C2H Stream
//! Engine" and "Completion Engine").

use super::errors::{self, Leaf};
use super::{Qdma, TICK_NS};
use crate::doorbell;
use crate::memory::Host;

/// Bytes of a receive descriptor, a completion and a completion ring's status.
const ENTRY_LEN: u64 = 8;

/// Completion modes (PG302, "CMPT_CIDX_UPD trigger mode").
mod trigger {
    pub const EVERY: u8 = 1;
    pub const COUNT: u8 = 2;
    pub const TIMER: u8 = 4;
    pub const COUNT_OR_TIMER: u8 = 5;
}

/// Why a packet did not get into a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The queue is not set up, or broken.
    NoQueue,
    /// The host has given too few buffers.
    NoBuffers,
}

impl Qdma {
    /// A host gave buffers.
    pub fn set_c2h_pidx(&mut self, queue: usize, pidx: u16) {
        let Some(index) = self.queues.get(queue).map(|q| q.c2h.ring_size_index) else {
            return;
        };
        let usable = self.usable(index);
        let q = &mut self.queues[queue];
        if !q.c2h.enabled {
            return;
        }
        if usable.is_none_or(|usable| pidx >= usable) {
            q.c2h.error = 1;
            self.errors.raise(Leaf::Descriptor, errors::PARAMETER);
            return;
        }
        q.c2h.pidx = pidx;
    }

    /// A host took completions and said how it wants to hear of more.
    pub fn set_completion_cidx(&mut self, queue: usize, word: u32) {
        let Some(index) = self.queues.get(queue).map(|q| q.completion.ring_size_index) else {
            return;
        };
        let usable = self.usable(index);
        let q = &mut self.queues[queue];
        let completion = &mut q.completion;
        if !completion.valid {
            return;
        }
        let cidx = doorbell::CIDX.get(word) as u16;
        let taken = usable
            .filter(|usable| cidx < *usable)
            .is_some_and(|usable| {
                distance(completion.cidx, cidx, usable)
                    <= distance(completion.cidx, completion.pidx, usable)
            });
        if !taken {
            completion.error = 1;
            self.errors.raise(Leaf::CardToHost, errors::COMPLETION_CIDX);
            return;
        }
        completion.cidx = cidx;
        completion.counter_index = doorbell::COUNTER.get(word) as u8;
        completion.timer_index = doorbell::TIMER.get(word) as u8;
        completion.trigger = doorbell::TRIGGER.get(word) as u8;
        completion.status = doorbell::STATUS.is_set(word);
        completion.armed |= doorbell::ARM.is_set(word);
        q.timer = None;
    }

    /// How many buffers a packet of this length takes, and the size of one; None without a queue.
    fn buffers_for(&self, queue: usize, len: usize) -> Option<(u16, usize)> {
        let q = self.queues.get(queue)?;
        let ready = q.c2h.enabled
            && q.c2h.error == 0
            && q.c2h.descriptor_size == 0
            && usize::from(q.c2h.function) < self.maps.len()
            && q.prefetch.valid
            && q.completion.valid
            && q.completion.error == 0
            && q.completion.entry_size == 0
            && usize::from(q.completion.function) < self.maps.len();
        if !ready {
            return None;
        }
        let size = *self
            .buffer_sizes
            .get(usize::from(q.prefetch.buffer_size_index))? as usize;
        if size == 0 || len == 0 {
            return None;
        }
        Some((u16::try_from(len.div_ceil(size)).ok()?, size))
    }

    /// Whether a packet of this length would get in.
    pub fn has_room(&self, queue: usize, len: usize) -> bool {
        let Some((needed, _)) = self.buffers_for(queue, len) else {
            return false;
        };
        let q = &self.queues[queue];
        let buffers = self
            .usable(q.c2h.ring_size_index)
            .filter(|usable| q.c2h_hardware.cidx < *usable && q.c2h.pidx < *usable);
        let completions = self
            .usable(q.completion.ring_size_index)
            .filter(|usable| q.completion.pidx < *usable && q.completion.cidx < *usable);
        let (Some(buffers), Some(completions)) = (buffers, completions) else {
            return false;
        };
        distance(q.c2h_hardware.cidx, q.c2h.pidx, buffers) >= needed
            && distance(q.completion.cidx, q.completion.pidx, completions) + 1 < completions
    }

    /// Puts a packet into a queue.
    pub fn receive(
        &mut self,
        queue: usize,
        packet: &[u8],
        host: &mut dyn Host,
    ) -> Result<(), Refusal> {
        let Some((needed, size)) = self.buffers_for(queue, packet.len()) else {
            self.errors.raise(Leaf::CardToHost, errors::INVALID_QUEUE);
            self.dropped = self.dropped.wrapping_add(1);
            return Err(Refusal::NoQueue);
        };
        if !self.has_room(queue, packet.len()) {
            self.dropped = self.dropped.wrapping_add(1);
            let q = &self.queues[queue];
            let usable = self.usable(q.completion.ring_size_index);
            let full = usable.is_some_and(|usable| {
                distance(q.completion.cidx, q.completion.pidx, usable) + 1 >= usable
            });
            if full && !q.completion.overflow_unchecked {
                self.queues[queue].completion.error = 1;
                self.errors
                    .raise(Leaf::CardToHost, errors::COMPLETIONS_FULL);
            }
            return Err(Refusal::NoBuffers);
        }
        let placed = self.place(queue, packet, needed, size, host);
        if placed.is_none() || self.complete(queue, packet.len(), host).is_none() {
            self.queues[queue].c2h.error = 1;
            self.errors.raise(Leaf::Descriptor, errors::DMA);
            self.dropped = self.dropped.wrapping_add(1);
            return Err(Refusal::NoQueue);
        }
        self.accepted = self.accepted.wrapping_add(1);
        Ok(())
    }

    /// Writes the packet into the next buffers. None when memory is missing.
    fn place(
        &mut self,
        queue: usize,
        packet: &[u8],
        needed: u16,
        size: usize,
        host: &mut dyn Host,
    ) -> Option<()> {
        let q = &self.queues[queue];
        let usable = self.usable(q.c2h.ring_size_index)?;
        let (base, function) = (q.c2h.base, usize::from(q.c2h.function));
        let mut cidx = q.c2h_hardware.cidx;
        let memory = host.memory(function);
        for part in packet.chunks(size) {
            let mut descriptor = [0; ENTRY_LEN as usize];
            let at = base.checked_add(u64::from(cidx) * ENTRY_LEN)?;
            memory.read(at, &mut descriptor).ok()?;
            memory.write(u64::from_le_bytes(descriptor), part).ok()?;
            cidx = (cidx + 1) % usable;
        }
        debug_assert_eq!(packet.chunks(size).len(), usize::from(needed));
        self.queues[queue].c2h_hardware.cidx = cidx;
        Some(())
    }

    /// Writes the packet's completion: the colour says that it is new, and the shell says the
    /// queue, the length and the packet's number (`qdma_subsystem_c2h.sv`).
    fn complete(&mut self, queue: usize, len: usize, host: &mut dyn Host) -> Option<()> {
        const COLOUR: u32 = 1;
        const ERROR: u32 = 2;
        const QUEUE: u32 = 16;
        const LEN: u32 = 32;
        const NUMBER: u32 = 48;
        let bad = self.bad_completion.strikes(self.faults.bad_completion);
        let usable = self.usable(self.queues[queue].completion.ring_size_index)?;
        let q = &mut self.queues[queue];
        q.packets = q.packets.wrapping_add(1);
        let number = q.packets;
        let completion = &mut q.completion;
        let entry = u64::from(completion.colour) << COLOUR
            | u64::from(bad) << ERROR
            | (queue as u64) << QUEUE
            | u64::from(len as u16) << LEN
            | u64::from(number) << NUMBER;
        let at = completion
            .base
            .checked_add(u64::from(completion.pidx) * ENTRY_LEN)?;
        let memory = host.memory(usize::from(completion.function));
        memory.write(at, &entry.to_le_bytes()).ok()?;
        completion.pidx += 1;
        if completion.pidx >= usable {
            completion.pidx = 0;
            completion.colour = !completion.colour;
        }
        q.status_due = true;
        Some(())
    }

    /// Writes the status of a completion ring, and interrupts if that is wanted and due.
    pub fn finish_receiving(&mut self, queue: usize, host: &mut dyn Host, now_ns: u64) {
        let Some(index) = self.queues.get(queue).map(|q| q.completion.ring_size_index) else {
            return;
        };
        let Some(usable) = self.usable(index) else {
            return;
        };
        let q = &mut self.queues[queue];
        let completion = &mut q.completion;
        if !completion.valid || completion.error != 0 {
            return;
        }
        if std::mem::take(&mut q.status_due) && completion.status {
            let status = u64::from(completion.pidx)
                | u64::from(completion.cidx) << 16
                | u64::from(completion.colour) << 32
                | u64::from(completion.armed) << 33;
            let memory = host.memory(usize::from(completion.function));
            let at = completion.base.checked_add(u64::from(usable) * ENTRY_LEN);
            let written = at.is_some_and(|at| memory.write(at, &status.to_le_bytes()).is_ok());
            if !written {
                completion.error = 1;
                self.errors.raise(Leaf::Descriptor, errors::DMA);
                return;
            }
        }
        let pending = distance(completion.cidx, completion.pidx, usable);
        if !completion.interrupt || !completion.armed || pending == 0 {
            q.timer = None;
            return;
        }
        let entry = |table: &[u32], index: u8| table.get(usize::from(index)).copied().unwrap_or(0);
        let enough = u32::from(pending) >= entry(&self.counters, completion.counter_index).max(1);
        let wait =
            u64::from(entry(&self.timers, completion.timer_index)) * u64::from(self.tick) * TICK_NS;
        let mode = completion.trigger;
        let timer = matches!(mode, trigger::TIMER | trigger::COUNT_OR_TIMER);
        let over = timer && now_ns >= *q.timer.get_or_insert(now_ns.saturating_add(wait));
        let due = match mode {
            trigger::EVERY => true,
            trigger::COUNT => enough,
            trigger::TIMER => over,
            trigger::COUNT_OR_TIMER => enough || over,
            _ => false,
        };
        if due {
            completion.armed = false;
            q.timer = None;
            let (function, vector) = (completion.function, completion.vector);
            self.send_interrupt(host, function, vector);
        }
    }
}

/// Steps from one index to another in a ring.
fn distance(from: u16, to: u16, usable: u16) -> u16 {
    if to >= from {
        to - from
    } else {
        usable.saturating_sub(from).saturating_add(to)
    }
}
