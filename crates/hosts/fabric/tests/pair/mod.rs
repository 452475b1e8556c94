//! Two hosts in one process: two programs' ends of one TCP connection, each with a lane whose other
//! side is an engine, and links that deliver when the test says so.
#![allow(unsafe_code, dead_code)]

#[path = "../../../../sockets/lane/tests/common/mod.rs"]
pub mod common;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use common::Side;
use sluice_fabric::engine::Engine;
use sluice_fabric::halves::{Far, Near};
use sluice_fabric::message::LaneNumber;
use sluice_fabric::wire::{Full, LinkId, Local, Remote, Wire};
use sluice_lane::end::{Assignment, State};

pub const LINK: LinkId = LinkId(0);

/// What goes over a link.
#[derive(Debug)]
pub enum Item {
    Payload {
        bytes: Vec<u8>,
        address: u64,
        immediate: u32,
    },
    Message(Vec<u8>),
}

/// One direction of the link between the two hosts.
#[derive(Clone, Debug, Default)]
pub struct Cable {
    pub items: Rc<RefCell<VecDeque<Item>>>,
    /// Requests that fit.
    pub room: Rc<RefCell<usize>>,
}

impl Cable {
    fn put(&self, item: Item) -> Result<(), Full> {
        let mut items = self.items.borrow_mut();
        if items.len() >= *self.room.borrow() {
            return Err(Full);
        }
        items.push_back(item);
        Ok(())
    }
}

impl Wire for Cable {
    fn write(
        &mut self,
        _: LinkId,
        local: Local,
        remote: Remote,
        immediate: u32,
    ) -> Result<(), Full> {
        // SAFETY: the engine gives bytes of a mapped ring.
        let bytes = unsafe {
            std::slice::from_raw_parts(local.address.as_ptr(), local.bytes as usize).to_vec()
        };
        assert_eq!(remote.rkey, 7);
        self.put(Item::Payload {
            bytes,
            address: remote.address,
            immediate,
        })
    }

    fn send(&mut self, _: LinkId, message: &[u8]) -> Result<(), Full> {
        self.put(Item::Message(message.to_vec()))
    }
}

/// One host: a program's end and the daemon.
pub struct Host {
    pub program: Side,
    pub engine: Engine<Cable>,
    pub number: LaneNumber,
}

/// Both, and the time.
pub struct Pair {
    pub hosts: [Host; 2],
    pub now_ns: u64,
    /// What the daemons have not heard of each other's halves yet.
    unmet: [Option<Far>; 2],
}

impl Pair {
    /// A connection with a lane on either host, enabled by both programs.
    pub fn new(ring_bytes: u32) -> Self {
        Self::with_rings([ring_bytes; 2])
    }

    /// The same with rings of different sizes on the two hosts.
    pub fn with_rings(ring_bytes: [u32; 2]) -> Self {
        let mut pair = Self::strangers(ring_bytes, false);
        for host in 0..2 {
            pair.meet(host);
            assert!(
                pair.hosts[host].program.look().is_some(),
                "nothing keeps it from enabling"
            );
        }
        pair
    }

    /// The same, but neither program has enabled its lane, and neither daemon knows of the other's
    /// half yet: that comes by another way than the link, on which the one who knows may speak of
    /// the lane before, if it is eager.
    pub fn strangers(ring_bytes: [u32; 2], is_eager: bool) -> Self {
        let fds = common::sockets();
        let mut local = ring_bytes.map(common::Pair::announced);
        let spare = [local[0].b.fd, local[1].a.fd, local[0].a.fd, local[1].b.fd];
        local[0].a.fd = fds.0;
        local[1].b.fd = fds.1;
        spare.into_iter().for_each(common::close);
        // The program is side `number` of its chunk, the daemon the other.
        let make = |pair: &common::Pair, program: Side, daemon: Side| {
            let parking = program.parking;
            let chunk = pair.a.chunk();
            assert!(program.end.attach(
                program.generation,
                &Assignment {
                    chunk,
                    lane: 0,
                    side: program.number,
                    peer_parking: Some(daemon.parking),
                    own_parking: parking,
                    watchers: 0,
                    remote: true,
                    direct: false,
                    patient: false,
                },
            ));
            assert_eq!(program.end.state(), State::Attached);
            let cable = Cable::default();
            *cable.room.borrow_mut() = 64;
            let mut engine = Engine::new(cable, daemon.parking);
            if is_eager {
                engine.set_eager();
            }
            engine.link_up(LINK);
            let near = Near {
                chunk,
                lane: 0,
                side: daemon.number,
                parking: Some(parking),
                region: 1,
            };
            let number = engine.open(LINK, near).expect("room for a lane");
            Host {
                program,
                engine,
                number,
            }
        };
        let hosts = [
            make(&local[0], local[0].a, local[0].b),
            make(&local[1], local[1].b, local[1].a),
        ];
        let far = |host: &Host, ring_bytes| Far {
            number: host.number,
            ring: Remote {
                address: host.incoming_ring(),
                rkey: 7,
            },
            ring_bytes,
        };
        let fars = [far(&hosts[0], ring_bytes[0]), far(&hosts[1], ring_bytes[1])];
        Self {
            hosts,
            now_ns: 0,
            unmet: [Some(fars[1]), Some(fars[0])],
        }
    }

