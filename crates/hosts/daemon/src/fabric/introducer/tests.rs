//! Two daemons in one process, and peers that lie.

use std::collections::HashMap;

use sluice_fabric::message::LaneNumber;
use sluice_fabric::wire::Remote;
use sluice_peering::config::Network;
use sluice_shmem::parking::PARKING_BYTES;
use sluice_sys::memfd;

use super::*;
use crate::fabric::words::SEVERAL_VERSION;
use crate::matching::Domain;

mod comparing;
mod direct;
mod hostile;
mod several;

#[derive(Default)]
struct ParkingTables(
    HashMap<ClientId, Arc<ForeignParkingTable>>,
    Gone,
    direct::Shared,
);

/// The cookies of sockets that were closed without a word.
type Gone = std::collections::HashSet<u64>;

impl Programs for ParkingTables {
    fn parking(&mut self, client: ClientId) -> Result<Arc<ForeignParkingTable>, Errno> {
        if let Some(parking) = self.0.get(&client) {
            return Ok(parking.clone());
        }
        let file = memfd::create(c"parking")?;
        memfd::set_len(file.raw(), PARKING_BYTES as u64)?;
        let parking = Arc::new(ForeignParkingTable::map(&file)?);
        self.0.insert(client, parking.clone());
        Ok(parking)
    }

    fn is_here(&self, announced: &Announced, _: Option<Numbers>) -> bool {
        !self.1.contains(&announced.cookie)
    }
}

struct Daemon {
    introducer: Introducer,
    parking_tables: ParkingTables,
    /// The other one, by the name it has here.
    peer: PeerName,
    given: Vec<GivenLane>,
    dropped: Vec<&'static str>,
    commands: Vec<Command>,
    /// Who was told each of them.
    carriers: Vec<usize>,
    direct: Vec<GivenDirect>,
    /// What it takes for the time.
    now: Instant,
    version: u16,
}

impl Daemon {
    fn new(life: u64, peer: &str, address: &str) -> Self {
        Self::with_carriers(life, (peer, address), 1, SEVERAL_VERSION)
    }

    /// With so many carriers, and a peer of whom it knows that it speaks this version.
    fn with_carriers(
        life: u64,
        (peer, address): (&str, &str),
        carriers: usize,
        version: u16,
    ) -> Self {
        let mut introducer = Introducer::new(Life(life), Memory::new(4096, 100), carriers);
        let peer: PeerName = peer.into();
        let address = Network::single(address.parse().expect("an address"));
        introducer.peer_up(&peer, vec![address], version);
        Self {
            introducer,
            parking_tables: ParkingTables::default(),
            peer,
            given: Vec::new(),
            dropped: Vec::new(),
            commands: Vec::new(),
            carriers: Vec::new(),
            direct: Vec::new(),
            now: Instant::now(),
            version,
        }
    }

    fn announce(&mut self, end: u32, local: &str, peer: &str) {
        self.announce_numbered(end, (local, peer), None);
    }

    fn announce_numbered(
        &mut self,
        end: u32,
        (local, peer): (&str, &str),
        numbers: Option<Numbers>,
    ) {
        let announced = Announced {
            key: EndKey { client: 7, end },
            generation: 1,
            tuple: Tuple {
                local: local.parse().expect("an address"),
                peer: peer.parse().expect("an address"),
            },
            domain: Domain {
                netns: 1,
                interface: 0,
            },
            cookie: u64::from(end),
        };
        self.introducer
            .announced(announced, numbers, &mut self.parking_tables);
    }

    fn answer(&mut self) {
        self.introducer.answer(usize::MAX, &self.parking_tables);
    }

    fn hear(&mut self, word: &Word) {
        let name = self.peer.clone();
        self.introducer
            .heard(&name, &word.encode(), &mut self.parking_tables, self.now);
    }

    /// The peer has another session, and says this first.
    fn hear_in_new_session(&mut self, word: &Word) {
        let (name, now) = (self.peer.clone(), self.now);
        let addresses = self.introducer.peers[&name].addresses.clone();
        self.introducer.peer_down(&name, now);
        self.introducer.peer_up(&name, addresses, self.version);
        self.hear(word);
    }

