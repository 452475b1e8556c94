//! One run of the benchmark: the scratch folder, the daemon, and how programs are started.

pub mod hosts;

use std::cell::{Cell, RefCell};
use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use super::error::{BenchError, Result};
use super::installation;
use super::machine;
use super::model::{LANES, Sample, Variant};
use super::network::{End, Network};
use super::process::{Output, Process, Ready};
use super::signals::Scratch;
use super::usage;
use super::words::{path_text, quoted, words};

/// Beyond the time that a client was told to take, for start, warm-up and a slow machine.
const CLIENT_GRACE: Duration = Duration::from_secs(60);

/// Of the memory that hosts share: a direct lane takes 512 KiB, and some workloads have a thousand. Only what is
/// written to is taken.
const WINDOW_SIZE: &str = "1G";

/// How long that may take to be made.
const WINDOW_PATIENCE: Duration = Duration::from_secs(20);

const STATUS_PATIENCE: Duration = Duration::from_secs(5);

/// What workloads start programs with.
#[derive(Debug)]
pub struct Session {
    // Dropped in this order: the daemon before the folder that holds its socket.
    daemon: Option<Process>,
    scratch: Rc<Scratch>,
    sluice: PathBuf,
    /// This program, which is some of the small programs that are measured.
    bench: PathBuf,
    socket: PathBuf,
    pub seconds: u32,
    /// How much later what is written to a window is seen, in nanoseconds, where a variant wants it.
    pub window_delay_ns: u32,
    commands: Rc<RefCell<Vec<String>>>,
    /// How many folders have got a number.
    folders: Rc<Cell<u32>>,
    /// Ports given out, written as `$PORT` in the commands that the report shows.
    ports: Rc<RefCell<Vec<u16>>>,
}

impl Session {
    /// `sluice` is the program to measure. Makes the scratch folder and, for accelerated variants, starts a daemon of its own: one
    /// that already runs may be of another build, and its CPU time would not be ours alone.
    pub fn start(sluice: &Path, seconds: u32, with_sluice: bool) -> Result<Self> {
        let bench = std::env::current_exe()
            .map_err(|error| BenchError::io("find the program of the benchmark", &error))?;
        let scratch = Rc::new(Scratch::create()?);
        let socket = control_folder(&scratch, "control", private())?;
        let mut session = Self {
            daemon: None,
            scratch,
            sluice: sluice.to_owned(),
            bench,
            socket,
            seconds,
            window_delay_ns: 0,
            commands: Rc::default(),
            folders: Rc::default(),
            ports: Rc::default(),
        };
        if with_sluice {
            session.start_daemon(&[])?;
        }
        Ok(session)
    }

    /// The same with a daemon of its own that serves programs of every user, if the variant needs one.
    pub fn for_every_user(&self, variant: Variant) -> Result<Self> {
        let name = format!("control-{}", self.next_number());
        let mut session = Self {
            daemon: None,
            scratch: Rc::clone(&self.scratch),
            sluice: self.sluice.clone(),
            bench: self.bench.clone(),
            socket: control_folder(&self.scratch, &name, passable())?,
            seconds: self.seconds,
            window_delay_ns: self.window_delay_ns,
            commands: Rc::clone(&self.commands),
            folders: Rc::clone(&self.folders),
            ports: Rc::clone(&self.ports),
        };
        if variant.needs_sluice() {
            session.start_daemon(&["--allow-all-users"])?;
        }
        Ok(session)
    }

    fn start_daemon(&mut self, options: &[&str]) -> Result<()> {
        let sluiced = installation::sluiced()?;
        let mut words = words![
            path_text(&sluiced),
            "--foreground",
            "--socket",
            path_text(&self.socket),
        ];
        words.extend(options.iter().map(|option| (*option).to_owned()));
        let mut daemon = Process::start(&words, self.scratch.path(), false)?;
        daemon.wait_ready(&Ready::Unix(self.socket.clone()))?;
        self.daemon = Some(daemon);
        Ok(())
    }

