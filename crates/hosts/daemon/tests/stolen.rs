//! Nobody gets a lane to a connection that is not his: whatever programs announce, close and use
//! again, and in whatever order, a lane joins the two ends of one connection, both of them open.

mod common;

use std::collections::HashMap;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::{PoisonError, RwLock};

use common::{Daemon, Program};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use rustix::net::{AddressFamily, SocketType, bind, connect, socket, sockopt};
use sluice_control::message::{FromDaemon, ToDaemon};
use sluice_sys::tcp;

/// Whoever starts a child, until that executes its program: it has the connections of all tests meanwhile, and what is
/// closed here is not closed.
static STARTING: RwLock<()> = RwLock::new(());

fn start() -> Daemon {
    let _turn = STARTING.write().unwrap_or_else(PoisonError::into_inner);
    Daemon::start(&[])
}

/// Connects from this very port; `None` where the kernel does not let it be used now.
fn connect_from(from: SocketAddr, to: SocketAddr) -> Option<TcpStream> {
    let family = if from.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    };
    let socket = socket(family, SocketType::STREAM, None).unwrap();
    sockopt::set_socket_reuseaddr(&socket, true).unwrap();
    bind(&socket, &from).ok()?;
    connect(&socket, &to).ok()?;
    Some(TcpStream::from(socket))
}

/// Closes with a reset: the port is free at once, and the other end is gone as well.
fn reset(socket: TcpStream) {
    sockopt::set_socket_linger(&socket, Some(std::time::Duration::ZERO)).unwrap();
}

fn is_established(socket: &TcpStream) -> bool {
    tcp::info(socket.as_raw_fd()).is_ok_and(|info| info.state == tcp::STATE_ESTABLISHED)
}

#[test]
fn an_end_announced_and_reset_from_every_port_gets_no_connection_of_others() {
    let daemon = start();
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let (thief, server, client) = (
            daemon.program("thief"),
            daemon.program("server"),
            daemon.program("client"),
        );
        let listener = TcpListener::bind(address).unwrap();
        let to = listener.local_addr().unwrap();
        let mut ports = Vec::new();
        for end in 0..200 {
            let stolen = TcpStream::connect(to).unwrap();
            ports.push(stolen.local_addr().unwrap());
            let (accepted, _) = listener.accept().unwrap();
            thief.announce(end, &stolen);
            // Never a word that it is over.
            reset(stolen);
            drop(accepted);
        }
        thief.settle();
        let mut kept = Vec::new();
        for (end, from) in ports.into_iter().enumerate() {
            // The victim's server is under sluice, and its client is or comes later.
            let Some(connected) = connect_from(from, to) else {
                continue;
            };
            let (accepted, _) = listener.accept().unwrap();
            server.announce(end as u32, &accepted);
            server.settle();
            server.assert_quiet();
            thief.assert_quiet();
            if end % 2 == 0 {
                client.announce(end as u32, &connected);
                let (lane, _) = server.lane();
                assert_eq!(lane.peer, client.id);
                assert_eq!(client.lane().0.peer, server.id);
            }
            kept.push((connected, accepted));
        }
        assert!(
            kept.len() > 10,
            "few ports could be used again: {}",
            kept.len()
        );
        thief.settle();
        thief.assert_quiet();
    }
}

#[test]
fn a_socket_that_was_connected_anew_is_not_what_was_announced() {
    let daemon = start();
    let (thief, server) = (daemon.program("thief"), daemon.program("server"));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = listener.local_addr().unwrap();
    // Others connect beside this test, and what they close keeps its port for a minute.
    let (_stolen, _elsewhere, connected) = (0..200)
        .find_map(|end| {
            let stolen = TcpStream::connect(to).unwrap();
            let from = stolen.local_addr().unwrap();
            let _ = listener.accept().unwrap();
            thief.announce(end, &stolen);
            thief.settle();
            // The same socket, with the same cookie, goes elsewhere (connect(2), AF_UNSPEC).
            disconnect(&stolen);
            connect(&stolen, &other.local_addr().unwrap()).unwrap();
            let elsewhere = other.accept().unwrap();
            Some((stolen, elsewhere, connect_from(from, to)?))
        })
        .expect("a port that is free");
    let (accepted, _) = listener.accept().unwrap();
    server.announce(0, &accepted);
    server.settle();
    server.assert_quiet();
    thief.settle();
    thief.assert_quiet();
    drop(connected);
}

fn disconnect(socket: &TcpStream) {
    rustix::net::connect_unspec(socket).unwrap();
}

