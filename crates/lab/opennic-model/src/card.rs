//! The card: functions with doorbells, the DMA engine, the shell, and what its ports are plugged
//! into. It has no clock and no thread of its own: [`Card::round`] does what is to be done now.

use std::io;
use std::os::fd::OwnedFd;

use crate::bits::Field;
use crate::cmac;
use crate::doorbell::{self, Bell, Doorbells};
use crate::faults::{Every, Faults};
use crate::generator::Generator;
use crate::memory::Host;
use crate::qdma::{self, Qdma, Renewed};
use crate::shell::{PORTS_MAX, Shell};
use crate::tap::Tap;

/// Packets of a queue in one round.
const QUEUE_BATCH: usize = 256;
/// Packets of a tap in one round.
const TAP_BATCH: usize = 64;
/// A frame is at least this long on the wire, without its checksum.
const FRAME_LEN_MIN: usize = 60;

/// What a port is plugged into.
pub enum Wire {
    /// Nothing: what is sent is gone.
    Open,
    /// Its own end.
    Loop,
    /// The card's other port.
    Other,
    Generator(Generator),
    Tap(Tap),
}

pub struct Card {
    pub qdma: Qdma,
    pub shell: Shell,
    doorbells: Vec<Doorbells>,
    wires: Vec<Wire>,
    lost_packet: Every,
    /// A packet on its way.
    packet: Vec<u8>,
}

