//! The protocol by itself: against itself over a bad network, against what Linux sends, and
//! against what nobody should send.

mod hostile;
mod linux;
mod simulation;

use std::net::{IpAddr, Ipv4Addr};
use std::time::Instant;

use sluice_verbs::transport::{MAD_BYTES, MadPath};
use sluice_verbs::types::Gid;

use super::machine::{Machine, Output};
use crate::address::Address;
use crate::channel::Key;
use crate::connector::Happening;
use crate::message::{ConnParams, Message, PrivateData, Request, SidrRequest};

const TCP: u16 = 0x106;
const UDP: u16 = 0x111;
const MTU: u8 = 5;
type Mad = [u8; MAD_BYTES];

fn address(host: u8, port: u16) -> Address {
    Address::new(IpAddr::from(Ipv4Addr::new(192, 0, 2, host)), port)
}

fn gid(host: u8) -> Gid {
    Gid(address(host, 0).gid())
}

fn path(source: u8, destination: u8) -> MadPath {
    MadPath {
        source: gid(source),
        destination: gid(destination),
        interface: 0,
    }
}

fn private(bytes: &[u8]) -> PrivateData {
    PrivateData::new(bytes, 255).expect("short enough")
}

fn params(qp_num: u32) -> ConnParams {
    ConnParams {
        qp_num,
        psn: 0x11_2233,
        responder_resources: 4,
        initiator_depth: 3,
        flow_control: 1,
        retry_count: 7,
        rnr_retry_count: 6,
        ..ConnParams::default()
    }
}

/// From host 1 to host 2.
fn request(qp_num: u32) -> Message {
    Message::Request(Request {
        port_space: TCP,
        qp_type: 2,
        mtu: 3,
        tos: 0x20,
        source: address(1, 40_000),
        destination: address(2, 7471),
        params: params(qp_num),
        private: private(b"hello"),
    })
}

fn lookup() -> Message {
    Message::SidrRequest(SidrRequest {
        port_space: UDP,
        source: address(1, 40_000),
        destination: address(2, 7471),
        private: private(b"who"),
    })
}

fn reply(qp_num: u32) -> Message {
    Message::Reply {
        params: params(qp_num),
        private: private(b"welcome"),
    }
}

fn reject(reason: u16) -> Message {
    Message::Reject {
        reason,
        private: private(b""),
    }
}

/// What a machine has put out.
#[derive(Default)]
struct Out {
    sent: Vec<(MadPath, Mad)>,
    passed_on: Vec<Option<u16>>,
    events: Vec<(Key, Happening)>,
}

fn drain(machine: &mut Machine) -> Out {
    let mut out = Out::default();
    while let Some(output) = machine.poll() {
        match output {
            Output::Send(_, path, mad) => out.sent.push((path, *mad)),
            Output::PassOn(tag, ..) => out.passed_on.push(tag),
            Output::Event(key, happening) => out.events.push((key, happening)),
        }
    }
    out
}

/// The one datagram that a machine has sent, and nothing else.
fn sent(machine: &mut Machine) -> Mad {
    let out = drain(machine);
    assert_eq!(
        (out.sent.len(), out.events.len(), out.passed_on.len()),
        (1, 0, 0)
    );
    out.sent[0].1
}

/// The one event, and nothing else.
fn event(machine: &mut Machine) -> Happening {
    let mut out = drain(machine);
    assert_eq!(
        (out.sent.len(), out.events.len()),
        (0, 1),
        "{:?}",
        out.events
    );
    out.events.remove(0).1
}

fn attribute(mad: &Mad) -> u16 {
    u16::from_be_bytes([mad[16], mad[17]])
}

const REQ: u16 = 0x10;
const MRA: u16 = 0x11;
const REJ: u16 = 0x12;
const REP: u16 = 0x13;
const RTU: u16 = 0x14;
const DREQ: u16 = 0x15;
const DREP: u16 = 0x16;
const SIDR_REP: u16 = 0x18;

/// Two machines, host 1 and host 2, between which every datagram is carried by hand.
struct Pair {
    now: Instant,
    one: Machine,
    two: Machine,
}

impl Pair {
    fn new() -> Pair {
        Pair {
            now: Instant::now(),
            one: Machine::new(0x0a01, 0x1111, MTU, 1),
            two: Machine::new(0x0b02, 0x2222, MTU, 2),
        }
    }

    /// Host 2 takes a datagram of host 1 that is no new request.
    fn give_two(&mut self, mad: &Mad) {
        let path = path(1, 2);
        assert!(self.two.received(self.now, &path, mad, false).is_none());
    }

    fn give_one(&mut self, mad: &Mad) {
        let path = path(2, 1);
        assert!(self.one.received(self.now, &path, mad, false).is_none());
    }

    /// Host 1 asks, host 2 has the request: their names, and the REQ.
    fn asked(&mut self, qp_num: u32) -> (u32, u32, Mad) {
        let active = self.one.open(1, path(1, 2)).unwrap();
        self.one.command(self.now, active, &request(qp_num));
        let req = sent(&mut self.one);
        let incoming = self.two.received(self.now, &path(1, 2), &req, false);
        let passive = self.two.admit(&incoming.unwrap(), 2).unwrap();
        (active, passive, req)
    }

    /// Host 2 has replied, host 1 knows: their names, and the REP.
    fn replied(&mut self) -> (u32, u32, Mad) {
        let (active, passive, _) = self.asked(7);
        self.two.command(self.now, passive, &reply(9));
        let rep = sent(&mut self.two);
        self.give_one(&rep);
        event(&mut self.one);
        (active, passive, rep)
    }

    fn established(&mut self) -> (u32, u32) {
        let (active, passive, _) = self.replied();
        self.one.command(self.now, active, &Message::ReadyToUse);
        let rtu = sent(&mut self.one);
        self.give_two(&rtu);
        event(&mut self.two);
        (active, passive)
    }
}