    /// Does what is to be done, as the carrier would; what is to be said comes back.
    fn act(&mut self) -> Vec<Word> {
        let mut words = Vec::new();
        loop {
            let actions = self.introducer.take_actions();
            self.given.extend(self.introducer.take_given());
            self.direct.extend(self.introducer.take_given_direct());
            if actions.is_empty() {
                return words;
            }
            for action in actions {
                match action {
                    Action::Say(_, word) => words.push(word),
                    Action::Seek { .. } | Action::Forget(_) => {}
                    Action::Drop(_, why) => self.dropped.push(why),
                    Action::Carry(carrier, Command::OpenLane { token, .. }) => {
                        let half = half(token.0 as u32);
                        let report = Report::LaneOpened { token, half };
                        self.introducer.carried(carrier, report, self.now);
                    }
                    Action::EndDirect(lane, ended) => {
                        self.parking_tables.2.ended.push((lane, ended))
                    }
                    Action::Carry(carrier, command) => {
                        self.carriers.push(carrier);
                        self.commands.push(command);
                    }
                }
            }
        }
    }
}

fn half(number: u32) -> Far {
    Far {
        number: LaneNumber(number),
        ring: Remote {
            address: 1 << 40,
            rkey: 5,
        },
        ring_bytes: 4096,
    }
}

const A: &str = "10.0.0.1";
const B: &str = "10.0.0.2";

fn two() -> [Daemon; 2] {
    let mut both = [Daemon::new(1, "b", B), Daemon::new(2, "a", A)];
    settle(&mut both);
    both
}

/// Until nobody has anything to say.
fn settle(both: &mut [Daemon; 2]) {
    for _ in 0..50 {
        let mut is_quiet = true;
        for from in 0..2 {
            for word in both[from].act() {
                is_quiet = false;
                both[1 - from].hear(&word);
            }
        }
        if is_quiet {
            return;
        }
    }
    panic!("they never stop");
}

#[test]
fn two_ends_get_one_lane_whoever_is_first() {
    for first in 0..2 {
        let mut both = two();
        let ends = [
            ("10.0.0.1:4000", "10.0.0.2:80"),
            ("10.0.0.2:80", "10.0.0.1:4000"),
        ];
        for host in [first, 1 - first] {
            both[host].announce(9, ends[host].0, ends[host].1);
            settle(&mut both);
        }
        for daemon in &both {
            assert_eq!(daemon.given.len(), 1);
            assert_eq!(daemon.given[0].announced.cookie, 9);
            let connected = |it: &&Command| matches!(it, Command::ConnectLane { .. });
            assert_eq!(daemon.commands.iter().filter(connected).count(), 1);
            assert!(daemon.dropped.is_empty());
            assert_eq!(daemon.introducer.lanes().0, 1);
        }
    }
}

#[test]
fn ends_of_different_connections_get_none() {
    let mut both = two();
    both[0].announce(1, "10.0.0.1:4000", "10.0.0.2:80");
    both[1].announce(1, "10.0.0.2:80", "10.0.0.1:4001");
    settle(&mut both);
    assert!(both.iter().all(|daemon| daemon.given.is_empty()));
}

#[test]
fn a_peer_speaks_for_its_own_addresses_only() {
    let mut both = two();
    both[0].announce(1, "10.0.0.1:4000", "9.0.0.3:80");
    settle(&mut both);
    // The daemon of 10.0.0.2 claims an end of 9.0.0.3, for which ours would begin a lane.
    let tuple = Tuple {
        local: "9.0.0.3:80".parse().expect("an address"),
        peer: "10.0.0.1:4000".parse().expect("an address"),
    };
    both[0].hear(&Word::End {
        token: Token(5),
        tuple,
        numbers: None,
    });
    assert_eq!(both[0].act(), []);
    assert_eq!(both[0].introducer.lanes().0, 0);
    // And gives a lane to it.
    both[0].hear(&Word::Lane {
        yours: Token(1),
        mine: Token(5),
        at: 0,
        far: half(3),
    });
    let said = both[0].act();
    assert_eq!(said, [Word::NoLane { yours: Token(5) }]);
    assert!(both[0].given.is_empty());
}

#[test]
fn a_connection_gets_one_lane() {
    let mut both = two();
    both[0].announce(1, "10.0.0.1:4000", "10.0.0.2:80");
    both[1].announce(1, "10.0.0.2:80", "10.0.0.1:4000");
    settle(&mut both);
    both[0].hear(&Word::Lane {
        yours: Token(1),
        mine: Token(1),
        at: 0,
        far: half(8),
    });
    let _ = both[0].act();
    assert_eq!(both[0].dropped.len(), 1);
    assert_eq!(both[0].given.len(), 1);
}

