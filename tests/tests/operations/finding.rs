//! Hosts that find each other by an option in the handshakes of programs' connections
//! (docs/decisions/0026), and what lies between them or is missing.

use std::io;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use rustix::process::Signal;
use serde_json::Value;
use sluice_tests::cgroup::Cgroup;
use sluice_tests::fleet::{Fleet, KEY, LIMIT};
use sluice_tests::hosts::injector::Direction;
use sluice_tests::hosts::{Pair, SIDES, Settings, Side, options};
use sluice_tests::job::wait_until;
use sluice_tests::stream::{self, Kill, Transfer};
use sluice_tests::suite::{Verdict, ensure, eventually, trial};

use crate::lab::{DEVICE, Two, scrape};
use crate::pair::Opinion;
use crate::service::{bounding, start_confined};

/// For what a daemon hears of programs that have ended.
const HEARD: Duration = Duration::from_secs(10);

const TRANSFER: Transfer = Transfer {
    server: "thread",
    connections: 2,
    records: 2000,
};

pub fn trials() -> Vec<Trial> {
    vec![
        trial("finding/found/ipv4", || found(4)),
        trial("finding/found/ipv6", || found(6)),
        trial("finding/peer-of-the-configuration", named),
        trial("finding/nobody-there", nobody_there),
        trial("finding/asked-without-it", asked_without_it),
        trial("finding/one-host-has-it", one_host_has_it),
        trial("finding/another-key", another_key),
        trial("finding/echoed", echoed),
        trial("finding/stripped", stripped),
        trial("finding/lost", lost),
        trial("finding/server-of-before", server_of_before),
        trial("finding/daemon-killed", daemon_killed),
        trial("finding/no-privileges", no_privileges),
        trial("finding/capabilities-given-up", capabilities_given_up),
        trial("finding/reload", reload),
    ]
}

/// Two hosts, and a cgroup for the programs of each: there is one kernel.
struct Hosts {
    // Programs end before their hosts go.
    groups: [Cgroup; 2],
    two: Two,
}

impl Hosts {
    fn new(settings: Settings) -> Verdict<Hosts> {
        Hosts::by(4, settings)
    }

    /// That talk by this version of IP.
    fn by(family: u8, settings: Settings) -> Verdict<Hosts> {
        Ok(Hosts {
            groups: [Cgroup::new("finding-left")?, Cgroup::new("finding-right")?],
            two: Fleet::new(Pair::new(settings)?, family, &["--eager"])?,
        })
    }

    /// Both get a daemon that uses the option.
    fn start_both(mut self) -> Verdict<Hosts> {
        for side in SIDES {
            self.start(side, KEY)?;
        }
        Ok(self)
    }

    fn started(settings: Settings) -> Verdict<Hosts> {
        Hosts::new(settings)?.start_both()
    }

    fn discovery(&self, side: Side) -> String {
        let group = self.groups[side as usize].path().display();
        format!("option = true\ncgroup = \"{group}\"\n")
    }

    /// A configuration that names no peer, with more in `[discovery]`.
    fn configure(&self, side: Side, key: u8, discovery: &str) -> Verdict {
        let head = self.two.head(side, key, DEVICE)?;
        let networks = "networks = [\"10.44.0.0/24\", \"fd44::/64\"]\n";
        let text = format!("{head}[discovery]\n{networks}{discovery}");
        self.two.write_config(side, &text)?;
        Ok(())
    }

    fn start(&mut self, side: Side, key: u8) -> Verdict {
        self.configure(side, key, &self.discovery(side))?;
        self.two.start(side)?;
        self.require(side, "the option", |seen| seen["in_use"] == true)
    }

    /// A program in the cgroup of its host, accelerated or not.
    fn program(&self, side: Side, is_accelerated: bool, binary: &Path) -> Command {
        let plain = self.two.program(side, is_accelerated, binary);
        let mut command = self.two.host(side).command("/bin/sh");
        // Sockets belong to the cgroup in which their process was.
        command
            .args(["-c", "echo $$ > \"$0\" && exec \"$@\""])
            .arg(self.groups[side as usize].processes())
            .arg(plain.get_program())
            .args(plain.get_args());
        let set = plain.get_envs();
        command.envs(set.filter_map(|(name, value)| Some((name, value?))));
        command
    }

