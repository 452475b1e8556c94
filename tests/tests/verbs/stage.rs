//! How the tests start verbs programs: alone, and as a server and its client.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use sluice_tests::job::{Job, Outcome, run};
use sluice_tests::net::{free_port, is_listening};
use sluice_tests::suite::{Verdict, ensure};
use sluice_tests::verbs::sluice_verbs;
use tempfile::TempDir;

/// For one program, on a machine that does other things too.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Of the device within a host, bytes.
pub const PATH_MTU: u32 = 4096;

/// Variables for the programs of a test.
pub type Environment = &'static [(&'static str, &'static str)];

/// How one-sided operations reach a peer's memory, and the variables that bring it about.
pub const WAYS: [(&str, Environment); 3] = [
    ("shared", &[]),
    ("through-the-kernel", &[("SLUICE_VERBS_ARENA", "off")]),
    (
        "by-the-owner",
        &[("SLUICE_VERBS_ARENA", "off"), ("SLUICE_VERBS_CMA", "0")],
    ),
];

/// A directory for one test's outputs.
pub struct Stage {
    dir: TempDir,
    started: u32,
    /// Of every program.
    environment: Vec<(&'static str, &'static str)>,
    /// How long a server and its client may take.
    limit: Duration,
}

impl Stage {
    pub fn new() -> Verdict<Stage> {
        Ok(Stage {
            dir: tempfile::Builder::new()
                .prefix("sluice-verbs-test-")
                .tempdir()?,
            started: 0,
            environment: Vec::new(),
            limit: LIMIT,
        })
    }

    /// For a server and a client that are slow by themselves.
    pub fn with_limit(mut self, limit: Duration) -> Stage {
        self.limit = limit;
        self
    }

    /// Where outputs are.
    pub fn folder(&self) -> &Path {
        self.dir.path()
    }

    /// Sets variables for the programs that are started from now on.
    pub fn set(&mut self, variables: Environment) {
        self.environment.extend(variables);
    }

    /// See [`sluice_verbs`].
    pub fn verbs(&self, program: &str, arguments: &[&str], options: &[String]) -> Verdict<Command> {
        let mut command = sluice_verbs(program, arguments, options)?;
        command.envs(self.environment.iter().copied());
        Ok(command)
    }

    /// A name for a program's outputs; the program may be a path.
    fn label(&mut self, program: &str) -> String {
        self.started += 1;
        let name = Path::new(program).file_name().unwrap_or_default();
        format!("{}-{}", self.started, name.to_string_lossy())
    }

    pub fn start(&mut self, program: &str, arguments: &[&str]) -> Verdict<Job> {
        self.start_with(program, arguments, &[])
    }

    /// With options of `sluice verbs`.
    pub fn start_with(
        &mut self,
        program: &str,
        arguments: &[&str],
        options: &[String],
    ) -> Verdict<Job> {
        let command = self.verbs(program, arguments, options)?;
        self.launch(command, program)
    }

    /// Starts what [`Stage::verbs`] has made.
    pub fn launch(&mut self, command: Command, program: &str) -> Verdict<Job> {
        let label = self.label(program);
        Job::start(command, self.dir.path(), &label)
    }

    /// Runs a program to its end, whatever that is.
    pub fn run(&mut self, program: &str, arguments: &[&str]) -> Verdict<Outcome> {
        let command = self.verbs(program, arguments, &[])?;
        let label = self.label(program);
        run(command, self.dir.path(), &label, LIMIT)
    }

    /// Runs a server and, once it listens, its client with the server's address as the last
    /// argument. Both get `-p` with a free port. Both must end with status 0.
    pub fn pair(&mut self, program: &str, arguments: &[&str]) -> Verdict<(Outcome, Outcome)> {
        self.pair_with(program, arguments, &[], &[])
    }

    /// With options of `sluice verbs` for the server and for the client.
    pub fn pair_with(
        &mut self,
        program: &str,
        arguments: &[&str],
        server_options: &[String],
        client_options: &[String],
    ) -> Verdict<(Outcome, Outcome)> {
        let number = free_port()?;
        let port = number.to_string();
        let mut all = vec!["-p", port.as_str()];
        all.extend(arguments);
        let mut server = self.start_with(program, &all, server_options)?;
        server.await_ready(LIMIT, "listening socket", || is_listening(number))?;
        all.push("127.0.0.1");
        let client = self.start_with(program, &all, client_options)?;
        let client = match client.finish(self.limit) {
            Ok(client) => client,
            // What the server said belongs to the picture.
            Err(problem) => {
                println!("{}", server.describe());
                return Err(problem);
            }
        };
        if !client.status.success() {
            println!("{}", server.describe());
        }
        let client = client.success()?;
        Ok((server.finish(self.limit)?.success()?, client))
    }

    /// Runs a client until it succeeds. One that comes before the server listens is refused, and
    /// there is no socket of the kernel's to wait for.
    pub fn until_success(
        &mut self,
        program: &str,
        arguments: &[&str],
        options: &[String],
        server: &mut Job,
    ) -> Verdict<Outcome> {
        let start = Instant::now();
        loop {
            let client = self.start_with(program, arguments, options)?;
            let outcome = client.finish(LIMIT)?;
            if outcome.status.success() || start.elapsed() > LIMIT {
                return outcome.success();
            }
            let ended = server.poll()?.is_some();
            ensure(!ended, || {
                format!("{}\n{}", outcome.describe(), server.describe())
            })?;
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}