    /// A command line, put under `sluice run` when it is to be accelerated.
    pub fn command_line(&self, accelerated: bool, words: &[String]) -> Vec<String> {
        self.command_line_at(accelerated.then_some(&*self.socket), words)
    }

    /// The same with the socket of the daemon that it is to have, if it is to be accelerated.
    fn command_line_at(&self, socket: Option<&Path>, words: &[String]) -> Vec<String> {
        let mut argv = Vec::new();
        if let Some(socket) = socket {
            argv.extend(words![
                path_text(&self.sluice),
                "run",
                "--socket",
                path_text(socket),
                "--",
            ]);
        }
        if let Some((program, arguments)) = words.split_first() {
            let found = machine::find_program(program).map(|path| path_text(&path));
            argv.push(found.unwrap_or_else(|| program.clone()));
            argv.extend_from_slice(arguments);
        }
        self.note_command(socket.is_some(), words);
        argv
    }

    /// A verbs program under `sluice verbs` with the options.
    pub fn verbs_with(&self, options: &[String], words: &[String]) -> Vec<String> {
        let mut argv = words![path_text(&self.sluice), "verbs"];
        argv.extend_from_slice(options);
        argv.push("--".to_owned());
        argv.extend_from_slice(words);
        argv
    }

    /// A number for the name of a folder of one measurement.
    pub fn next_number(&self) -> u32 {
        let number = self.folders.get();
        self.folders.set(number + 1);
        number
    }

    /// `sluice window` with that word, for memory of the usual size.
    pub fn window(&self, word: &str, path: &Path) -> Result<Process> {
        let (sluice, path) = (path_text(&self.sluice), path_text(path));
        let words = words![sluice, "window", word, path, "--size", WINDOW_SIZE];
        Process::start_on(None, &words, self.scratch.path(), false)
    }

    /// Makes memory that hosts share in a file.
    pub fn create_window(&self, path: &Path) -> Result<()> {
        self.window("create", path)?
            .finish(WINDOW_PATIENCE)
            .map(drop)
    }

    /// Who is started with it sees later what is new in memory that hosts share.
    pub fn delay_variable(&self) -> String {
        format!("SLUICE_WINDOW_DELAY_NS={}", self.window_delay_ns)
    }

    /// Two hosts of a measurement's own, joined by a link with the MTU in bytes.
    pub fn network(&self, mtu: u32) -> Result<Network> {
        Network::new(mtu, self.scratch.path())
    }

    /// A verbs program under `sluice verbs`; `private` turns the allocation hooks off.
    pub fn verbs(&self, private: bool, words: &[String]) -> Vec<String> {
        let mut argv = Vec::new();
        if private {
            argv.extend(words!["env", "SLUICE_VERBS_ARENA=off"]);
        }
        argv.extend(self.verbs_with(&[], words));
        argv
    }

    /// A hidden subcommand of this program, for workloads that need a program of our own.
    pub fn helper(&self, words: &[&str]) -> Vec<String> {
        let mut argv = vec![path_text(&self.bench)];
        argv.extend(words.iter().map(|word| (*word).to_owned()));
        argv
    }

    /// A program that does nothing but use a processor; it says "running".
    pub fn endless_loop(&self, nice: u8) -> Result<Process> {
        let words = self.helper(&["endless-loop", &nice.to_string()]);
        Process::start(&words, self.scratch.path(), false)
    }

    /// Starts a server and waits until it accepts connections.
    pub fn server(&self, variant: Variant, words: &[String], ready: &Ready) -> Result<Process> {
        self.server_on(None, variant, words, ready)
    }

    /// The same on one of two hosts, if one is named.
    pub fn server_on(
        &self,
        host: Option<&End>,
        variant: Variant,
        words: &[String],
        ready: &Ready,
    ) -> Result<Process> {
        let argv = self.command_line(variant.server_accelerated(), words);
        let mut process = Process::start_on(host, &argv, self.scratch.path(), false)?;
        process.wait_ready(ready)?;
        Ok(process)
    }