    /// The daemon of `host` hears of the other's half, if it has not.
    pub fn meet(&mut self, host: usize) {
        if let Some(far) = self.unmet[host].take() {
            let Host { engine, number, .. } = &mut self.hosts[host];
            engine
                .connect(*number, far, self.now_ns)
                .expect("a far lane");
        }
    }

    /// One turn of a daemon, and time passes.
    pub fn turn(&mut self, host: usize) {
        self.now_ns += 5_000;
        self.hosts[host].engine.turn(self.now_ns);
    }

    /// Delivers the next thing that `host` has sent; false if there is none.
    pub fn deliver(&mut self, host: usize) -> bool {
        let Some(item) = self.hosts[host].engine.wire.items.borrow_mut().pop_front() else {
            return false;
        };
        let to = &mut self.hosts[1 - host].engine;
        match item {
            Item::Payload {
                bytes,
                address,
                immediate,
            } => {
                // SAFETY: the address of the other daemon's ring, as an adapter would write there.
                unsafe {
                    std::ptr::copy_nonoverlapping(bytes.as_ptr(), address as *mut u8, bytes.len());
                }
                to.arrived(LINK, immediate, bytes.len() as u32, self.now_ns)
                    .expect("no violation");
            }
            Item::Message(message) => {
                to.heard(LINK, &message, self.now_ns).expect("no violation");
            }
        }
        true
    }

    /// Everything that the daemons would do in `ns`.
    pub fn run(&mut self, ns: u64) {
        let until = self.now_ns + ns;
        while self.now_ns < until {
            for host in 0..2 {
                self.turn(host);
                while self.deliver(host) {}
            }
        }
    }

    /// Both daemons have nothing left to do, and sleep.
    pub fn fall_asleep(&mut self) {
        self.run(1_000_000);
        assert!(self.fall_asleep_if_idle(), "something is left to do");
    }

    /// Both daemons are about to sleep. Whether they may.
    pub fn fall_asleep_if_idle(&mut self) -> bool {
        let may_sleep = |host: &mut Host| host.engine.announce_sleep();
        let each = self.hosts.each_mut().map(may_sleep);
        each == [true; 2]
    }

    /// They have slept for that long.
    pub fn wake_up(&mut self, ns: u64) {
        self.now_ns += ns;
        for host in &mut self.hosts {
            host.engine.withdraw_sleep(self.now_ns);
        }
    }

    /// The link fails, and what was under way on it is lost.
    pub fn cut(&mut self) {
        for host in &mut self.hosts {
            host.engine.wire.items.borrow_mut().clear();
            host.engine.link_down(LINK);
        }
    }

    /// There is a link again.
    pub fn mend(&mut self) {
        for host in &mut self.hosts {
            host.engine.link_up(LINK);
        }
    }
}

impl Host {
    /// Whether its daemon has to poll for the lane.
    pub fn has_lane_standing(&self) -> bool {
        self.engine.lanes().any(|lane| lane.is_standing())
    }

    /// The first byte of the ring that the program reads.
    fn incoming_ring(&self) -> u64 {
        let place = self.program.end.place().expect("a lane");
        let geometry = place.chunk.geometry();
        place.chunk.address() + geometry.ring_offset(place.lane, 1 - place.side)
    }
}
