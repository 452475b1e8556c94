//! A host, a guest, and the window that they share.

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
use tempfile::TempDir;

/// For one program, of which one end is emulated.
pub const LIMIT: Duration = Duration::from_secs(90);

const CONTROL_PORT: u16 = 4797;
const KEY: &str = "5d41402abc4b2a76b9719d911017c5925d41402abc4b2a76b9719d911017c592";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Host,
    Guest,
}

pub const PLACES: [Place; 2] = [Place::Host, Place::Guest];

impl Place {
    pub fn other(self) -> Place {
        match self {
            Place::Host => Place::Guest,
            Place::Guest => Place::Host,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Place::Host => "host",
            Place::Guest => "guest",
        }
    }
}

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

impl Stage {
    fn new() -> Verdict<Stage> {
        let dir = tempfile::Builder::new()
            .prefix("sluice-window-")
            .tempdir()?;
        let sluice = find_sluice()?;
        let socket = dir.path().join("window.sock");
        let mut serve = job::command(&sluice);
        serve.args(["window", "serve"]).arg(&socket);
        serve.args(["--size", "128M", "--hosts", "3"]);
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
            stream: OnceCell::new(),
            _server: server,
            sluice,
            boots: 0,
            dir,
        };
        stage.boot()?;
        // The library writes to a file that is there.
        fs::write(stage.path("stats"), "")?;
        fs::write(stage.path("key"), KEY)?;
        fs::set_permissions(stage.path("key"), Permissions::from_mode(0o600))?;
        stage.start(Place::Host, &socket.display().to_string())?;
        stage.join()?;
        Ok(stage)
    }

    fn boot(&mut self) -> Verdict {
        let chardev = format!(
            "socket,path={},id=window",
            self.path("window.sock").display()
        );
        let memory = format!(
            "memory-backend-file,id=verbs,share=on,size={VERBS_BYTES},mem-path={}",
            self.path("verbs").display()
        );
        let doorbell = format!("ivshmem-doorbell,vectors=2,chardev=window,addr={SOCKETS_AT}");
        let plain = format!("ivshmem-plain,memdev=verbs,addr={VERBS_AT}");
        let devices = ["-device", &doorbell, "-device", &plain];
        let more = ["-chardev", &chardev, "-object", &memory];
        let more = more.into_iter().chain(devices).map(str::to_owned);
        let more: Vec<String> = more.collect();
        self.guest = Some(Guest::boot_with(
            &mut self.host,
            Settings::default(),
            &more,
        )?);
        self.boots += 1;
        Ok(())
    }

    /// Starts the guest's daemon, and waits until both hosts have found each other, by their session and in the
    /// window.
    fn join(&mut self) -> Verdict {
        // The kernel's own RoCEv2 has the port of ours.
        let free = "rdma link del rxe0; rmmod rdma_rxe; mkdir -m 700 /run/meeting";
        self.guest()?.shell(&self.host, free)?;
        self.start(Place::Guest, &resource(SOCKETS_AT))?;
        for place in PLACES {
            let other = place.other().name();
            let is_there = || {
                let window = self.window(place).unwrap_or_default();
                let peers = window["peers"].as_array();
                Ok(peers.is_some_and(|it| it.contains(&Value::from(other))))
            };
            ensure(wait_until(LIMIT, is_there)?, || self.describe())?;
        }
        Ok(())
    }

    /// Switches the guest off, as a host that dies does, and boots another one.
    pub fn boot_again(&mut self) -> Verdict {
        self.guest = None;
        self.host.ip("link del tap0")?;
        self.daemons.retain(|(place, _)| *place == Place::Host);
        self.boot()?;
        self.join()
    }

    fn guest(&self) -> Verdict<&Guest> {
        match &self.guest {
            Some(guest) => Ok(guest),
            None => fail("there is no guest"),
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
        }
    }

    /// A file of a place: a guest that boots anew has another one, because it remembers what it has seen.
    fn file(&self, place: Place, name: &str) -> PathBuf {
        match place {
            Place::Host => self.path(&format!("host.{name}")),
            Place::Guest => self.path(&format!("guest-{}.{name}", self.boots)),
        }
    }

    fn command(&self, place: Place, program: &Path) -> Verdict<Command> {
        let mut command = match place {
            Place::Host => self.host.command(program),
            Place::Guest => self.guest()?.command(&self.host, program),
        };
        command.current_dir("/");
        Ok(command)
    }

    fn start(&mut self, place: Place, window: &str) -> Verdict {
        let (name, other) = (place.name(), place.other());
        let text = format!(
            "[daemon]\nname = \"{name}\"\nlisten = [\"{}:{CONTROL_PORT}\"]\npsk_file = {:?}\n\
             [fabric]\ndevice = \"roce-udp\"\n\
             [[peer]]\nname = \"{}\"\ncontrol = \"{}:{CONTROL_PORT}\"\n\
             [[window]]\npath = {window:?}\nusers = [\"root\"]\n",
            self.address(place),
            self.path("key"),
            other.name(),
            self.address(other),
        );
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
        if place == Place::Host {
            command.env("SLUICE_STATS_FILE", self.path("stats"));
        }
        command
    }

    /// A verbs program there.
    pub fn start_verbs(&self, place: Place, program: &Path, words: &[&str]) -> Verdict<Job> {
        let window = match place {
            Place::Host => self.path("verbs").display().to_string(),
            Place::Guest => resource(VERBS_AT),
        };
        let mut command = self.command(place, &self.sluice)?;
        command.args(["verbs", "--device", &format!("window:{window}"), "--"]);
        command.arg(program).args(words);
        command.env("XDG_RUNTIME_DIR", self.runtime(place));
        Job::start(command, self.dir(), &format!("verbs-{}", place.name()))
    }

    /// Where librdmacm's processes of a place meet.
    fn runtime(&self, place: Place) -> PathBuf {
        match place {
            Place::Host => self.host.runtime().to_owned(),
            Place::Guest => PathBuf::from("/run/meeting"),
        }
    }

    /// Whether a program there listens by librdmacm.
    pub fn is_cm_listening(&self, place: Place, port: u16) -> Verdict<bool> {
        let runtime = self.runtime(place);
        match place {
            Place::Host => Ok(cm::listens(&runtime, PortSpace::Tcp, port)),
            Place::Guest => {
                let list = format!("ls {}/sluice-verbs", runtime.display());
                let names = self.guest()?.shell(&self.host, &list)?;
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
            Place::Guest => {
                let guest = self.guest()?;
                guest.await_listener(&self.host, server, protocol, port, LIMIT)
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
        let address = self.address(server);
        let command = |place| {
            let mut command = self.program(place, binary);
            stream::meet_at(&mut command, address);
            command
        };
        transfer.start(command(server), command(server.other()), self.dir(), LIMIT)
    }

    /// Bytes that ended programs of the host have had by lanes.
    pub fn lane_bytes(&self) -> Verdict<u64> {
        Ok(stats::read(&self.path("stats"))?.lane_bytes())
    }

    /// Fails unless there are more than so many.
    pub fn require_lane_bytes_since(&self, before: u64) -> Verdict {
        ensure(self.lane_bytes()? > before, || {
            format!("no byte went by a ring\n{}", self.describe())
        })
    }

    /// Fails if bytes went by the fabric.
    pub fn require_direct(&self) -> Verdict {
        let mut status = self.status(Place::Host)?;
        let peer = status["fabric"]["peers"][0].take();
        let bytes = ["sent_bytes", "received_bytes"].map(|name| peer[name].as_u64());
        ensure(bytes == [Some(0); 2], || {
            format!("bytes by the fabric: {bytes:?}")
        })
    }

    /// Waits until so many connections are in the window.
    pub fn await_lanes(&self, count: u64) -> Verdict {
        let has = || {
            let window = self.window(Place::Host).unwrap_or_default();
            Ok(window["lanes"].as_u64().unwrap_or(0) >= count)
        };
        ensure(wait_until(LIMIT, has)?, || self.describe())
    }

    /// Waits until nothing is lent: all programs are gone.
    pub fn await_all_back(&self) -> Verdict {
        let are_back = || {
            let is_back = |place| {
                let window = self.window(place).unwrap_or_default();
                window["lanes"] == 0 && window["lent_bytes"] == 0
            };
            Ok(PLACES.into_iter().all(is_back))
        };
        ensure(wait_until(LIMIT, are_back)?, || {
            let windows = PLACES.map(|place| self.window(place));
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