    /// Runs a client to its end; the time that it was told to take is `seconds`.
    pub fn client(&self, variant: Variant, words: &[String], seconds: u32) -> Result<Output> {
        self.client_on(None, variant, words, seconds)
    }

    /// The same on one of two hosts, if one is named.
    pub fn client_on(
        &self,
        host: Option<&End>,
        variant: Variant,
        words: &[String],
        seconds: u32,
    ) -> Result<Output> {
        let argv = self.command_line(variant.client_accelerated(), words);
        self.to_its_end(host, &argv, seconds)
    }

    /// Runs a command line that is told to take so many seconds.
    fn to_its_end(&self, host: Option<&End>, argv: &[String], seconds: u32) -> Result<Output> {
        let limit = Duration::from_secs(u64::from(seconds)) + CLIENT_GRACE;
        Process::start_on(host, argv, self.scratch.path(), false)?.finish(limit)
    }

    /// Runs a client as [`Self::client`] and counts the CPU time that it, the servers and the
    /// daemon use meanwhile.
    pub fn measured(
        &self,
        variant: Variant,
        servers: &[&Process],
        words: &[String],
    ) -> Result<(Output, Sample)> {
        self.measured_on(None, variant, servers, words)
    }

    /// The same with the client on one of two hosts, if one is named. Then the time of the kernel
    /// threads that carry frames between the hosts counts too; so does that of those in which the
    /// kernel's own RoCEv2 works.
    pub fn measured_on(
        &self,
        host: Option<&End>,
        variant: Variant,
        servers: &[&Process],
        words: &[String],
    ) -> Result<(Output, Sample)> {
        let lanes_before = self.lanes_given(variant)?;
        let argv = self.command_line(variant.client_accelerated(), words);
        let daemon = self.daemon_group(variant);
        let (output, mut sample) = self.watched(host, variant, servers, &daemon, &argv)?;
        if let (Some(before), Some(after)) = (lanes_before, self.lanes_given(variant)?) {
            sample.details.insert(LANES, (after - before) as f64);
        }
        Ok((output, sample))
    }