    /// Checked records both ways, from left to right.
    fn exchange(&self) -> Verdict {
        let binary = stream::compile_plain(self.two.dir())?;
        let [server, client] =
            [Side::Right, Side::Left].map(|side| self.program(side, true, &binary));
        let ends = TRANSFER.start(server, client, self.two.dir(), LIMIT)?;
        ends.check_complete(LIMIT)
    }

    /// Records of connections from left to right, of which the left end is accelerated, and the right one perhaps, until
    /// this has been seen: of connections that have ended before it looks at them a daemon knows nothing, and asks.
    fn while_open(&self, is_accelerated: bool, seen: impl FnOnce() -> Verdict) -> Verdict {
        let binary = stream::compile_plain(self.two.dir())?;
        let server = self.program(Side::Right, is_accelerated, &binary);
        let client = self.program(Side::Left, true, &binary);
        let endless = Transfer {
            records: 0,
            ..TRANSFER
        };
        let mut ends = endless.start(server, client, self.two.dir(), LIMIT)?;
        ends.await_flow(LIMIT)?;
        seen()?;
        ends.judge(Kill::Client, LIMIT)
    }

    /// The same until bytes went by rings: on a busy machine one exchange may be over before the
    /// daemons have met.
    fn exchange_by_rings(&self) -> Verdict {
        let before = self.two.totals()?.lane_bytes();
        let end = Instant::now() + LIMIT;
        loop {
            self.exchange()?;
            if self.two.totals()?.lane_bytes() > before {
                return Ok(());
            }
            ensure(Instant::now() < end, || self.two.describe())?;
        }
    }

    /// What the daemon says of the option.
    fn seen(&self, side: Side) -> Verdict<Value> {
        Ok(self.two.status(side)?["fabric"]["option"].take())
    }

    /// The daemon says so, or will: it may hear of what programs did when they have ended.
    fn require(&self, side: Side, what: &str, so: impl Fn(&Value) -> bool) -> Verdict {
        self.require_within(LIMIT, side, what, &so)
    }

    fn require_within(
        &self,
        limit: Duration,
        side: Side,
        what: &str,
        so: &dyn Fn(&Value) -> bool,
    ) -> Verdict {
        eventually(limit, || {
            let seen = self.seen(side)?;
            ensure(so(&seen), || {
                format!("{what}: {seen}\n{}", self.two.describe())
            })
        })
    }

    /// Connections until the daemon says so: it looks at none that has ended before it got a processor.
    fn until(
        &self,
        connections: impl Fn() -> Verdict,
        side: Side,
        what: &str,
        so: impl Fn(&Value) -> bool,
    ) -> Verdict {
        eventually(LIMIT, || {
            connections()?;
            self.require_within(HEARD, side, what, &so)
        })
    }

    /// Nobody was asked for a daemon, and every byte went by TCP.
    fn require_tcp(&self) -> Verdict {
        let totals = self.two.totals()?;
        ensure(totals.lane_bytes() == 0, || {
            format!("{totals:?}\n{}", self.two.describe())
        })?;
        for side in SIDES {
            let fabric = self.two.status(side)?["fabric"].take();
            let nobody = fabric["control"]["accepted"] == 0;
            let unknown = fabric["peers"].as_array().is_some_and(Vec::is_empty);
            ensure(nobody && unknown, || {
                format!("{fabric}\n{}", self.two.describe())
            })?;
        }
        Ok(())
    }
}

fn with_middlebox() -> Settings {
    Settings {
        faults: true,
        ..Settings::default()
    }
}

/// Two connections have shown nothing, and the other host was asked for neither.
fn is_nothing(seen: &Value) -> bool {
    count(seen, "cannot") >= 2 && count(seen, "not_asked") >= 2 && count(seen, "can") == 0
}

