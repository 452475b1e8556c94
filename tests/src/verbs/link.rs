//! Two hosts with Sluice's RDMA device, and programs on them.

use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use crate::hosts::injector::Injector;
use crate::hosts::ports::Protocol;
use crate::hosts::{Host, Pair, Settings};
use crate::job::{Job, Outcome, run};
use crate::suite::{Verdict, ensure, fail};
use crate::verbs::cm::{self, PortSpace};
use crate::verbs::{Own, gid_index, sluice_verbs};

/// For one program, on a machine that does other things too.
pub const LIMIT: Duration = Duration::from_secs(120);

/// The devices of `sluice verbs`: packets past the kernel's stack, and through its UDP sockets.
pub const DEVICES: [&str; 2] = ["roce", "roce-udp"];

/// What a link is between, and how its packets go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    pub device: &'static str,
    /// 4 or 6: of the GIDs.
    pub family: u8,
    pub mtu: u32,
}

/// Version of IP and MTU.
pub const CORNERS: [(u8, u32); 4] = [(4, 1500), (6, 1500), (6, 9000), (4, 9000)];

impl Way {
    /// One of [`CORNERS`], by any number.
    pub fn corner(device: &'static str, number: usize) -> Way {
        let (family, mtu) = CORNERS[number % CORNERS.len()];
        Way {
            device,
            family,
            mtu,
        }
    }

    pub fn name(self) -> String {
        format!("{}/ipv{}/mtu-{}", self.device, self.family, self.mtu)
    }
}

/// Payload of the way's packets, at most, in bytes: what fits besides the headers, of the sizes
/// that there are (IBTA 9.2.5).
pub fn path_mtu(way: Way) -> u32 {
    if way.mtu == 9000 { 4096 } else { 1024 }
}

/// The two ends. Servers run on the right, clients on the left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Left,
    Right,
}

/// A program that was started twice, where the client runs and the server too.
pub struct Running {
    pub server: Job,
    pub client: Job,
}

/// Two hosts and a way between them.
pub struct Link {
    pair: Pair,
    way: Way,
    /// Of the GIDs, at the left and at the right end.
    indices: [String; 2],
    /// Engine threads of what is started at the left and at the right end.
    engines: [u8; 2],
    started: u32,
}

impl Link {
    pub fn new(way: Way) -> Verdict<Link> {
        Link::with(way, false)
    }

    /// With an injector between the hosts.
    pub fn with_injector(way: Way) -> Verdict<Link> {
        Link::with(way, true)
    }

    fn with(way: Way, faults: bool) -> Verdict<Link> {
        let pair = Pair::new(Settings {
            mtu: way.mtu,
            faults,
            ..Settings::default()
        })?;
        let left = index(&pair, &pair.left, way)?;
        let right = index(&pair, &pair.right, way)?;
        Ok(Link {
            pair,
            way,
            indices: [left, right],
            engines: [1, 1],
            started: 0,
        })
    }

    /// What is started from now on has so many engine threads.
    pub fn set_engines(&mut self, engines: [u8; 2]) {
        self.engines = engines;
    }

    pub fn hosts(&self) -> &Pair {
        &self.pair
    }

    pub fn injector(&self) -> Verdict<&Injector> {
        self.pair.injector()
    }

    pub fn way(&self) -> Way {
        self.way
    }

    pub fn host(&self, end: End) -> &Host {
        match end {
            End::Left => &self.pair.left,
            End::Right => &self.pair.right,
        }
    }

    /// The index of an end's address in its GID table.
    pub fn gid_index(&self, end: End) -> &str {
        let [left, right] = &self.indices;
        match end {
            End::Left => left,
            End::Right => right,
        }
    }

    /// Starts a program at an end, with the way's device.
    pub fn start(&mut self, end: End, program: &str, arguments: &[&str]) -> Verdict<Job> {
        let [left, right] = self.engines;
        let engines = match end {
            End::Left => left,
            End::Right => right,
        };
        let mut options = device(self.way).to_vec();
        options.extend(["--engines".to_owned(), engines.to_string()]);
        let mut command = sluice_verbs(program, arguments, &options)?;
        self.host(end).place(&mut command);
        self.started += 1;
        let name = Path::new(program).file_name().unwrap_or_default();
        let label = format!("{}-{}", self.started, name.to_string_lossy());
        Job::start(command, self.pair.path(), &label)
    }

    /// Starts a server at the right end and, once it listens, its client at the left one, with the
    /// server's IPv4 address as the last argument. Both get `-p` with a free port and, after that
    /// option, the index of their GID.
    pub fn start_pair(
        &mut self,
        program: &str,
        gid_option: &str,
        arguments: &[&str],
    ) -> Verdict<Running> {
        let number = self.pair.right.free_port(Protocol::Tcp)?;
        let port = number.to_string();
        let words = |index: &str| -> Vec<String> {
            let own = ["-p", &port, gid_option, index];
            let all = own.iter().chain(arguments);
            all.map(|word| (*word).to_owned()).collect()
        };
        let server = words(self.gid_index(End::Right));
        let mut client = words(self.gid_index(End::Left));
        client.push(self.pair.right.v4().to_string());
        let mut server = self.start(End::Right, program, &as_words(&server))?;
        self.pair
            .right
            .await_listener(&mut server, Protocol::Tcp, number, LIMIT)?;
        let client = self.start(End::Left, program, &as_words(&client))?;
        Ok(Running { server, client })
    }

