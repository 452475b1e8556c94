//! What the tests of real programs share.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sluice_tests::job::{Job, Outcome};
use sluice_tests::lab::{Lab, Mode};
use sluice_tests::net::{await_listener, free_port};
use sluice_tests::programs::require;
use sluice_tests::suite::Verdict;

/// Bound of one program's run; none of them is near it when all is well, but a program that takes
/// turns with another one is many times slower on processors that others keep busy.
pub const LIMIT: Duration = Duration::from_secs(180);

/// A test's lab with the little rituals of starting servers and clients.
pub struct Stage {
    pub lab: Lab,
    serial: u32,
}

impl Stage {
    pub fn new() -> Verdict<Stage> {
        Ok(Stage::of(Lab::new()?))
    }

    pub fn of(lab: Lab) -> Stage {
        Stage { lab, serial: 0 }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.lab.path().join(name)
    }

    /// Starts a server and waits until it listens on the port.
    pub fn serve(&mut self, mode: Mode, program: &str, args: &[&str], port: u16) -> Verdict<Job> {
        let mut job = self.start(mode, program, args)?;
        await_listener(&mut job, port, LIMIT)?;
        Ok(job)
    }

    pub fn start(&mut self, mode: Mode, program: &str, args: &[&str]) -> Verdict<Job> {
        let path = require(program)?;
        self.serial += 1;
        let label = format!("{}-{}", self.serial, program.replace('/', "_"));
        let mut command = self.lab.command(mode, path);
        command.args(args).current_dir(self.lab.path());
        Job::start(command, self.lab.path(), &label)
    }

    /// Runs a program to its end and requires status 0.
    pub fn run(&mut self, mode: Mode, program: &str, args: &[&str]) -> Verdict<Outcome> {
        self.start(mode, program, args)?.finish(LIMIT)?.success()
    }

    /// Runs `sh -c` with the script.
    pub fn shell(&mut self, mode: Mode, script: &str) -> Verdict<Outcome> {
        self.run(mode, "sh", &["-c", script])
    }
}

pub fn port() -> Verdict<u16> {
    Ok(free_port()?)
}

pub fn write(path: &Path, content: impl AsRef<[u8]>) -> Verdict {
    Ok(fs::write(path, content)?)
}