impl Card {
    /// A card whose function N is on port N, and the descriptors of the functions' doorbells.
    pub fn new(wires: Vec<Wire>, faults: Faults) -> io::Result<(Self, Vec<OwnedFd>)> {
        let functions = wires.len();
        if functions == 0 || functions > PORTS_MAX {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("a card has 1 to {PORTS_MAX} ports"),
            ));
        }
        let mut doorbells = Vec::new();
        let mut descriptors = Vec::new();
        for _ in 0..functions {
            let (bells, descriptor) = Doorbells::new(qdma::BAR_LEN, qdma::DOORBELLS)?;
            doorbells.push(bells);
            descriptors.push(descriptor);
        }
        let mut qdma = Qdma::new(functions);
        qdma.faults = faults;
        let card = Self {
            qdma,
            shell: Shell::new(functions),
            doorbells,
            wires,
            lost_packet: Every::default(),
            packet: Vec::new(),
        };
        Ok((card, descriptors))
    }

    /// What happened so far, in words.
    pub fn counts(&self) -> String {
        let mut text = format!("interrupts_lost={}", self.qdma.interrupts_lost);
        for (port, (wire, mac)) in self.wires.iter().zip(&self.shell.ports).enumerate() {
            let made = match wire {
                Wire::Generator(generator) => generator.made,
                _ => 0,
            };
            let adapter = &mac.adapter;
            text += &format!(
                " port{port}_made={made} port{port}_tx={} port{port}_rx={} port{port}_rx_dropped={}",
                adapter.tx_sent.0, adapter.rx_received.0, adapter.rx_dropped.0
            );
        }
        text
    }

    pub fn functions(&self) -> usize {
        self.wires.len()
    }

    /// A register of the DMA engine (BAR 0).
    pub fn read_engine(&self, function: usize, offset: u32) -> u32 {
        match engine_doorbell(offset) {
            Some(at) => self
                .doorbells
                .get(function)
                .map_or(0, |bells| bells.load(at)),
            None => self.qdma.read(function, offset),
        }
    }

    pub fn write_engine(&mut self, function: usize, offset: u32, value: u32) {
        if let Some(at) = engine_doorbell(offset) {
            if let Some(bells) = self.doorbells.get(function) {
                bells.store(at, value);
            }
            return;
        }
        if let Some(renewed) = self.qdma.write(offset, value) {
            self.forget(renewed);
        }
    }

    /// The doorbells of a queue whose context is new say nothing any more.
    fn forget(&mut self, renewed: Renewed) {
        let (queue, bell) = match renewed {
            Renewed::HostToCard(queue) => (queue, Bell::H2cPidx),
            Renewed::CardToHost(queue) => (queue, Bell::C2hPidx),
            Renewed::Completion(queue) => (queue, Bell::CompletionCidx),
        };
        for (map, bells) in self.qdma.maps.iter().zip(&mut self.doorbells) {
            let own = queue.checked_sub(map.base.into());
            if let Some(own) = own.filter(|own| *own < usize::from(map.count)) {
                bells.forget(own, bell);
            }
        }
    }

    /// Function-level reset.
    pub fn reset_function(&mut self, function: usize) {
        if let Some(map) = self.qdma.maps.get(function).copied() {
            for queue in 0..usize::from(map.count) {
                for bell in [Bell::H2cPidx, Bell::C2hPidx, Bell::CompletionCidx] {
                    self.doorbells[function].forget(queue, bell);
                }
            }
        }
        self.qdma.reset_function(function);
        self.shell.reset_function(function);
    }

    /// Does what is to be done; whether that was anything.
    pub fn round(&mut self, host: &mut dyn Host, now_ns: u64) -> bool {
        let mut busy = false;
        // What one function sends may need what another has given.
        for function in 0..self.functions() {
            busy |= self.take_doorbells(function);
        }
        for function in 0..self.functions() {
            busy |= self.send(function, host);
            busy |= self.feed(function, host);
        }
        for function in 0..self.functions() {
            for queue in self.queues(function) {
                self.qdma.finish_sending(queue, host);
                self.qdma.finish_receiving(queue, host, now_ns);
            }
        }
        if let Some((function, vector)) = self.qdma.errors.take_interrupt()
            && function < self.functions()
        {
            host.interrupt(function, vector);
        }
        busy
    }

    /// The function's queues, by the card's numbers.
    fn queues(&self, function: usize) -> std::ops::Range<usize> {
        let count = self
            .qdma
            .maps
            .get(function)
            .map_or(0, |map| usize::from(map.count));
        let start = self.qdma.queue_of(function, 0).unwrap_or(0);
        start..(start + count).min(doorbell::QUEUES_MAX)
    }

    fn take_doorbells(&mut self, function: usize) -> bool {
        let queues = self.queues(function);
        let bells = &mut self.doorbells[function];
        let mut rung = false;
        for (own, queue) in queues.enumerate() {
            let low = |word| doorbell::PIDX.get(word) as u16;
            let armed = |field: Field, word| field.is_set(word);
            // Buffers and completions before what is sent: an answer may need them.
            if let Some(word) = bells.take(own, Bell::C2hPidx) {
                self.qdma.set_c2h_pidx(queue, low(word));
                rung = true;
            }
            if let Some(word) = bells.take(own, Bell::CompletionCidx) {
                self.qdma.set_completion_cidx(queue, word);
                rung = true;
            }
            if let Some(word) = bells.take(own, Bell::H2cPidx) {
                let arm = armed(doorbell::DESCRIPTOR_ARM, word);
                self.qdma.set_h2c_pidx(queue, low(word), arm);
                rung = true;
            }
        }
        rung
    }

    /// What the function's queues have to send.
    fn send(&mut self, function: usize, host: &mut dyn Host) -> bool {
        let mut packet = std::mem::take(&mut self.packet);
        let mut sent = false;
        for queue in self.queues(function) {
            for _ in 0..QUEUE_BATCH {
                if !self.qdma.next_packet(queue, host, &mut packet) {
                    break;
                }
                sent = true;
                if packet.len() < FRAME_LEN_MIN {
                    packet.resize(FRAME_LEN_MIN, 0);
                }
                if self.shell.owns(function, queue) {
                    self.transmit(function, &packet, host);
                }
            }
        }
        self.packet = packet;
        sent
    }

    fn transmit(&mut self, port: usize, packet: &[u8], host: &mut dyn Host) {
        let Some(mac) = self.shell.ports.get_mut(port) else {
            return;
        };
        if !mac.send(packet.len()) {
            return;
        }
        if mac.loopback() {
            self.arrive(port, packet, host);
            return;
        }
        match &mut self.wires[port] {
            Wire::Open | Wire::Generator(_) => {}
            Wire::Loop => self.arrive(port, packet, host),
            Wire::Other => self.arrive(1 - port, packet, host),
            Wire::Tap(tap) => tap.send(packet),
        }
    }

    /// A packet comes in at a port.
    fn arrive(&mut self, port: usize, packet: &[u8], host: &mut dyn Host) {
        let Some(mac) = self.shell.ports.get_mut(port) else {
            return;
        };
        if !mac.receives() {
            return;
        }
        if self.lost_packet.strikes(self.qdma.faults.lost_packet) {
            return;
        }
        mac.received(packet.len());
        let queue = self.shell.queue_for(port, packet);
        let taken = queue.is_some_and(|queue| self.qdma.receive(queue, packet, host).is_ok());
        if !taken && let Some(mac) = self.shell.ports.get_mut(port) {
            cmac::count(&mut mac.adapter.rx_dropped, packet.len());
        }
    }

    /// What comes in by itself.
    fn feed(&mut self, port: usize, host: &mut dyn Host) -> bool {
        if !self.shell.ports.get(port).is_some_and(|mac| mac.receives()) {
            return false;
        }
        let mut wire = std::mem::replace(&mut self.wires[port], Wire::Open);
        let fed = match &mut wire {
            Wire::Generator(generator) => generator.run(|packet| {
                let queue = self.shell.queue_for(port, packet);
                let room = queue.is_some_and(|queue| self.qdma.has_room(queue, packet.len()));
                if room {
                    self.arrive(port, packet, host);
                }
                room
            }),
            Wire::Tap(tap) => {
                let mut some = false;
                for _ in 0..TAP_BATCH {
                    let Some(packet) = tap.receive() else {
                        break;
                    };
                    some = true;
                    self.arrive(port, &packet, host);
                }
                some
            }
            Wire::Open | Wire::Loop | Wire::Other => false,
        };
        self.wires[port] = wire;
        fed
    }
}

/// Where in the doorbells an offset of BAR 0 is.
fn engine_doorbell(offset: u32) -> Option<usize> {
    let at = u64::from(offset).checked_sub(qdma::DOORBELLS)?;
    usize::try_from(at).ok().filter(|at| *at < doorbell::LEN)
}

#[cfg(test)]
mod tests;
