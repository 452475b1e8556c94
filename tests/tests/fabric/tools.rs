//! What the rows with real programs share.

use sluice_tests::fleet::LIMIT;
use sluice_tests::hosts::Side;
use sluice_tests::hosts::ports::Protocol;
use sluice_tests::job::{Job, Outcome};
use sluice_tests::programs::require;
use sluice_tests::suite::Verdict;

use crate::hosts::{Two, Way};

/// Two hosts, and programs that are started on them one after the other.
pub struct Stage {
    pub two: Two,
}

impl Stage {
    pub fn new(way: Way) -> Verdict<Stage> {
        Ok(Stage { two: way.set_up()? })
    }

    /// The server's address.
    pub fn address(&self) -> String {
        self.two.address(Side::Right).to_string()
    }

    pub fn port(&self) -> Verdict<u16> {
        Ok(self.two.host(Side::Right).free_port(Protocol::Tcp)?)
    }

    /// Starts a server on the right host and waits until it listens on the port.
    pub fn serve(&self, program: &str, words: &[&str], port: u16) -> Verdict<Job> {
        let mut job = self.start(Side::Right, true, program, words)?;
        let host = self.two.host(Side::Right);
        host.await_listener(&mut job, Protocol::Tcp, port, LIMIT)?;
        Ok(job)
    }

    pub fn start(
        &self,
        side: Side,
        is_accelerated: bool,
        program: &str,
        words: &[&str],
    ) -> Verdict<Job> {
        let path = require(program)?;
        let mut command = self.two.program(side, is_accelerated, &path);
        command.args(words).current_dir(self.two.dir());
        self.two.start_program(command, program)
    }

    /// Runs a program on the left host to its end and requires status 0.
    pub fn run<W: AsRef<str>>(&self, program: &str, words: &[W]) -> Verdict<Outcome> {
        self.run_as(true, program, words)
    }

    /// The same, accelerated or not.
    pub fn run_as<W: AsRef<str>>(
        &self,
        is_accelerated: bool,
        program: &str,
        words: &[W],
    ) -> Verdict<Outcome> {
        let words: Vec<&str> = words.iter().map(AsRef::as_ref).collect();
        let job = self.start(Side::Left, is_accelerated, program, &words)?;
        let outcome = job.finish(LIMIT).and_then(Outcome::success);
        outcome.map_err(|problem| problem.with(|| self.two.describe()))
    }
}