#[test]
fn lanes_of_a_daemon_that_was_started_again_are_given_up() {
    let mut both = two();
    both[0].hear_in_new_session(&Word::Hello { life: Life(77) });
    let _ = both[0].act();
    assert!(
        both[0]
            .commands
            .iter()
            .any(|it| matches!(it, Command::LoseLink { link: LinkId(0) }))
    );
}

#[test]
fn closed_connections_leave_nothing() {
    let mut both = two();
    both[0].announce(1, "10.0.0.1:4000", "10.0.0.2:80");
    both[1].announce(1, "10.0.0.2:80", "10.0.0.1:4000");
    settle(&mut both);
    for daemon in &mut both {
        daemon.introducer.program_gone(7);
        let _ = daemon.act();
        daemon
            .introducer
            .carried(0, Report::LaneOver { token: Token(1) }, Instant::now());
        assert_eq!(daemon.introducer.lanes().0, 0);
    }
    // The other one has closed before it heard of the lane.
    let mut both = two();
    both[0].announce(1, "10.0.0.1:4000", "10.0.0.2:80");
    both[1].announce(1, "10.0.0.2:80", "10.0.0.1:4000");
    both[0].introducer.program_gone(7);
    settle(&mut both);
    for daemon in &mut both {
        daemon
            .introducer
            .carried(0, Report::LaneOver { token: Token(1) }, Instant::now());
        assert_eq!(daemon.introducer.lanes().0, 0);
        assert!(daemon.given.is_empty());
    }
}

/// Which lanes the carrier was told to give up, and which ones programs are done with.
fn ended(daemon: &Daemon) -> [Vec<u32>; 2] {
    let mut ended = [Vec::new(), Vec::new()];
    for command in &daemon.commands {
        match command {
            Command::DeclineLane { number } => ended[0].push(number.0),
            Command::ProgramGone { number } => ended[1].push(number.0),
            _ => {}
        }
    }
    ended
}

#[test]
fn a_lane_whose_other_half_was_never_used_ends_whoever_closes_first() {
    // Host 1, whose address is the greater one, has opened its half, and host 0 has joined it, when
    // the program of host 1 closes before it has heard of that.
    for is_closed_at_both in [false, true] {
        let mut both = two();
        both[0].announce(1, "10.0.0.1:4000", "10.0.0.2:80");
        both[1].announce(1, "10.0.0.2:80", "10.0.0.1:4000");
        for from in [0, 1] {
            for word in both[from].act() {
                both[1 - from].hear(&word);
            }
        }
        for word in both[1].act() {
            both[0].hear(&word);
        }
        let to_1 = both[0].act();
        assert!(matches!(to_1[..], [Word::Lane { .. }]), "{to_1:?}");
        assert_eq!(both[0].given.len(), 1);
        both[1].introducer.program_gone(7);
        if is_closed_at_both {
            both[0].introducer.program_gone(7);
        }
        for word in to_1 {
            both[1].hear(&word);
        }
        settle(&mut both);
        assert_eq!(ended(&both[1]), [vec![1], vec![1]]);
        let gone = if is_closed_at_both { vec![1] } else { vec![] };
        assert_eq!(ended(&both[0]), [vec![1], gone]);
        assert!(both[1].given.is_empty());
    }
}

/// As many turnarounds as take an end to ask, at host 0.
fn asks(both: &mut [Daemon; 2]) -> bool {
    let key = EndKey { client: 7, end: 1 };
    let may_come = both[0].introducer.may_come(key);
    settle(both);
    assert!(both[1].introducer.questions() > 0 || !may_come);
    both[1].answer();
    settle(both);
    may_come
}

#[test]
fn an_end_whose_other_one_is_nobodys_is_bypassed() {
    let mut both = two();
    both[0].announce(1, "10.0.0.1:4000", "10.0.0.2:80");
    settle(&mut both);
    assert!(asks(&mut both));
    let alone = both[0].introducer.take_alone();
    let key = EndKey { client: 7, end: 1 };
    assert_eq!(alone.iter().map(|it| it.key).collect::<Vec<_>>(), [key]);
    assert!(!asks(&mut both), "it knows");
    // The program has not let it go yet, and the other end is announced after all.
    both[1].announce(1, "10.0.0.2:80", "10.0.0.1:4000");
    settle(&mut both);
    assert!(both.iter().all(|daemon| daemon.given.len() == 1));
    assert!(both[0].introducer.may_come(key));
}

