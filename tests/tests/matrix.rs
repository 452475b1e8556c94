//! Byte-exact streams in every combination of who is accelerated, address family,
//! kind of server, and who is killed in mid-transfer.
//!
//! `tests/apps/stream.c` checks every byte; a survivor of a kill must have got an
//! exact prefix and then the end of the stream or a reset.

use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

use sluice_tests::lab::{Lab, Mode};
use sluice_tests::stream::{self, KILLS, Kill, SERVERS, Transfer};
use sluice_tests::suite::{self, Verdict, trial};

const LIMIT: Duration = Duration::from_secs(60);
const CONNECTIONS: usize = 4;
const RECORDS: u32 = 6000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Accelerated {
    Both,
    Client,
    Server,
}

#[derive(Clone, Copy, Debug)]
struct Case {
    accelerated: Accelerated,
    family: &'static str,
    server: &'static str,
    kill: Kill,
}

fn main() -> ExitCode {
    let mut trials = Vec::new();
    for accelerated in [Accelerated::Both, Accelerated::Client, Accelerated::Server] {
        for family in ["4", "6"] {
            for server in SERVERS {
                for kill in KILLS {
                    let case = Case {
                        accelerated,
                        family,
                        server,
                        kill,
                    };
                    let name = format!("{accelerated:?}/ipv{family}/{server}/kill-{kill:?}")
                        .to_lowercase();
                    trials.push(trial(name, move || case.check()));
                }
            }
        }
    }
    suite::run(trials, 2).exit_code()
}

impl Case {
    fn check(self) -> Verdict {
        let lab = Lab::new()?;
        let binary = stream::compile_plain(lab.path())?;
        let transfer = Transfer {
            server: self.server,
            connections: CONNECTIONS,
            records: self.kill.records(RECORDS),
        };
        let server = self.command(&lab, Accelerated::Server, &binary);
        let client = self.command(&lab, Accelerated::Client, &binary);
        let ends = transfer.start(server, client, lab.path(), LIMIT)?;
        ends.judge(self.kill, LIMIT)?;
        if self.kill == Kill::Nobody && self.accelerated == Accelerated::Both {
            lab.require_lane_bytes(1)?;
        }
        Ok(())
    }

    fn command(self, lab: &Lab, end: Accelerated, binary: &Path) -> Command {
        let mode = if self.accelerated == Accelerated::Both || self.accelerated == end {
            Mode::Accelerated
        } else {
            Mode::Plain
        };
        let mut command = lab.command(mode, binary);
        command.env("APP_FAMILY", self.family);
        command
    }
}
