//! Two hosts, or three with a gateway: the stages of other suites, with the programs of a round on them.

use std::path::Path;
use std::process::Command;

use rustix::process::Signal;
use sluice_tests::fleet::Fleet;
use sluice_tests::hosts::{Pair, SIDES, Side};
use sluice_tests::random::Random;
use sluice_tests::stats::Totals;
use sluice_tests::suite::Verdict;

use crate::capture;
use crate::fabric::{Two, Way};
use crate::gateway::{At, Lab, PORT, outside};
use crate::stages::{Meeting, Stage, is_standin};
use crate::window;

/// The server is on the right host.
fn meeting_on_the_right(two: &Fleet<Pair>) -> Meeting {
    let address = two.address(Side::Right).to_string();
    Meeting {
        listen: address.clone(),
        connect: address,
        port: 0,
    }
}

fn replace_daemon(two: &mut Fleet<Pair>, random: &mut Random) -> Verdict {
    let side = SIDES[random.below(2) as usize];
    two.end(side, Signal::KILL)?;
    two.start(side)
}

/// A process that shuts a full socket down, reads what is there and closes never opens its window again (Linux,
/// tcp_cleanup_rbuf). Its peer hears of that when the socket in FIN-WAIT-2 is forgotten, and a round waits for it.
fn forget_closed_soon(two: &Fleet<Pair>) -> Verdict {
    for side in SIDES {
        two.host(side).write_setting("ipv4/tcp_fin_timeout", "5")?;
    }
    Ok(())
}

/// What both daemons have logged and say of their programs' connections.
fn describe(two: &Fleet<Pair>) -> String {
    let states = SIDES.map(|side| match two.status(side) {
        Ok(status) => format!(
            "--- processes of {}: {:#}",
            side.name(),
            status["processes"]
        ),
        Err(problem) => format!("--- {} does not answer: {problem}", side.name()),
    });
    format!("{}\n{}", two.describe(), states.join("\n"))
}

/// Two hosts with RoCE in UDP between them.
pub struct Fabric(Two);

impl Fabric {
    pub fn new() -> Verdict<Fabric> {
        let way = Way {
            device: "roce-udp",
            family: 4,
            faults: false,
        };
        let two = way.set_up()?;
        forget_closed_soon(&two)?;
        Ok(Fabric(two))
    }
}

impl Stage for Fabric {
    fn dir(&self) -> &Path {
        self.0.dir()
    }

    fn meeting(&self) -> Meeting {
        meeting_on_the_right(&self.0)
    }

    fn server(&self, program: &Path) -> Command {
        self.0.program(Side::Right, !is_standin(), program)
    }

    fn client(&self, program: &Path) -> Command {
        self.0.program(Side::Left, !is_standin(), program)
    }

    fn hurt_daemon(&mut self, random: &mut Random) -> Verdict {
        replace_daemon(&mut self.0, random)
    }

    /// Connections with bytes in a ring break (docs/limitations.md).
    fn cuts_with_daemon(&self) -> bool {
        true
    }

    fn totals(&self) -> Verdict<Totals> {
        self.0.totals()
    }

    fn describe(&self) -> String {
        describe(&self.0)
    }
}

/// Two hosts that share a window.
pub struct Window(window::Stage);

impl Window {
    pub fn new() -> Verdict<Window> {
        let stage = window::Stage::new(&["root"])?;
        forget_closed_soon(&stage.two)?;
        Ok(Window(stage))
    }
}

impl Stage for Window {
    fn dir(&self) -> &Path {
        self.0.two.dir()
    }

    fn meeting(&self) -> Meeting {
        meeting_on_the_right(&self.0.two)
    }

    fn server(&self, program: &Path) -> Command {
        self.0.two.program(Side::Right, !is_standin(), program)
    }

    fn client(&self, program: &Path) -> Command {
        self.0.two.program(Side::Left, !is_standin(), program)
    }

    fn hurt_daemon(&mut self, random: &mut Random) -> Verdict {
        replace_daemon(&mut self.0.two, random)?;
        self.0.await_window()
    }

    /// Those that have no place in the window go by the fabric.
    fn cuts_with_daemon(&self) -> bool {
        true
    }

    fn totals(&self) -> Verdict<Totals> {
        self.0.two.totals()
    }

    fn describe(&self) -> String {
        describe(&self.0.two)
    }
}

/// Two hosts whose daemons capture what nothing is preloaded into.
pub struct Captured(capture::Two);

impl Captured {
    pub fn new() -> Verdict<Captured> {
        let two = capture::Two::new(4)?;
        forget_closed_soon(&two.fleet)?;
        Ok(Captured(two))
    }

    fn program(&self, side: Side, program: &Path) -> Command {
        if is_standin() {
            self.0.fleet.host(side).command(program)
        } else {
            self.0.program(side, program, &[])
        }
    }
}

impl Stage for Captured {
    fn dir(&self) -> &Path {
        self.0.fleet.dir()
    }

    fn meeting(&self) -> Meeting {
        meeting_on_the_right(&self.0.fleet)
    }

    fn server(&self, program: &Path) -> Command {
        self.program(Side::Right, program)
    }

    fn client(&self, program: &Path) -> Command {
        self.program(Side::Left, program)
    }

    fn hurt_daemon(&mut self, random: &mut Random) -> Verdict {
        replace_daemon(&mut self.0.fleet, random)
    }

    fn cuts_with_daemon(&self) -> bool {
        true
    }

    /// What carries the bytes is the daemon's, and counts connections.
    fn has_totals(&self) -> bool {
        false
    }

    fn totals(&self) -> Verdict<Totals> {
        let counts = self.0.counts(Side::Left)?;
        Ok(Totals {
            connections: counts.captured,
            ..Totals::default()
        })
    }

    fn describe(&self) -> String {
        describe(&self.0.fleet)
    }
}

/// A server on a node that is published at a gateway, and clients outside.
pub struct Gateway(Lab);

impl Gateway {
    pub fn new() -> Verdict<Gateway> {
        Ok(Gateway(Lab::new()?))
    }
}

impl Stage for Gateway {
    fn dir(&self) -> &Path {
        self.0.fleet.dir()
    }

    fn meeting(&self) -> Meeting {
        let connect = outside(4).to_string();
        let listen = if is_standin() { &connect } else { "0.0.0.0" };
        Meeting {
            listen: listen.to_owned(),
            connect,
            port: PORT,
        }
    }

    fn prepare(&self) -> Verdict {
        self.0.await_closed(PORT)
    }

    fn server(&self, program: &Path) -> Command {
        if is_standin() {
            self.0.host(At::Gateway).command(program)
        } else {
            self.0.published(At::NodeA, "gw", program)
        }
    }

    fn client(&self, program: &Path) -> Command {
        self.0.outside(program)
    }

    fn is_open(&self, port: u16) -> bool {
        port != 0 && self.0.is_open(port).unwrap_or(false)
    }

    fn hurt_daemon(&mut self, random: &mut Random) -> Verdict {
        let at = [At::NodeA, At::Gateway][random.below(2) as usize];
        self.0.fleet.end(at, Signal::KILL)?;
        self.0.fleet.start(at)
    }

    fn cuts_with_daemon(&self) -> bool {
        true
    }

    fn totals(&self) -> Verdict<Totals> {
        self.0.fleet.totals()
    }

    fn describe(&self) -> String {
        self.0.describe()
    }
}