fn count(seen: &Value, what: &str) -> u64 {
    seen[what].as_u64().unwrap_or(0)
}

/// Both ends know it, both daemons meet, and lanes are used.
fn found(family: u8) -> Verdict {
    let hosts = Hosts::by(family, Settings::default())?.start_both()?;
    hosts.exchange_by_rings()?;
    for side in SIDES {
        hosts.require(side, "found", |seen| {
            let not = ["cannot", "echoed", "foreign", "not_asked", "left_alone"];
            count(seen, "can") >= 2 && not.iter().all(|name| count(seen, name) == 0)
        })?;
    }
    hosts.require(Side::Left, "offers", |seen| count(seen, "offered") >= 2)?;
    hosts.require(Side::Right, "answers", |seen| count(seen, "answered") >= 2)?;
    let output = hosts.two.sluice(Side::Left, &["status"]).output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure(text.contains(" found, 0 not, 0 echoed"), || text.clone())?;
    let opinion = Opinion::of(&hosts.two, Side::Left, &[])?;
    opinion.require("handshake option", "ok", "found the other end, 0 did not")
}

/// Connections with a peer that the configuration names have no option: it is asked anyway.
fn named() -> Verdict {
    let mut hosts = Hosts::new(Settings::default())?;
    for side in SIDES {
        let discovery = hosts.discovery(side) + &hosts.two.peer(side.other());
        hosts.configure(side, KEY, &discovery)?;
        hosts.two.start(side)?;
    }
    hosts.two.await_links()?;
    hosts.exchange_by_rings()?;
    for side in SIDES {
        hosts.require(side, "no option", |seen| {
            seen["in_use"] == true && count(seen, "offered") + count(seen, "answered") == 0
        })?;
    }
    Ok(())
}

