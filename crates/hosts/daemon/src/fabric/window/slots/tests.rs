//! Hosts that share a window, and peers that say they do. Time and messages are the tests'.

use std::collections::HashMap;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use sluice_peering::config::window::Window as Choice;
use sluice_sys::unix::Fd;

use super::super::fake;
use super::super::pieces::Notice;
use super::super::server::Origin;
use super::*;
use crate::matching::ClientId;

mod succession;

const USER: u32 = 7;
const CLIENT: ClientId = 3;
/// The one that has no window.
const M: &str = "m";

/// All hosts, their memory, and what the one without it hears.
struct Lab {
    memory: Fd,
    id: [u64; 2],
    hosts: HashMap<&'static str, Windows>,
    now: Instant,
    /// Of which sessions: each has another secret.
    sessions: u8,
    heard: Vec<(&'static str, SlotProof)>,
}

impl Lab {
    fn new() -> Lab {
        let memory = fake::memory();
        Lab {
            id: id_of(&memory),
            memory,
            hosts: HashMap::new(),
            now: Instant::now(),
            sessions: 0,
            heard: Vec::new(),
        }
    }

    /// These have slots, in this order, and sessions with each other and with the one that has no window.
    fn with(names: &[&'static str]) -> Lab {
        let mut lab = Lab::new();
        for name in names {
            lab.start(name);
        }
        lab
    }

    fn start(&mut self, name: &'static str) {
        let path = format!("/proc/self/fd/{}", self.memory.as_raw_fd());
        let choice = Choice {
            path: path.into(),
            users: vec![USER],
        };
        let mut windows = Windows::new(&[choice], name, 4096);
        windows.program_came(CLIENT, USER);
        let others: Vec<&'static str> = self.hosts.keys().copied().collect();
        self.hosts.insert(name, windows);
        self.begin_session(name, M);
        for other in others {
            self.begin_session(name, other);
        }
        for _ in 0..100 {
            self.step();
            if !self.hosts[name].seats().is_empty() {
                return;
            }
        }
        panic!("{name} gets no slot");
    }

    /// As the daemons do when they have heard each other's hello.
    fn begin_session(&mut self, a: &'static str, b: &'static str) {
        self.sessions += 1;
        let pairs = [(a, b), (b, a)];
        for (here, there) in pairs {
            if let Some(windows) = self.hosts.get_mut(here) {
                windows.peer_up(&there.into(), Some(binding(self.sessions)));
            }
        }
        for (here, there) in pairs {
            self.say_seats(here, there);
        }
    }

    fn say_seats(&mut self, from: &'static str, to: &'static str) {
        let seats = self.hosts.get(from).map_or(Vec::new(), Windows::seats);
        if let Some(windows) = self.hosts.get_mut(to) {
            for seat in seats {
                windows.heard_seat(&from.into(), seat);
            }
        }
    }

    /// A moment passes; what is to be said arrives.
    fn step(&mut self) {
        self.now += Duration::from_millis(100);
        let names: Vec<&'static str> = self.hosts.keys().copied().collect();
        for from in &names {
            let windows = self.hosts.get_mut(from).expect("a host");
            if windows.turn(self.now) {
                for to in &names {
                    self.say_seats(from, to);
                }
            }
            let windows = self.hosts.get_mut(from).expect("a host");
            for (to, proof) in windows.take_proofs() {
                match self.hosts.get_mut(&*to) {
                    Some(windows) => windows.heard_proof(&(*from).into(), proof),
                    None => self.heard.push((from, proof)),
                }
            }
            self.say_notices(from);
        }
    }

    fn windows(&mut self, host: &str) -> &mut Windows {
        self.hosts.get_mut(host).expect("a host")
    }

    fn say_notices(&mut self, from: &str) {
        let name: PeerName = from.into();
        for notice in self.windows(from).take_notices() {
            match notice {
                Notice::Program(..) => {}
                Notice::Returned(to, piece, lane) => {
                    self.windows(&to).returned(&name, piece, lane);
                }
                Notice::Gone(to, client) => self.windows(&to).foreign_gone(&name, client),
                Notice::Withdrawn(to, piece) => self.windows(&to).withdrawn(&name, piece),
                Notice::Released(to, piece) => self.windows(&to).released(&name, piece),
            }
        }
    }

    /// What `host` believes: which slots are whose.
    fn holders(&self, host: &str) -> Vec<(u32, String)> {
        let shared = self.hosts[host].all[0].all().next().expect("memory");
        let holders = shared.holders();
        let mut holders: Vec<(u32, String)> = holders
            .map(|(slot, name)| (slot, name.to_string()))
            .collect();
        holders.sort();
        holders
    }

    fn slot(&self, host: &str) -> u32 {
        self.hosts[host].seats()[0].slot
    }

    fn may_share(&self, host: &str, peer: &str) -> bool {
        self.hosts[host].may_share(CLIENT, &peer.into())
    }

    /// Steps until both believe each other.
    fn settle(&mut self, a: &'static str, b: &'static str) {
        for _ in 0..100 {
            self.step();
            if self.may_share(a, b) && self.may_share(b, a) {
                return;
            }
        }
        panic!("{a} and {b} do not find each other");
    }

    /// The one without the window says to `host` that this slot is its own.
    fn claim(&mut self, host: &str, slot: u32) {
        let seat = Seat {
            id: self.id,
            slot,
            kernel: [9, 9],
        };
        let windows = self.hosts.get_mut(host).expect("a host");
        windows.heard_seat(&M.into(), seat);
    }

    fn prove(&mut self, host: &str, proof: SlotProof) {
        let windows = self.hosts.get_mut(host).expect("a host");
        windows.heard_proof(&M.into(), proof);
    }
}

fn id_of(memory: &Fd) -> WindowId {
    let shared = Shared::open(fake::same(memory), Origin::Server, "");
    shared.expect("a window").id()
}

fn binding(number: u8) -> Binding {
    Binding::new([number; 32])
}

#[test]
fn hosts_that_share_a_window_believe_each_other() {
    let mut lab = Lab::with(&["v", "b", "c"]);
    for (a, b) in [("v", "b"), ("v", "c"), ("b", "c")] {
        lab.settle(a, b);
    }
    let expected = |names: [&str; 2]| names.map(|name| (lab.slot(name), name.to_owned()));
    assert_eq!(lab.holders("v"), expected(["b", "c"]));
    assert_eq!(lab.holders("c"), expected(["v", "b"]));
}

#[test]
fn a_peer_without_the_window_takes_nobodys_place_in_it() {
    // Before the host of the slot comes, and when it is there.
    for is_late in [false, true] {
        let mut lab = Lab::with(&["v"]);
        if is_late {
            lab.start("b");
            lab.settle("v", "b");
        }
        let lie = |lab: &mut Lab| {
            for slot in [1, 2, 0, u32::MAX, 1] {
                lab.claim("v", slot);
                for code in [[0; 32], [9; 32]] {
                    let id = lab.id;
                    lab.prove("v", SlotProof { id, slot, code });
                }
            }
            assert!(!lab.may_share("v", M));
        };
        for _ in 0..30 {
            lie(&mut lab);
            lab.step();
        }
        if !is_late {
            lab.start("b");
        }
        for _ in 0..60 {
            lie(&mut lab);
            lab.step();
        }
        assert_eq!(lab.slot("b"), 1);
        assert_eq!(lab.holders("v"), [(1, "b".to_owned())], "{is_late}");
        assert!(lab.may_share("v", "b") && lab.may_share("b", "v"));
    }
}

#[test]
fn a_proof_that_was_passed_on_or_back_is_worth_nothing() {
    let mut lab = Lab::with(&["v", "b"]);
    let (v, b) = (lab.slot("v"), lab.slot("b"));
    // It says to each that it is the other one, and hears what each says to the other one.
    for _ in 0..60 {
        lab.claim("v", b);
        lab.claim("b", v);
        for (from, proof) in lab.heard.clone() {
            let other = if from == "v" { "b" } else { "v" };
            for host in [from, other] {
                for slot in [v, b] {
                    lab.prove(host, SlotProof { slot, ..proof });
                }
            }
        }
        lab.step();
    }
    assert!(lab.heard.iter().any(|(from, _)| *from == "v"));
    assert!(lab.heard.iter().any(|(from, _)| *from == "b"));
    assert_eq!(lab.holders("v"), [(b, "b".to_owned())]);
    assert_eq!(lab.holders("b"), [(v, "v".to_owned())]);
}

#[test]
fn a_peer_is_believed_in_the_session_in_which_it_has_proven_its_slot() {
    let mut lab = Lab::with(&["v", "b"]);
    lab.settle("v", "b");
    // Somebody else has the name now, and says nothing.
    let windows = lab.hosts.get_mut("v").expect("a host");
    windows.peer_up(&"b".into(), Some(binding(200)));
    for _ in 0..20 {
        lab.step();
        assert!(!lab.may_share("v", "b"));
    }
    // Nor does a claim help.
    let seat = lab.hosts["b"].seats()[0];
    let windows = lab.hosts.get_mut("v").expect("a host");
    windows.heard_seat(&"b".into(), seat);
    lab.step();
    assert!(!lab.may_share("v", "b"));
    // The host itself has another session.
    lab.begin_session("v", "b");
    lab.settle("v", "b");
}

#[test]
fn a_daemon_that_proves_nothing_shares_no_window() {
    let mut lab = Lab::with(&["v", "b"]);
    for (here, there) in [("v", "b"), ("b", "v")] {
        let windows = lab.hosts.get_mut(here).expect("a host");
        windows.peer_up(&there.into(), None);
        let _ = windows.take_proofs();
    }
    lab.say_seats("v", "b");
    lab.say_seats("b", "v");
    for _ in 0..60 {
        lab.step();
    }
    assert!(lab.holders("v").is_empty() && lab.holders("b").is_empty());
}

/// A host that has the memory can read all of it; what it reads gives it no slot that has a holder.
#[test]
fn two_peers_never_hold_one_slot() {
    let mut lab = Lab::with(&["v", "b"]);
    lab.settle("v", "b");
    let (v, b) = (lab.slot("v"), lab.slot("b"));
    let windows = lab.hosts.get_mut("v").expect("a host");
    windows.peer_up(&M.into(), Some(binding(99)));
    let shared = windows.all[0].all().next().expect("memory");
    let link = &shared.held.as_ref().expect("a slot").links[&b].link;
    let (ours, theirs) = link.generations().expect("it is up");
    let said = statement(lab.id, (b, theirs), (v, ours));
    let code = binding(99).code(&said);
    lab.claim("v", b);
    let id = lab.id;
    lab.prove("v", SlotProof { id, slot: b, code });
    assert_eq!(lab.holders("v"), [(b, "b".to_owned())]);
    assert!(!lab.may_share("v", M) && lab.may_share("v", "b"));
}

/// What a peer without the window says writes nothing to the log, however often it says it.
#[test]
fn a_claim_that_is_repeated_says_nothing_to_people() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    let mut lab = Lab::with(&["v", "b"]);
    lab.settle("v", "b");
    let written = Arc::new(AtomicUsize::new(0));
    let counter = written.clone();
    let log = tracing_subscriber::fmt()
        .with_writer(move || {
            counter.fetch_add(1, Ordering::Relaxed);
            std::io::sink()
        })
        .finish();
    tracing::subscriber::with_default(log, || {
        for _ in 0..1000 {
            lab.claim("v", 1);
            lab.claim("v", 2);
        }
        let seat = lab.hosts["b"].seats()[0];
        let windows = lab.hosts.get_mut("v").expect("a host");
        let _ = windows.take_proofs();
        for _ in 0..1000 {
            windows.heard_seat(&"b".into(), seat);
        }
        assert!(windows.take_proofs().is_empty(), "nor to the peer");
    });
    assert_eq!(written.load(Ordering::Relaxed), 0);
    assert!(lab.may_share("v", "b"));
}