/// What somebody does. Numbers choose among what there is.
#[derive(Clone, Debug)]
enum Step {
    /// From one of a few ports, so that they are used again and again.
    Connect {
        port: usize,
    },
    Announce {
        socket: usize,
        program: usize,
    },
    Close {
        socket: usize,
    },
    Reset {
        socket: usize,
    },
    HalfClose {
        socket: usize,
    },
    Disconnect {
        socket: usize,
    },
    /// What a program may forget to say.
    Release {
        program: usize,
        end: usize,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let socket = || 0..64_usize;
    let program = || 0..PROGRAMS;
    prop_oneof![
        4 => (0..PORTS).prop_map(|port| Step::Connect { port }),
        6 => (socket(), program()).prop_map(|(socket, program)| Step::Announce { socket, program }),
        1 => socket().prop_map(|socket| Step::Close { socket }),
        3 => socket().prop_map(|socket| Step::Reset { socket }),
        1 => socket().prop_map(|socket| Step::HalfClose { socket }),
        1 => socket().prop_map(|socket| Step::Disconnect { socket }),
        1 => (program(), socket()).prop_map(|(program, end)| Step::Release { program, end }),
    ]
}

const PROGRAMS: usize = 3;
const PORTS: usize = 3;

/// Sockets that are open, the connections that they were made for, and the programs.
struct World {
    programs: Vec<Program>,
    ends: Vec<u32>,
    listener: TcpListener,
    /// The last one of each, to be used again.
    ports: [Option<SocketAddr>; PORTS],
    sockets: Vec<(TcpStream, u32)>,
    connections: u32,
    /// The connection of a socket, by its cookie.
    of: HashMap<u64, u32>,
}

impl World {
    fn new(daemon: &Daemon) -> World {
        World {
            programs: (0..PROGRAMS).map(|_| daemon.program("anybody")).collect(),
            ends: vec![0; PROGRAMS],
            listener: TcpListener::bind("127.0.0.1:0").unwrap(),
            ports: [None; PORTS],
            sockets: Vec::new(),
            connections: 0,
            of: HashMap::new(),
        }
    }

    fn act(&mut self, step: &Step) {
        let chosen =
            |socket: usize| (!self.sockets.is_empty()).then(|| socket % self.sockets.len());
        match *step {
            Step::Connect { port } => self.connect(port),
            Step::Announce { socket, program } => {
                let Some(at) = chosen(socket) else { return };
                let end = self.ends[program];
                self.ends[program] += 1;
                self.programs[program].announce(end, &self.sockets[at].0);
            }
            Step::Close { socket } => {
                let Some(at) = chosen(socket) else { return };
                drop(self.sockets.swap_remove(at));
            }
            Step::Reset { socket } => {
                let Some(at) = chosen(socket) else { return };
                reset(self.sockets.swap_remove(at).0);
            }
            Step::HalfClose { socket } => {
                let Some(at) = chosen(socket) else { return };
                let _ = self.sockets[at].0.shutdown(std::net::Shutdown::Write);
            }
            Step::Disconnect { socket } => {
                let Some(at) = chosen(socket) else { return };
                let (socket, connection) = &mut self.sockets[at];
                disconnect(socket);
                self.of
                    .insert(tcp::cookie(socket.as_raw_fd()).unwrap(), u32::MAX);
                *connection = u32::MAX;
            }
            Step::Release { program, end } => {
                let end = end as u32 % self.ends[program].max(1);
                let release = ToDaemon::Release { end, generation: 1 };
                self.programs[program].client.send(&release, &[]).unwrap();
            }
        }
    }

    fn connect(&mut self, port: usize) {
        let to = self.listener.local_addr().unwrap();
        let connected = match self.ports[port] {
            Some(from) => connect_from(from, to),
            None => TcpStream::connect(to).ok(),
        };
        // In use, or not free yet.
        let Some(connected) = connected else { return };
        self.ports[port] = Some(connected.local_addr().unwrap());
        let (accepted, _) = self.listener.accept().unwrap();
        let connection = self.connections;
        self.connections += 1;
        for socket in [connected, accepted] {
            self.of
                .insert(tcp::cookie(socket.as_raw_fd()).unwrap(), connection);
            self.sockets.push((socket, connection));
        }
    }

    /// What sluiced has said meanwhile: lanes, by their places.
    fn lanes(&self) -> HashMap<(u32, u32), Vec<u64>> {
        let mut lanes: HashMap<_, Vec<u64>> = HashMap::new();
        for program in &self.programs {
            program.client.send(&ToDaemon::Ping, &[]).unwrap();
        }
        for program in &self.programs {
            loop {
                match common::next(&program.client).0 {
                    FromDaemon::Pong { .. } => break,
                    FromDaemon::Lane(lane) => {
                        let place = (lane.chunk, lane.lane);
                        lanes.entry(place).or_default().push(lane.cookie);
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
        // Somebody may have been told after his answer.
        for program in &self.programs {
            while let Some((message, _)) = program.client.receive().unwrap() {
                let FromDaemon::Lane(lane) = message else {
                    panic!("{message:?}")
                };
                let place = (lane.chunk, lane.lane);
                lanes.entry(place).or_default().push(lane.cookie);
            }
        }
        lanes
    }

    fn is_open(&self, cookie: u64) -> bool {
        let mut all = self.sockets.iter();
        all.any(|(socket, _)| {
            tcp::cookie(socket.as_raw_fd()) == Ok(cookie) && is_established(socket)
        })
    }
}

#[test]
fn a_lane_joins_the_two_ends_of_one_open_connection() {
    let daemon = start();
    let _nobody_starts = STARTING.read().unwrap_or_else(PoisonError::into_inner);
    let config = ProptestConfig {
        cases: 150,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let steps = prop::collection::vec(step(), 1..60);
    let all = TestRunner::new(config).run(&steps, |steps| {
        let mut world = World::new(&daemon);
        for step in &steps {
            world.act(step);
            for (place, cookies) in world.lanes() {
                prop_assert_eq!(cookies.len(), 2, "{:?}", place);
                prop_assert_ne!(cookies[0], cookies[1]);
                let connections = [world.of[&cookies[0]], world.of[&cookies[1]]];
                prop_assert_eq!(connections[0], connections[1], "after {:?}", step);
                prop_assert_ne!(connections[0], u32::MAX, "after {:?}", step);
                for cookie in cookies {
                    prop_assert!(world.is_open(cookie), "after {:?}", step);
                }
            }
        }
        prop_assert!(daemon.ping().is_ok());
        Ok(())
    });
    all.unwrap();
}