    /// Runs a client's command line and counts what it, the servers, the daemons' process groups and
    /// the kernel's threads use meanwhile.
    fn watched(
        &self,
        host: Option<&End>,
        variant: Variant,
        servers: &[&Process],
        daemons: &[i32],
        argv: &[String],
    ) -> Result<(Output, Sample)> {
        let groups: Vec<i32> = servers.iter().map(|server| server.group()).collect();
        let (start, busy_before) = (Instant::now(), usage::machine_busy_s());
        let carriers: &[&str] = match variant {
            Variant::Rxe | Variant::RxeOneDevice => &[usage::PACKET_THREADS, usage::WORKERS],
            _ if host.is_some() => &[usage::PACKET_THREADS],
            _ => &[],
        };
        let kernel_s = || usage::kernel_threads_cpu_s(carriers);
        let before = (usage::cpu_s(&groups), usage::cpu_s(daemons), kernel_s());
        let output = self.to_its_end(host, argv, self.seconds)?;
        let after = (usage::cpu_s(&groups), usage::cpu_s(daemons), kernel_s());
        let mut sample = Sample {
            cpu_server_s: after.0 - before.0,
            cpu_daemon_s: after.1 - before.1,
            cpu_kernel_s: after.2 - before.2,
            cpu_client_s: output.cpu_s,
            ..Sample::default()
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let offered_s = start.elapsed().as_secs_f64() * cores as f64;
        let others_s = usage::machine_busy_s() - busy_before - sample.cpu_s();
        sample.cpu_others_share = (others_s / offered_s).clamp(0.0, 1.0);
        Ok((output, sample))
    }

    /// The daemon's process group, if the variant uses it.
    pub fn daemon_group(&self, variant: Variant) -> Vec<i32> {
        let daemon = self.daemon.as_ref().filter(|_| variant.needs_sluice());
        daemon.map(Process::group).into_iter().collect()
    }

    /// How many connections have got a lane since the start, by the daemon's own count; `None`
    /// in variants that do not use it. The only proof that a run was not simply TCP.
    pub fn lanes_given(&self, variant: Variant) -> Result<Option<u64>> {
        if self.daemon_group(variant).is_empty() {
            return Ok(None);
        }
        self.daemon_number("/counters/matches").map(Some)
    }

    /// The size of one direction's ring, by the daemon's own word.
    pub fn ring_bytes(&self) -> Result<u64> {
        self.daemon_number("/ring_bytes")
    }

    /// A number of the daemon's status document, by JSON pointer.
    fn daemon_number(&self, pointer: &str) -> Result<u64> {
        daemon_number(&self.socket, pointer)
    }

    /// Starts a program that takes orders on its standard input.
    pub fn interactive(&self, accelerated: bool, words: &[String]) -> Result<Process> {
        let argv = self.command_line(accelerated, words);
        Process::start(&argv, self.scratch.path(), true)
    }

    /// A new folder below the scratch folder, readable by workers that gave up their user.
    pub fn folder(&self, name: &str) -> Result<PathBuf> {
        let path = self.scratch.path().join(name);
        match fs::create_dir(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => Err(BenchError::io(
                format!("make the folder {}", path.display()),
                &error,
            )),
            _ => Ok(path),
        }
    }

    /// A port of 127.0.0.1 that nobody listens on. Another program may take it before ours does;
    /// then ours fails to start and says so.
    pub fn free_port(&self) -> Result<u16> {
        let port = std::net::TcpListener::bind(("127.0.0.1", 0))
            .and_then(|listener| listener.local_addr())
            .map(|address| address.port())
            .map_err(|error| BenchError::io("find a free port", &error))?;
        self.ports.borrow_mut().push(port);
        Ok(port)
    }

    /// The command lines started since the last call, each once, with `$DIR` for the scratch
    /// folder.
    pub fn take_commands(&self) -> Vec<String> {
        self.commands.take()
    }

    fn note_command(&self, accelerated: bool, words: &[String]) {
        let prefix = if accelerated { "sluice run -- " } else { "" };
        let mut line = words
            .iter()
            .map(|word| quoted(word))
            .collect::<Vec<_>>()
            .join(" ")
            .replace(&path_text(self.scratch.path()), "$DIR")
            .replace(&path_text(&self.bench), "sluice-bench")
            .replace(&path_text(&self.sluice), "sluice");
        for port in self.ports.borrow().iter() {
            line = line.replace(&port.to_string(), "$PORT");
        }
        let line = format!("{prefix}{line}");
        let mut commands = self.commands.borrow_mut();
        if !commands.contains(&line) {
            commands.push(line);
        }
    }
}

/// Where the socket of a daemon is to be, in a folder made for it.
fn control_folder(scratch: &Scratch, name: &str, mode: fs::Permissions) -> Result<PathBuf> {
    let control = scratch.path().join(name);
    fs::create_dir(&control)
        .and_then(|()| fs::set_permissions(&control, mode))
        .map_err(|error| BenchError::io("make the daemon's folder", &error))?;
    Ok(control.join("control.sock"))
}

/// A number of the status document of the daemon at the socket, by JSON pointer.
fn daemon_number(socket: &Path, pointer: &str) -> Result<u64> {
    let status = sluice_control::client::status(socket, STATUS_PATIENCE)
        .map_err(|error| BenchError::Failed(format!("sluiced does not answer: {error}")))?;
    serde_json::from_slice::<serde_json::Value>(&status)
        .ok()
        .and_then(|status| status.pointer(pointer)?.as_u64())
        .ok_or_else(|| BenchError::Failed(format!("sluiced does not tell its {pointer}")))
}

fn private() -> fs::Permissions {
    <fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o700)
}

/// Whoever knows the name of what is in a folder gets there.
fn passable() -> fs::Permissions {
    <fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o711)
}