    /// Runs a pair to its end. Both must end with status 0.
    pub fn pair(
        &mut self,
        program: &str,
        gid_option: &str,
        arguments: &[&str],
        limit: Duration,
    ) -> Verdict<(Outcome, Outcome)> {
        self.start_pair(program, gid_option, arguments)?
            .finish(limit)
    }

    /// The same with a program of ours, which is compiled first.
    pub fn own(&mut self, own: Own, arguments: &[&str]) -> Verdict<(Outcome, Outcome)> {
        self.start_own(own, arguments)?.finish(LIMIT)
    }

    pub fn start_own(&mut self, own: Own, arguments: &[&str]) -> Verdict<Running> {
        let program = own.compile(self.pair.path())?;
        self.start_pair(&program.to_string_lossy(), "-g", arguments)
    }
}

impl Running {
    /// Waits for both, which must end with status 0. What both said belongs to the picture.
    pub fn finish(self, limit: Duration) -> Verdict<(Outcome, Outcome)> {
        let Running { server, client } = self;
        let client = client.finish(limit).and_then(Outcome::success);
        let client = client.map_err(|problem| problem.with(|| server.describe()))?;
        Ok((server.finish(limit)?.success()?, client))
    }
}

fn as_words(list: &[String]) -> Vec<&str> {
    list.iter().map(String::as_str).collect()
}

fn device(way: Way) -> [String; 2] {
    ["--device".to_owned(), way.device.to_owned()]
}

/// Asks the device itself for its GIDs, as a user would.
fn index(pair: &Pair, host: &Host, way: Way) -> Verdict<String> {
    if way.device == "iwarp" {
        // Its queue pairs are connected by addresses, and the table says nothing of these.
        return Ok("0".to_owned());
    }
    let mut command = sluice_verbs("ibv_devinfo", &["-v"], &device(way))?;
    host.place(&mut command);
    let address = host.address(way.family);
    let label = format!("devinfo-{address}");
    let outcome = run(command, pair.path(), &label, LIMIT)?.success()?;
    match gid_index(&outcome.text(), address) {
        Some(index) => Ok(index),
        None => fail(format!("no GID of {address}\n{}", outcome.describe())),
    }
}

impl cm::Stage for Link {
    fn start(&mut self, end: cm::End, program: &str, arguments: &[&str]) -> Verdict<Job> {
        Link::start(self, side(end), program, arguments)
    }

    fn address(&self, end: cm::End) -> IpAddr {
        self.host(side(end)).address(self.way().family)
    }

    fn free_port(&self) -> Verdict<u16> {
        Ok(self.hosts().right.free_port(Protocol::Tcp)?)
    }

    fn await_listener(&mut self, server: &mut Job, space: PortSpace, port: u16) -> Verdict {
        let runtime = self.hosts().right.runtime().to_owned();
        server.await_ready(LIMIT, "rdma_cm listener", || {
            cm::listens(&runtime, space, port)
        })
    }

    fn await_member(&mut self, receiver: &mut Job, group: IpAddr) -> Verdict {
        let host = &self.hosts().right;
        receiver.await_ready(LIMIT, "member of the group", || {
            host.is_member(group).unwrap_or(false)
        })
    }

    fn await_datagrams(&mut self, server: &mut Job, port: u16) -> Verdict {
        self.hosts()
            .right
            .await_listener(server, Protocol::Udp, port, LIMIT)
    }

    fn path(&self) -> &Path {
        self.hosts().path()
    }

    fn limit(&self) -> Duration {
        LIMIT
    }
}

fn side(end: cm::End) -> End {
    match end {
        cm::End::Server => End::Right,
        cm::End::Client => End::Left,
    }
}

/// qperf sends by LID unless librdmacm connects its queue pairs, and without a global route there
/// is no way to anybody on Ethernet. Its tests that librdmacm can connect are those of RC.
pub fn qperf(way: Way) -> Verdict {
    const TESTS: [&str; 4] = ["rc_lat", "rc_bw", "ver_rc_compare_swap", "ver_rc_fetch_add"];
    let mut link = Link::new(way)?;
    let number = link.hosts().right.free_port(Protocol::Tcp)?;
    let port = number.to_string();
    let mut server = link.start(End::Right, "qperf", &["-lp", &port])?;
    link.hosts()
        .right
        .await_listener(&mut server, Protocol::Tcp, number, LIMIT)?;
    let address = link.hosts().right.v4().to_string();
    // It waits 5 s for its server otherwise, which may get no processor for so long.
    let mut arguments = vec!["-lp", &port, "-to", "60", "-t", "1", "-cm", "1", &address];
    arguments.extend(TESTS);
    let client = link.start(End::Left, "qperf", &arguments)?;
    let client = client.finish(LIMIT)?.success()?;
    let text = client.text();
    for test in TESTS {
        ensure(text.contains(&format!("{test}:")), || {
            format!("{test} has no result\n{}", client.describe())
        })?;
    }
    Ok(())
}

/// Packets that the host's device sent, by whichever way (proc_pid_net(5)).
pub fn packets_sent(host: &Host) -> Verdict<u64> {
    let table = host.inside(|| std::fs::read_to_string("/proc/thread-self/net/dev"))?;
    let sent = table.lines().find_map(|line| {
        let (name, counters) = line.split_once(':')?;
        // Eight counters of what was received come first: bytes, packets, …
        let sent = counters.split_whitespace().nth(9);
        (name.trim() == host.device()).then_some(sent?.parse().ok()?)
    });
    match sent {
        Some(sent) => Ok(sent),
        None => fail(table),
    }
}
