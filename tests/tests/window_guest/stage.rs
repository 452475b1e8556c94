//! A host, a guest, and the window that they share; and a second guest in it, with a cable to the first.

use std::cell::OnceCell;
use std::fs::{self, Permissions};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;
use sluice_tests::guest::{Guest, Settings};
use sluice_tests::hosts::Host;
use sluice_tests::hosts::ports::Protocol;
use sluice_tests::job::{self, Job, run, wait_until};
use sluice_tests::lab::find_sluice;
use sluice_tests::stats;
use sluice_tests::stream::{self, Ends, Transfer};
use sluice_tests::suite::{Verdict, ensure, fail};
use sluice_tests::verbs::cm::{self, PortSpace};
use sluice_tests::verbs::{PATIENT, without_clock};
use tempfile::TempDir;

/// For one program, of which one end is emulated.
pub const LIMIT: Duration = Duration::from_secs(150);

const CONTROL_PORT: u16 = 4797;
const KEY: &str = "5d41402abc4b2a76b9719d911017c5925d41402abc4b2a76b9719d911017c592";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Host,
    Guest,
    /// Another one, whose peer is the first.
    Second,
}

/// Those that are there from the start.
pub const PLACES: [Place; 2] = [Place::Host, Place::Guest];

impl Place {
    /// With whom its programs talk.
    pub fn other(self) -> Place {
        match self {
            Place::Host | Place::Second => Place::Guest,
            Place::Guest => Place::Host,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Place::Host => "host",
            Place::Guest => "guest",
            Place::Second => "second",
        }
    }
}

/// What a daemon says of one that it takes for dead.
const SILENT: &str = "gives no sign of life";

/// Bytes by the fabric, sent and received, and how often a daemon was taken for dead.
#[derive(Clone, Copy, Debug)]
pub struct Ways {
    by_fabric: [Option<u64>; 2],
    silences: usize,
}

/// The cable of the two guests, at each end.
const CABLE: &str = "eth1";
const CABLE_BITS: u32 = 24;

/// Where the guest has the device of the daemons' window, and that of verbs programs, on its PCI bus.
const SOCKETS_AT: &str = "10";
const VERBS_AT: &str = "11";
const VERBS_BYTES: &str = "32M";

/// The memory of a device.
fn resource(at: &str) -> String {
    format!("/sys/bus/pci/devices/0000:00:{at}.0/resource2")
}

pub struct Stage {
    // Dropped in this order: daemons, the guest, what its cable ends in, and the memory's server.
    daemons: Vec<(Place, Job)>,
    guest: Option<Guest>,
    host: Host,
    /// The second guest, and what its own cable ends in.
    second: Option<(Guest, Host)>,
    /// The program of [`Stage::flow`], once it is there.
    stream: OnceCell<PathBuf>,
    _server: Job,
    sluice: PathBuf,
    /// How many guests there were.
    boots: u32,
    dir: TempDir,
}

static SHARED: Mutex<Option<Stage>> = Mutex::new(None);