#[test]
fn an_end_whose_other_one_is_on_its_way_is_not_bypassed() {
    let mut both = two();
    both[0].announce(1, "10.0.0.1:4000", "10.0.0.2:80");
    settle(&mut both);
    let key = EndKey { client: 7, end: 1 };
    assert!(both[0].introducer.may_come(key));
    settle(&mut both);
    // The question is there; what the program has sent before is read only now.
    both[1].announce(1, "10.0.0.2:80", "10.0.0.1:4000");
    both[1].answer();
    settle(&mut both);
    assert!(both[0].introducer.take_alone().is_empty());
    assert!(both.iter().all(|daemon| daemon.given.len() == 1));
}

#[test]
fn an_end_waits_for_a_peer_that_has_just_come() {
    let mut daemon = Daemon::new(1, "b", "10.0.0.9");
    daemon.announce(1, "10.0.0.1:4000", "10.0.0.2:80");
    let key = EndKey { client: 7, end: 1 };
    assert!(!daemon.introducer.may_come(key));
    let address = "10.0.0.2".parse().expect("an address");
    assert_eq!(daemon.introducer.unknown_host(key), Some(address));
    // It has not said hello yet.
    let name: PeerName = "c".into();
    let addresses = vec![Network::single(address)];
    daemon.introducer.peer_up(&name, addresses, SEVERAL_VERSION);
    assert!(daemon.introducer.may_come(key));
    daemon.introducer.peer_down(&name, Instant::now());
    assert!(!daemon.introducer.may_come(key));
}

#[test]
fn ends_that_get_no_lane_are_bypassed() {
    let mut both = [Daemon::new(1, "b", B), Daemon::new(2, "a", A)];
    // The second has no room.
    both[1].introducer.memory = Memory::new(4096, 0);
    settle(&mut both);
    both[0].announce(1, "10.0.0.1:4000", "10.0.0.2:80");
    both[1].announce(1, "10.0.0.2:80", "10.0.0.1:4000");
    settle(&mut both);
    let key = EndKey { client: 7, end: 1 };
    for daemon in &mut both {
        assert!(daemon.given.is_empty());
        assert!(!daemon.introducer.may_come(key));
    }
}

#[test]
fn a_peer_asks_for_its_own_addresses_only_and_not_for_ever() {
    let mut both = two();
    let question = |local: &str| Word::Ask {
        token: Token(9),
        tuple: Tuple {
            local: local.parse().expect("an address"),
            peer: "10.0.0.1:1".parse().expect("an address"),
        },
        numbers: None,
    };
    both[0].hear(&question("10.0.0.3:1"));
    assert_eq!(both[0].introducer.questions(), 0);
    for _ in 0..2 * questions::QUESTIONS_MAX {
        both[0].hear(&question("10.0.0.2:1"));
    }
    both[0].answer();
    assert_eq!(both[0].act().len(), questions::QUESTIONS_MAX);
}

#[test]
fn an_end_whose_socket_is_gone_is_nobodys_other_end() {
    // Whoever of the two begins, and when its socket goes: before the other end is announced, or
    // while the lane is being made.
    for stale in 0..2 {
        for closes_late in [false, true] {
            let mut both = two();
            let ends = [
                ("10.0.0.1:4000", "10.0.0.2:80"),
                ("10.0.0.2:80", "10.0.0.1:4000"),
            ];
            both[stale].announce(66, ends[stale].0, ends[stale].1);
            if !closes_late {
                both[stale].parking_tables.1.insert(66);
            }
            settle(&mut both);
            both[1 - stale].announce(5, ends[1 - stale].0, ends[1 - stale].1);
            if closes_late {
                // Said, and not heard yet.
                let said: Vec<Word> = both[1 - stale].act();
                both[stale].parking_tables.1.insert(66);
                for word in said {
                    both[stale].hear(&word);
                }
            }
            settle(&mut both);
            assert!(both[stale].given.is_empty(), "{stale} {closes_late}");
            // The right end comes, and both get a lane; where one had begun, it is over.
            if closes_late {
                let key = EndKey { client: 7, end: 5 };
                both[1 - stale].introducer.released(key);
                settle(&mut both);
                both[1 - stale].announce(6, ends[1 - stale].0, ends[1 - stale].1);
            }
            both[stale].announce(7, ends[stale].0, ends[stale].1);
            settle(&mut both);
            assert_eq!(both[stale].given.len(), 1, "{stale} {closes_late}");
            assert_eq!(both[stale].given[0].announced.key.end, 7);
            assert!(both.iter().all(|daemon| daemon.dropped.is_empty()));
        }
    }
}
