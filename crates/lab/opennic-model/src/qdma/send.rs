//! Host to card: descriptors to packets (PG302, "H2C Stream Engine"). A descriptor is a packet.

use super::errors::{self, Leaf};
use super::{Qdma, Queue};
use crate::memory::Host;

/// log2 of the size of a descriptor over 8 bytes.
const DESCRIPTOR_SIZE: u8 = 1;
const DESCRIPTOR_LEN: usize = 16;
/// The largest packet of the shell (`MAX_PKT_LEN`).
pub const PACKET_LEN_MAX: usize = 9600;

impl Qdma {
    /// A host wrote its producer index.
    pub fn set_h2c_pidx(&mut self, queue: usize, pidx: u16, arm: bool) {
        let Some(index) = self.queues.get(queue).map(|q| q.h2c.ring_size_index) else {
            return;
        };
        let usable = self.usable(index);
        let q = &mut self.queues[queue];
        if !q.h2c.enabled {
            return;
        }
        q.h2c.irq_arm |= arm;
        if usable.is_none_or(|usable| pidx >= usable) {
            fail(q);
            self.errors.raise(Leaf::Descriptor, errors::PARAMETER);
            return;
        }
        q.h2c.pidx = pidx;
    }

    /// Takes the queue's next packet. None when there is none, or the queue is broken.
    pub fn next_packet(&mut self, queue: usize, host: &mut dyn Host, packet: &mut Vec<u8>) -> bool {
        let Some(q) = self.queues.get(queue) else {
            return false;
        };
        let (context, cidx) = (q.h2c, q.h2c_hardware.cidx);
        if !context.enabled || context.error != 0 || cidx == context.pidx {
            return false;
        }
        let function = usize::from(context.function);
        let usable = self.usable(context.ring_size_index);
        let (Some(usable), true) = (
            usable.filter(|usable| cidx < *usable),
            function < self.maps.len()
                && context.descriptor_size == DESCRIPTOR_SIZE
                && !context.memory_mapped,
        ) else {
            return self.broken(queue, Leaf::Descriptor, errors::PARAMETER);
        };
        let mut descriptor = [0; DESCRIPTOR_LEN];
        let at = u64::from(cidx) * DESCRIPTOR_LEN as u64;
        let Some(address) = context.base.checked_add(at) else {
            return self.broken(queue, Leaf::Descriptor, errors::DMA);
        };
        if host
            .memory(function)
            .read(address, &mut descriptor)
            .is_err()
        {
            return self.broken(queue, Leaf::Descriptor, errors::DMA);
        }
        let [m0, m1, _, _, l0, l1, ..] = descriptor;
        let len = usize::from(u16::from_le_bytes([l0, l1]));
        // The shell takes the packet's length from here (`qdma_subsystem_h2c.sv`).
        let said = usize::from(u16::from_le_bytes([m0, m1]));
        if len == 0 {
            return self.broken(queue, Leaf::HostToCard, errors::ZERO_LENGTH);
        }
        if len > PACKET_LEN_MAX || said != len {
            return self.broken(queue, Leaf::Descriptor, errors::PARAMETER);
        }
        let mut source = [0; 8];
        source.copy_from_slice(&descriptor[8..]);
        packet.resize(len, 0);
        let source = u64::from_le_bytes(source);
        if host.memory(function).read(source, packet).is_err() {
            return self.broken(queue, Leaf::Descriptor, errors::DMA);
        }
        let late = self.faults.late_completion;
        let q = &mut self.queues[queue];
        q.h2c_hardware.cidx = (cidx + 1) % usable;
        q.write_back_in.get_or_insert(late);
        true
    }

    fn broken(&mut self, queue: usize, leaf: Leaf, error: u32) -> bool {
        fail(&mut self.queues[queue]);
        self.errors.raise(leaf, error);
        false
    }

    /// Tells the host how far the queue is, when that is due, and interrupts it if it wants that.
    pub fn finish_sending(&mut self, queue: usize, host: &mut dyn Host) {
        let Some(q) = self.queues.get_mut(queue) else {
            return;
        };
        match &mut q.write_back_in {
            None => {}
            Some(0) => {
                q.write_back_in = None;
                self.write_back(queue, host);
            }
            Some(rounds) => *rounds -= 1,
        }
        let q = &mut self.queues[queue];
        let context = &mut q.h2c;
        if q.h2c_event && context.irq_arm && context.irq_enabled && context.enabled {
            q.h2c_event = false;
            context.irq_arm = false;
            let (function, vector) = (context.function, context.vector);
            self.send_interrupt(host, function, vector);
        }
    }

    fn write_back(&mut self, queue: usize, host: &mut dyn Host) {
        let q = &self.queues[queue];
        let context = q.h2c;
        if !context.enabled {
            return;
        }
        if context.write_back {
            let Some(usable) = self.usable(context.ring_size_index) else {
                return;
            };
            let status = u64::from(context.pidx) | u64::from(q.h2c_hardware.cidx) << 16;
            let at = u64::from(usable) * DESCRIPTOR_LEN as u64;
            let function = usize::from(context.function);
            let written = match context.base.checked_add(at) {
                Some(address) => host
                    .memory(function)
                    .write(address, &status.to_le_bytes())
                    .is_ok(),
                None => false,
            };
            if !written {
                self.broken(queue, Leaf::Descriptor, errors::DMA);
                return;
            }
        }
        self.queues[queue].h2c_event = true;
    }
}

fn fail(q: &mut Queue) {
    q.h2c.error = 1;
}