/// The stage that all rows have: booting takes longer than most.
pub struct Borrowed(MutexGuard<'static, Option<Stage>>);

impl std::ops::Deref for Borrowed {
    type Target = Stage;

    fn deref(&self) -> &Stage {
        self.0.as_ref().expect("a stage")
    }
}

impl std::ops::DerefMut for Borrowed {
    fn deref_mut(&mut self) -> &mut Stage {
        self.0.as_mut().expect("a stage")
    }
}

pub fn borrow() -> Verdict<Borrowed> {
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    if shared.is_none() {
        *shared = Some(Stage::new()?);
    }
    Ok(Borrowed(shared))
}

/// Ends the stage, if there is one.
pub fn dismiss() {
    *SHARED.lock().unwrap_or_else(PoisonError::into_inner) = None;
}

/// A guest that has both memories, and an end of the cable between guests.
fn boot(dir: &TempDir, host: &mut Host, place: Place) -> Verdict<Guest> {
    let path = |name: &str| dir.path().join(name).display().to_string();
    let chardev = format!("socket,path={},id=window", path("window.sock"));
    let memory = format!(
        "memory-backend-file,id=verbs,share=on,size={VERBS_BYTES},mem-path={}",
        path("verbs")
    );
    let doorbell = format!("ivshmem-doorbell,vectors=2,chardev=window,addr={SOCKETS_AT}");
    let plain = format!("ivshmem-plain,memdev=verbs,addr={VERBS_AT}");
    let (server, mac) = match place {
        Place::Second => ("off", "52:54:00:45:00:02"),
        _ => ("on", "52:54:00:45:00:01"),
    };
    let cable = format!(
        "stream,id=between,server={server},addr.type=unix,addr.path={}",
        path("cable")
    );
    let card = format!("virtio-net-pci,netdev=between,romfile=,mac={mac}");
    let more = [
        ["-chardev", &chardev],
        ["-object", &memory],
        ["-device", &doorbell],
        ["-device", &plain],
        ["-netdev", &cable],
        ["-device", &card],
    ];
    let more: Vec<String> = more.concat().into_iter().map(str::to_owned).collect();
    // Of the guest that was there before.
    if place == Place::Guest {
        let _ = fs::remove_file(path("cable"));
    }
    Guest::boot_with(host, Settings::default(), &more)
}

/// A guest's address on the cable between guests.
fn cable_address(place: Place) -> Ipv4Addr {
    Ipv4Addr::new(10, 47, 0, if place == Place::Second { 2 } else { 1 })
}

impl Stage {
    fn new() -> Verdict<Stage> {
        let dir = tempfile::Builder::new()
            .prefix("sluice-window-")
            .tempdir()?;
        let sluice = find_sluice()?;
        let socket = dir.path().join("window.sock");
        let mut serve = job::command(&sluice);
        serve.args(["window", "serve"]).arg(&socket);
        serve.args(["--size", "128M", "--hosts", "4"]);
        let mut server = Job::start(serve, dir.path(), "window")?;
        server.await_ready(LIMIT, "serve", || socket.exists())?;
        let mut create = job::command(&sluice);
        create
            .args(["window", "create"])
            .arg(dir.path().join("verbs"));
        create.args(["--size", VERBS_BYTES, "--hosts", "2"]);
        run(create, dir.path(), "create", LIMIT)?.success()?;
        let addresses = (
            Ipv4Addr::new(10, 45, 0, 1),
            Ipv6Addr::new(0xfd45, 0, 0, 0, 0, 0, 0, 1),
        );
        let host = Host::new(dir.path(), "host", addresses)?;
        let mut stage = Stage {
            daemons: Vec::new(),
            guest: None,
            host,
            second: None,
            stream: OnceCell::new(),
            _server: server,
            sluice,
            boots: 0,
            dir,
        };
        stage.guest = Some(boot(&stage.dir, &mut stage.host, Place::Guest)?);
        stage.boots = 1;
        // The library writes to a file that is there.
        fs::write(stage.path("stats"), "")?;
        fs::write(stage.path("key"), KEY)?;
        fs::set_permissions(stage.path("key"), Permissions::from_mode(0o600))?;
        stage.start(Place::Host, &socket.display().to_string())?;
        stage.join()?;
        Ok(stage)
    }

    /// Starts the guest's daemon, and waits until both hosts have found each other, by their session and in the
    /// window.
    fn join(&mut self) -> Verdict {
        self.prepare(Place::Guest)?;
        self.start(Place::Guest, &resource(SOCKETS_AT))?;
        self.await_each_other(Place::Host, Place::Guest)
    }

    /// What a guest needs before its daemon starts.
    fn prepare(&self, place: Place) -> Verdict {
        let address = cable_address(place);
        // The kernel's own RoCEv2 has the port of ours.
        let script = format!(
            "rdma link del rxe0; rmmod rdma_rxe; mkdir -m 700 /run/meeting; >/run/stats
             ip link set {CABLE} up; ip addr add {address}/{CABLE_BITS} dev {CABLE}"
        );
        let (guest, host) = self.guest(place)?;
        guest.shell(host, &script)?;
        Ok(())
    }

    fn await_each_other(&self, one: Place, other: Place) -> Verdict {
        for (place, other) in [(one, other), (other, one)] {
            let is_there = || {
                let window = self.window(place).unwrap_or_default();
                let peers = window["peers"].as_array();
                Ok(peers.is_some_and(|it| it.contains(&Value::from(other.name()))))
            };
            ensure(wait_until(LIMIT, is_there)?, || self.describe())?;
        }
        Ok(())
    }

    /// Boots the second guest, whose daemon joins the first one's.
    pub fn boot_second(&mut self) -> Verdict {
        let addresses = (
            Ipv4Addr::new(10, 45, 1, 1),
            Ipv6Addr::new(0xfd45, 0, 0, 1, 0, 0, 0, 1),
        );
        let mut host = Host::new(self.dir(), "beside", addresses)?;
        let guest = boot(&self.dir, &mut host, Place::Second)?;
        self.second = Some((guest, host));
        self.prepare(Place::Second)?;
        self.start(Place::Second, &resource(SOCKETS_AT))?;
        self.await_each_other(Place::Second, Place::Guest)
    }

    /// Switches the guest off, as a host that dies does, and boots another one.
    pub fn boot_again(&mut self) -> Verdict {
        self.guest = None;
        self.host.ip("link del tap0")?;
        self.daemons.retain(|(place, _)| *place == Place::Host);
        self.guest = Some(boot(&self.dir, &mut self.host, Place::Guest)?);
        self.boots += 1;
        self.join()
    }

    /// A guest, and the host at the other end of its own cable.
    fn guest(&self, place: Place) -> Verdict<(&Guest, &Host)> {
        match (place, &self.guest, &self.second) {
            (Place::Guest, Some(guest), _) => Ok((guest, &self.host)),
            (Place::Second, _, Some((guest, host))) => Ok((guest, host)),
            _ => fail("there is no such guest"),
        }
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn address(&self, place: Place) -> IpAddr {
        match place {
            Place::Host => self.host.v4().into(),
            Place::Guest => u32::from(self.host.v4())
                .wrapping_add(1)
                .to_be_bytes()
                .into(),
            Place::Second => cable_address(place).into(),
        }
    }

    /// As its peer sees it.
    pub fn address_seen(&self, place: Place, by: Place) -> IpAddr {
        match (place, by) {
            (Place::Guest, Place::Second) => cable_address(place).into(),
            _ => self.address(place),
        }
    }

    /// A file of a place: a guest that boots anew has another one, because it remembers what it has seen.
    fn file(&self, place: Place, name: &str) -> PathBuf {
        match place {
            Place::Host => self.path(&format!("host.{name}")),
            _ => self.path(&format!("{}-{}.{name}", place.name(), self.boots)),
        }
    }

    fn command(&self, place: Place, program: &Path) -> Verdict<Command> {
        let mut command = match place {
            Place::Host => self.host.command(program),
            _ => {
                let (guest, host) = self.guest(place)?;
                guest.command(host, program)
            }
        };
        command.current_dir("/");
        Ok(command)
    }

    fn start(&mut self, place: Place, window: &str) -> Verdict {
        let name = place.name();
        let mut text = format!(
            "[daemon]\nname = \"{name}\"\nlisten = [\"0.0.0.0:{CONTROL_PORT}\"]\npsk_file = {:?}\n\
             [fabric]\ndevice = \"roce-udp\"\n\
             [[window]]\npath = {window:?}\nusers = [\"root\"]\n",
            self.path("key"),
        );
        let peers: &[Place] = match place {
            Place::Guest => &[Place::Host, Place::Second],
            _ => &[Place::Guest],
        };
        for peer in peers {
            let at = self.address_seen(*peer, place);
            let name = peer.name();
            let control = format!("{at}:{CONTROL_PORT}");
            text += &format!("[[peer]]\nname = \"{name}\"\ncontrol = \"{control}\"\n");
        }
        let config = self.file(place, "toml");
        fs::write(&config, text)?;
        let mut command = self.command(place, &self.sluice.with_file_name("sluiced"))?;
        command
            .arg("--socket")
            .arg(self.file(place, "sock"))
            .arg("--config")
            .arg(&config)
            .args(["--log", "info"]);
        let label = format!("sluiced-{name}");
        let mut job = Job::start(command, self.dir(), &label)?;
        job.await_ready(LIMIT, "answer", || self.status(place).is_ok())?;
        self.daemons.push((place, job));
        Ok(())
    }

    /// `sluice` with the words, with the daemon of that place.
    fn sluice(&self, place: Place, words: &[&str]) -> Verdict<Command> {
        let mut command = self.command(place, &self.sluice)?;
        command
            .args(words)
            .env("SLUICE_SOCKET", self.file(place, "sock"));
        Ok(command)
    }

    /// Runs a shell script there, which finds `sluice` by `$SLUICE`, and has a daemon of its own if it wants one. What it
    /// printed.
    pub fn script(&self, place: Place, script: &str) -> Verdict<String> {
        let mut command = self.command(place, Path::new("sh"))?;
        command.args(["-ec", script]).env("SLUICE", &self.sluice);
        let outcome = run(command, self.dir(), "script", LIMIT)?;
        Ok(outcome.success()?.text())
    }

    fn status(&self, place: Place) -> Verdict<Value> {
        let command = self.sluice(place, &["status", "--json"])?;
        let outcome = run(command, self.dir(), "status", LIMIT)?.success()?;
        let mut all: Value = serde_json::from_slice(&outcome.stdout)
            .or_else(|error| fail(format!("{error}: {}", outcome.describe())))?;
        Ok(all["daemons"][0]["status"].take())
    }

    fn window(&self, place: Place) -> Verdict<Value> {
        Ok(self.status(place)?["fabric"]["windows"][0].take())
    }

    /// A program under `sluice run` there.
    pub fn program(&self, place: Place, program: &Path) -> Command {
        let program = program.display().to_string();
        let command = self.sluice(place, &["run", "--", &program]);
        let mut command = command.unwrap_or_else(|_| Command::new("false"));
        command.env("SLUICE_STATS_FILE", self.stats_file(place));
        command
    }

    /// What programs of a place have counted; in a guest it is its own file.
    fn stats_file(&self, place: Place) -> PathBuf {
        match place {
            Place::Host => self.path("stats"),
            _ => PathBuf::from("/run/stats"),
        }
    }

    /// A verbs program there.
    pub fn start_verbs(&self, place: Place, program: &Path, words: &[&str]) -> Verdict<Job> {
        let window = match place {
            Place::Host => self.path("verbs").display().to_string(),
            _ => resource(VERBS_AT),
        };
        let mut command = self.command(place, &self.sluice)?;
        command.args(["verbs", "--device", &format!("window:{window}"), "--"]);
        command
            .arg(program)
            .args(without_clock(program))
            .args(words);
        command.env("XDG_RUNTIME_DIR", self.runtime(place));
        let (name, value) = PATIENT;
        command.env(name, value);
        Job::start(command, self.dir(), &format!("verbs-{}", place.name()))
    }

    /// Where librdmacm's processes of a place meet.
    fn runtime(&self, place: Place) -> PathBuf {
        match place {
            Place::Host => self.host.runtime().to_owned(),
            _ => PathBuf::from("/run/meeting"),
        }
    }

    /// Whether a program there listens by librdmacm.
    pub fn is_cm_listening(&self, place: Place, port: u16) -> Verdict<bool> {
        let runtime = self.runtime(place);
        match place {
            Place::Host => Ok(cm::listens(&runtime, PortSpace::Tcp, port)),
            _ => {
                let list = format!("ls {}/sluice-verbs", runtime.display());
                let (guest, host) = self.guest(place)?;
                let names = guest.shell(host, &list)?;
                Ok(names
                    .lines()
                    .any(|name| cm::is_listener(name, PortSpace::Tcp, port)))
            }
        }
    }

    pub fn await_listener(
        &self,
        place: Place,
        server: &mut Job,
        protocol: Protocol,
        port: u16,
    ) -> Verdict {
        match place {
            Place::Host => self.host.await_listener(server, protocol, port, LIMIT),
            _ => {
                let (guest, host) = self.guest(place)?;
                guest.await_listener(host, server, protocol, port, LIMIT)
            }
        }
    }

    pub fn flow(&self, server: Place, transfer: Transfer) -> Verdict<Ends> {
        let binary = match self.stream.get() {
            Some(binary) => binary,
            None => {
                let binary = stream::compile_plain(self.dir())?;
                self.stream.get_or_init(|| binary)
            }
        };
        let address = self.address_seen(server, server.other());
        let command = |place| {
            let mut command = self.program(place, binary);
            stream::meet_at(&mut command, address);
            command
        };
        transfer.start(command(server), command(server.other()), self.dir(), LIMIT)
    }

    /// Bytes that ended programs of a place, the host or the second guest, have had by lanes.
    pub fn lane_bytes(&self, place: Place) -> Verdict<u64> {
        let mut file = self.stats_file(place);
        if place != Place::Host {
            let (guest, host) = self.guest(place)?;
            let text = guest.shell(host, &format!("cat {}", file.display()))?;
            file = self.path("stats-of-the-guest");
            fs::write(&file, text)?;
        }
        Ok(stats::read(&file)?.lane_bytes())
    }

    /// Fails unless there are more than so many.
    pub fn require_lane_bytes_since(&self, place: Place, before: u64) -> Verdict {
        ensure(self.lane_bytes(place)? > before, || {
            format!("no byte went by a ring\n{}", self.describe())
        })
    }

    /// By which way bytes of the place go: for [`Stage::require_direct_since`].
    pub fn ways(&self, place: Place) -> Verdict<Ways> {
        let mut status = self.status(place)?;
        let peer = status["fabric"]["peers"][0].take();
        let bytes = ["sent_bytes", "received_bytes"].map(|name| peer[name].as_u64());
        let said = |job: &Job| job.stderr_so_far().matches(SILENT).count();
        Ok(Ways {
            by_fabric: bytes,
            silences: self.daemons.iter().map(|(_, job)| said(job)).sum(),
        })
    }

    /// Fails if bytes of the place went by the fabric since, as they do when a daemon has stood still for three
    /// seconds, and is dead for the other one.
    pub fn require_direct_since(&self, place: Place, before: Ways) -> Verdict {
        let now = self.ways(place)?;
        let is_known = now.by_fabric.iter().all(Option::is_some);
        let is_direct = now.by_fabric == before.by_fabric || now.silences > before.silences;
        ensure(is_known && is_direct, || {
            format!("bytes by the fabric: {before:?}, then {now:?}")
        })
    }

    /// Waits until so many connections of the host are in the window.
    pub fn await_lanes(&self, count: u64) -> Verdict {
        let has = || {
            let window = self.window(Place::Host).unwrap_or_default();
            Ok(window["lanes"].as_u64().unwrap_or(0) >= count)
        };
        ensure(wait_until(LIMIT, has)?, || self.describe())
    }

    /// Waits until nothing is lent: all programs are gone.
    pub fn await_all_back(&self) -> Verdict {
        let all = || self.daemons.iter().map(|(place, _)| *place);
        let are_back = || {
            let is_back = |place| {
                let window = self.window(place).unwrap_or_default();
                window["lanes"] == 0 && window["lent_bytes"] == 0
            };
            Ok(all().all(is_back))
        };
        ensure(wait_until(LIMIT, are_back)?, || {
            let windows: Vec<_> = all().map(|place| self.window(place)).collect();
            format!("{windows:?}\n{}", self.describe())
        })
    }

    /// What the daemons have said.
    pub fn describe(&self) -> String {
        let all = self
            .daemons
            .iter()
            .map(|(place, job)| format!("--- {} says\n{}", place.name(), job.stderr_so_far()));
        let counted = stats::read(&self.path("stats"));
        let counted = format!("--- programs of the host have counted {counted:?}");
        all.chain([counted]).collect::<Vec<String>>().join("\n")
    }
}
