//! Honest programs, and one whose queue pair is connected to a liar's.
#![allow(dead_code)]

use std::sync::Arc;

use sluice_transport_window::WindowTransport;
use sluice_transport_window::frame::{Frame, What, flag};
use sluice_verbs::{AhAttr, Context, Device, Pd, QpState, QpType, Transport as _, WrOpcode};
use sluice_verbs_testing::{End, Memory, Remote, request, until};
use sluice_window::Kind;

use crate::common::Window;
use crate::liar::Liar;

pub const LEN: usize = 64 * 1024;

/// An honest program.
pub struct Honest {
    pub slot: u32,
    transport: Arc<WindowTransport>,
    context: Arc<Context>,
    pub pd: Arc<Pd>,
}

impl Honest {
    pub fn new(window: &Window) -> Honest {
        Honest::on(window.open())
    }

    pub fn on(transport: Arc<WindowTransport>) -> Honest {
        let slot = transport.slot();
        let device = Device::new("sluice0", transport.clone());
        let context = device.open().unwrap();
        let pd = context.alloc_pd().unwrap();
        Honest {
            slot,
            transport,
            context,
            pd,
        }
    }

    /// What it counts by that name.
    pub fn count(&self, name: &str) -> u64 {
        let counters = self.transport.report().counters;
        let found = counters.iter().find(|(its, _)| *its == name);
        found.unwrap_or_else(|| panic!("no {name}")).1
    }

    pub fn end(&self) -> End {
        self.end_of(QpType::Rc)
    }

    pub fn end_of(&self, kind: QpType) -> End {
        let cq = self.context.create_cq(1024, 0, None, 0).unwrap();
        End::new(&self.pd, kind, &cq, Memory::new(LEN))
    }
}

pub fn connect(end: &End, qpn: u32, psn: u32) {
    connect_with(end, qpn, psn, 2);
}

/// `rnr_retry`: how often what finds no receive is sent again; 7 for ever.
pub fn connect_with(end: &End, qpn: u32, psn: u32, rnr_retry: u8) {
    end.to_init();
    end.receive_from(&Remote {
        qpn,
        psn,
        path_mtu: 5,
        ah: AhAttr {
            port_num: 1,
            ..AhAttr::default()
        },
    });
    end.send_with(14, 2, rnr_retry);
}

/// Two honest programs that write and send to each other as long as they are asked to.
pub struct Honesty {
    pub ends: [End; 2],
    pub hosts: [Honest; 2],
    pub turn: u64,
}

impl Honesty {
    pub fn new(window: &Window) -> Honesty {
        let hosts = [Honest::new(window), Honest::new(window)];
        let ends = hosts.each_ref().map(Honest::end);
        connect(&ends[0], ends[1].qp.num(), ends[1].psn);
        connect(&ends[1], ends[0].qp.num(), ends[0].psn);
        let mut honesty = Honesty {
            ends,
            hosts,
            turn: 0,
        };
        honesty.works();
        honesty
    }

    pub fn works(&mut self) {
        self.turn += 1;
        let [from, to] = &self.ends;
        let seed = self.turn as u8;
        from.memory.fill(0, 20_000, seed);
        let sge = [from.sge(0, 20_000)];
        let at = to.memory.start as u64;
        let write = request(WrOpcode::RdmaWrite, 1, &sge, at, to.mr.rkey());
        assert_eq!(from.run(&write).status, 0);
        to.memory.check(0, 20_000, seed);
        to.post_recv(2, 30_000, 20_000);
        assert_eq!(from.run(&request(WrOpcode::Send, 3, &sge, 0, 0)).status, 0);
        assert_eq!(to.good().wr_id, 2);
        to.memory.check(30_000, 20_000, seed);
    }
}

/// An honest program whose queue pair is connected to a liar's, which answers to `qpn`.
pub struct Scene {
    pub honesty: Honesty,
    pub victim: End,
    pub liar: Liar,
    pub qpn: u32,
    pub host: Honest,
    _window: Window,
}

pub const PSN: u32 = 0xff_fffe;

impl Scene {
    pub fn new() -> Scene {
        Scene::of(Honest::new)
    }

    /// `host` opens the victim's.
    fn of(host: impl FnOnce(&Window) -> Honest) -> Scene {
        let window = Window::new(Kind::Coherent, 4);
        let honesty = Honesty::new(&window);
        let host = host(&window);
        let victim = host.end();
        let liar = Liar::meet(window.path(), host.slot);
        let qpn = liar.slot() << 19 | 77;
        connect(&victim, qpn, PSN);
        Scene {
            honesty,
            victim,
            liar,
            qpn,
            host,
            _window: window,
        }
    }

    pub fn joined() -> Scene {
        let mut scene = Scene::new();
        scene.liar.join();
        scene
    }

    /// The same; the victim's host notices when the liar's has died.
    pub fn joined_to_die() -> Scene {
        let mut scene = Scene::of(|window| Honest::on(window.open_alert()));
        scene.liar.join();
        scene
    }

    /// What the liar says to another queue pair of the victim's host.
    pub fn frame_to(&self, qpn: u32, opcode: WrOpcode) -> Frame {
        Frame {
            to: qpn,
            ..self.frame(What::Request, opcode)
        }
    }

    pub fn frame(&self, what: What, opcode: WrOpcode) -> Frame {
        Frame {
            flags: flag::RELIABLE,
            code: opcode as u16,
            to: self.victim.qp.num(),
            from: self.qpn,
            psn: PSN,
            addr: self.victim.memory.start as u64,
            rkey: self.victim.mr.rkey(),
            ..Frame::new(what)
        }
    }

    /// The liar's host is cut off, its queue pairs with it.
    pub fn ends_the_link(mut self) {
        until("the link's end", || self.liar.is_cut_off());
        until("the queue pair's end", || {
            self.victim.cq.poll_one();
            self.victim.qp.state() == QpState::Err
        });
        self.honesty.works();
    }

    /// Only the queue pair breaks.
    pub fn ends_the_queue_pair(&mut self) {
        until("the queue pair's end", || {
            assert!(!self.liar.is_cut_off());
            self.victim.cq.poll_one();
            self.victim.qp.state() == QpState::Err
        });
        self.honesty.works();
    }

    /// Nothing happens.
    pub fn passes(mut self) {
        for _ in 0..200 {
            assert!(!self.liar.is_cut_off());
            self.victim.cq.poll_one();
            std::thread::yield_now();
        }
        assert_eq!(self.victim.qp.state(), QpState::Rts);
        self.honesty.works();
    }
}