/// Where the control port of a daemon would be.
fn control_port(hosts: &Hosts) -> Verdict<TcpListener> {
    let at = hosts.two.control(Side::Right);
    let listener = hosts
        .two
        .host(Side::Right)
        .inside(|| TcpListener::bind(at))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

fn came(listener: &TcpListener) -> io::Result<bool> {
    match listener.accept() {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
        Err(error) => Err(error),
    }
}

/// A host without a daemon is not asked for one. Its server is not under sluice either.
fn nobody_there() -> Verdict {
    let mut hosts = Hosts::new(Settings::default())?;
    let listener = control_port(&hosts)?;
    hosts.start(Side::Left, KEY)?;
    hosts.while_open(false, || {
        hosts.require(Side::Left, "not asked", |seen| {
            count(seen, "not_asked") >= 2 && count(seen, "cannot") >= 2
        })
    })?;
    ensure(!came(&listener)?, || hosts.two.describe())
}

/// Records between an accelerated client and a server that is not.
fn serve_one_end(hosts: &Hosts) -> Verdict {
    let binary = stream::compile_plain(hosts.two.dir())?;
    let server = hosts.program(Side::Right, false, &binary);
    let client = hosts.program(Side::Left, true, &binary);
    let ends = TRANSFER.start(server, client, hosts.two.dir(), LIMIT)?;
    ends.check_complete(LIMIT)
}

/// The same without the option: what the row before this one looks for can be seen.
fn asked_without_it() -> Verdict {
    let mut hosts = Hosts::new(Settings::default())?;
    let listener = control_port(&hosts)?;
    hosts.configure(Side::Left, KEY, "")?;
    hosts.two.start(Side::Left)?;
    serve_one_end(&hosts)?;
    // It is asked for nobody's sake that has gone before sluiced knew.
    eventually(LIMIT, || {
        let is_asked = wait_until(HEARD, || came(&listener))?;
        if !is_asked {
            serve_one_end(&hosts)?;
        }
        ensure(is_asked, || hosts.two.describe())
    })?;
    hosts.require(Side::Left, "no option", Value::is_null)
}

/// The host without it asks the other one.
fn one_host_has_it() -> Verdict {
    let mut hosts = Hosts::new(Settings::default())?;
    hosts.start(Side::Left, KEY)?;
    hosts.configure(Side::Right, KEY, "")?;
    hosts.two.start(Side::Right)?;
    hosts.exchange_by_rings()?;
    hosts.require(Side::Left, "no answer", |seen| {
        count(seen, "cannot") >= 2 && count(seen, "can") == 0
    })
}

/// Daemons that could not prove anything to each other do not try.
fn another_key() -> Verdict {
    let mut hosts = Hosts::new(Settings::default())?;
    hosts.start(Side::Left, KEY)?;
    hosts.start(Side::Right, !KEY)?;
    let connections = || hosts.exchange();
    hosts.until(connections, Side::Left, "foreign", |seen| {
        count(seen, "foreign") >= 2 && count(seen, "not_asked") >= 2
    })
}

/// A middlebox sends options back that it does not know.
fn echoed() -> Verdict {
    let hosts = Hosts::started(with_middlebox())?;
    let injector = hosts.two.hosts.injector()?;
    let [there, back] = options::echo();
    injector.rewrite(Direction::LeftToRight, there);
    injector.rewrite(Direction::RightToLeft, back);
    hosts.while_open(true, || {
        hosts.require(Side::Left, "echoed", |seen| {
            count(seen, "echoed") >= 2 && count(seen, "not_asked") >= 2 && count(seen, "can") == 0
        })?;
        hosts.require(Side::Right, "nothing", is_nothing)
    })?;
    hosts.require_tcp()
}

/// A middlebox takes them out.
fn stripped() -> Verdict {
    let hosts = Hosts::started(with_middlebox())?;
    let injector = hosts.two.hosts.injector()?;
    injector.rewrite(Direction::LeftToRight, options::strip());
    hosts.while_open(true, || {
        let mut sides = SIDES.into_iter();
        sides.try_for_each(|side| hosts.require(side, "nothing", is_nothing))
    })?;
    hosts.require_tcp()
}

/// A middlebox loses what has them. Connections are late until the address is left alone; then its
/// daemon is asked for, as without the option.
fn lost() -> Verdict {
    let hosts = Hosts::started(with_middlebox())?;
    let injector = hosts.two.hosts.injector()?;
    injector.rewrite(Direction::LeftToRight, options::lose());
    hosts.while_open(true, || {
        hosts.require(Side::Left, "unheard", |seen| {
            count(seen, "unheard") == 2 && count(seen, "not_asked") >= 2
        })?;
        hosts.require(Side::Right, "nothing", is_nothing)
    })?;
    hosts.require_tcp()?;
    hosts.exchange()?;
    hosts
        .two
        .await_log(Side::Left, "They go without for ten minutes")?;
    hosts.require(Side::Left, "left alone", |seen| {
        count(seen, "left_alone") == 1
    })?;
    let before = count(&hosts.seen(Side::Left)?, "offered");
    hosts.exchange_by_rings()?;
    hosts.require(Side::Left, "not offered", |seen| {
        count(seen, "offered") == before
    })
}

/// A server that is older than the daemon answers by the option as well.
fn server_of_before() -> Verdict {
    let mut hosts = Hosts::new(Settings::default())?;
    hosts.start(Side::Left, KEY)?;
    let binary = stream::compile_plain(hosts.two.dir())?;
    let server = hosts.program(Side::Right, false, &binary);
    let server = TRANSFER.listen(server, hosts.two.dir(), LIMIT)?;
    hosts.start(Side::Right, KEY)?;
    let client = hosts.program(Side::Left, true, &binary);
    let ends = server.connect(client, hosts.two.dir())?;
    ends.check_complete(LIMIT)?;
    hosts.require(Side::Left, "found", |seen| count(seen, "can") >= 2)?;
    hosts.two.await_log(Side::Left, "right is up")
}

/// A daemon that is killed leaves nothing in the kernel: handshakes with its host have no answer.
fn daemon_killed() -> Verdict {
    let mut hosts = Hosts::started(Settings::default())?;
    hosts.exchange_by_rings()?;
    let before = hosts.seen(Side::Left)?;
    hosts.two.end(Side::Right, Signal::KILL)?;
    serve_one_end(&hosts)?;
    hosts.require(Side::Left, "not found", |seen| {
        count(seen, "can") == count(&before, "can")
            && count(seen, "cannot") >= count(&before, "cannot") + 2
    })?;
    // The next one is found at once, whatever was found before.
    hosts.start(Side::Right, KEY)?;
    hosts.exchange()?;
    hosts.require(Side::Left, "found", |seen| {
        count(seen, "can") >= count(&before, "can") + 2
    })
}

/// Without privileges hosts are found by asking, and somebody is told.
fn no_privileges() -> Verdict {
    let mut hosts = Hosts::new(Settings::default())?;
    for side in SIDES {
        hosts.configure(side, KEY, &hosts.discovery(side))?;
        start_confined(&mut hosts.two, side, &[&bounding([].into_iter())])?;
        hosts.two.await_log(side, "this process lacks")?;
        hosts.require(side, "a reason", |seen| {
            let reason = seen["reason"].as_str().unwrap_or_default();
            seen["in_use"] == false && reason.contains("CAP_BPF")
        })?;
    }
    hosts.exchange_by_rings()?;
    let output = hosts.two.sluice(Side::Left, &["status"]).output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure(text.contains("the option is not used"), || text.clone())
}

/// The option is used by a daemon that has given up all capabilities but `CAP_BPF`, by which it compares
/// connections, and its figures are served.
fn capabilities_given_up() -> Verdict {
    let mut hosts = Hosts::new(Settings::default())?;
    for side in SIDES {
        hosts.configure(side, KEY, &hosts.discovery(side))?;
        let mut command = hosts.two.daemon_command(side);
        command.args(["--one-namespace", "--metrics", "9797"]);
        hosts.two.start_by(side, command)?;
        let status = format!("/proc/{}/status", hosts.two.daemon(side)?.id());
        let status = std::fs::read_to_string(status)?;
        let has_one = |set: &str| status.contains(&format!("{set}:\t0000008000000000"));
        ensure(has_one("CapPrm") && has_one("CapBnd"), || status.clone())?;
    }
    hosts.exchange_by_rings()?;
    let text = scrape(&hosts.two, Side::Left, "text/plain")?;
    for part in [
        "sluice_handshake_option_in_use 1",
        "sluice_handshakes_total{peer=\"cannot\"} 0",
        "sluice_handshake_options_total{segment=\"no_room\"} 0",
        "sluice_ends_not_asked_total 0",
    ] {
        ensure(text.contains(part), || format!("{part} in {text}"))?;
    }
    let none = "sluice_handshakes_total{peer=\"can\"} 0";
    ensure(!text.contains(none), || text.clone())
}

/// Another configuration counts at once, and without the option it goes.
fn reload() -> Verdict {
    let hosts = Hosts::started(Settings::default())?;
    let again = |side: Side, times: usize| -> Verdict {
        hosts.two.daemon(side)?.signal(Signal::HUP)?;
        let count = || hosts.two.log(side).matches("was read again: ").count();
        ensure(wait_until(LIMIT, || Ok(count() == times))?, || {
            hosts.two.describe()
        })
    };
    // Another key on one side: the answer of the other one is foreign.
    hosts.configure(Side::Right, !KEY, &hosts.discovery(Side::Right))?;
    again(Side::Right, 1)?;
    hosts.exchange()?;
    hosts.require(Side::Left, "foreign", |seen| count(seen, "foreign") >= 2)?;
    hosts.configure(Side::Right, !KEY, "")?;
    again(Side::Right, 2)?;
    hosts.require(Side::Right, "gone", Value::is_null)?;
    hosts.exchange()?;
    hosts.require(Side::Left, "nothing", |seen| count(seen, "cannot") >= 2)
}
