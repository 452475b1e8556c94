//! A packet on its way into a port.

use sluice_packet::{Kept, Leaving, Port, SendError};
use sluice_planner::{Beside, Planner};
use sluice_wire::Headers;
use sluice_wire::extended::Syndrome;
use sluice_wire::opcode::{Operation, Position};

use crate::counters::count;
use crate::queue_pair::machine::{Machine, Outgoing};
use crate::shard::gate::Gate;

/// Sends one packet of a queue pair, as the planner says. An acknowledgement is kept back for what follows.
pub fn emit(
    ports: &mut [Box<dyn Port>],
    planner: &mut Planner<Kept>,
    gate: &Gate,
    flow: usize,
    machine: &mut Machine,
    outgoing: &Outgoing,
) {
    let transmit = &outgoing.transmit;
    let length = transmit.headers.bytes() + transmit.payload.length().next_multiple_of(4) as usize;
    let way = &outgoing.way;
    let bytes = transmit.link_bytes();
    let Some(port) = ports.get_mut(way.port) else {
        return;
    };
    let fill = &mut |into: &mut [u8]| machine.write(transmit, into);
    let put = if acknowledges(&transmit.headers) && Kept::takes(length) {
        Kept::new(&way.path, transmit.ecn, length, fill).map(|kept| {
            if let Some(before) = planner.keep(flow, way.port, bytes, kept) {
                put_alone(port.as_mut(), &before);
            }
        })
    } else {
        let (mut in_front, mut together) = (None, None);
        match planner.beside(flow, way.port, bytes, ends(&transmit.headers)) {
            Beside::Nothing => {}
            Beside::InFront(kept) => in_front = Some(kept),
            Beside::Together(kept) => together = Some(kept),
        }
        if let Some(kept) = in_front {
            put_alone(port.as_mut(), &kept);
        }
        let leaving = Leaving {
            path: &way.path,
            ecn: transmit.ecn,
            length,
            beside: together.as_ref(),
        };
        port.put(&leaving, fill)
    };
    match put {
        Ok(()) => {}
        Err(SendError::Nothing) => machine.gather_failed(transmit),
        // As if the network had lost it.
        Err(SendError::NoRoom | SendError::Unreachable | SendError::TooLong) => {
            count(&gate.counters.unreachable);
        }
    }
}

/// Puts an acknowledgement into a port that was kept back. Without room it is lost, as on a network.
pub fn put_alone(port: &mut dyn Port, kept: &Kept) {
    let _ = port.put(&kept.leaving(), &mut |into| kept.put(into));
}

/// Whether it is an acknowledgement that says nothing new when it comes twice: no NAK.
fn acknowledges(headers: &Headers) -> bool {
    headers.bth.opcode.operation() == Operation::Acknowledge
        && matches!(
            headers.aeth.map(|aeth| aeth.syndrome),
            Some(Syndrome::Ack(_))
        )
}

/// Whether a message, or an answer, is complete with the packet.
fn ends(headers: &Headers) -> bool {
    let opcode = headers.bth.opcode;
    match opcode.position() {
        Position::First | Position::Middle => false,
        // Each packet of a WRITE may be one by itself (`Config::single_writes`): the last one asks for an
        // answer.
        Position::Only if opcode.operation() == Operation::WriteOnly => headers.bth.ack_request,
        _ => true,
    }
}
