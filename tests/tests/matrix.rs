//! Byte-exact streams in every combination of who is accelerated, address family,
//! kind of server, and who is killed in mid-transfer.
//!
//! `tests/apps/stream.c` checks every byte; a survivor of a kill must have got an
//! exact prefix and then the end of the stream or a reset.

use std::process::{Command, ExitCode};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use sluice_tests::apps::{self, BUILDS};
use sluice_tests::job::Job;
use sluice_tests::lab::{Lab, Mode};
use sluice_tests::stream;
use sluice_tests::suite::{self, Verdict, fail, trial};

const LIMIT: Duration = Duration::from_secs(60);
const CONNECTIONS: usize = 4;
const RECORDS: u32 = 6000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Accelerated {
    Both,
    Client,
    Server,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kill {
    Nobody,
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
            for server in ["thread", "fork", "prefork"] {
                for kill in [Kill::Nobody, Kill::Client, Kill::Server] {
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
        let source = apps::apps_dir().join("stream.c");
        let binary = apps::compile(&source, BUILDS[0], lab.path())?;

        let mut command = self.command(&lab, Accelerated::Server, &binary);
        command.args(["server", self.server, &CONNECTIONS.to_string()]);
        let mut server = Job::start(command, lab.path(), "server")?;
        let port = stream::await_port(&mut server, LIMIT)?;

        let records = if self.kill == Kill::Nobody {
            RECORDS
        } else {
            0
        };
        let mut command = self.command(&lab, Accelerated::Client, &binary);
        command.args([
            "client",
            &port.to_string(),
            &CONNECTIONS.to_string(),
            &records.to_string(),
        ]);
        let client = Job::start(command, lab.path(), "client")?;

        match self.kill {
            Kill::Nobody => {
                stream::check_complete(&client.finish(LIMIT)?.success()?, CONNECTIONS, RECORDS)?;
                stream::check_complete(&server.finish(LIMIT)?.success()?, CONNECTIONS, RECORDS)?;
                if self.accelerated == Accelerated::Both {
                    lab.require_lane_bytes(1)?;
                }
                Ok(())
            }
            Kill::Client => kill_one(client, server),
            Kill::Server => kill_one(server, client),
        }
    }

    fn command(self, lab: &Lab, end: Accelerated, binary: &std::path::Path) -> Command {
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

/// Kills one side with all its processes while records flow, and judges the other.
fn kill_one(victim: Job, survivor: Job) -> Verdict {
    // Not a measured time: any moment of the transfer will do, this is one of them.
    std::thread::sleep(Duration::from_millis(300));
    let Some(group) = Pid::from_raw(victim.id().try_into().unwrap_or(0)) else {
        return fail("the victim has no process id");
    };
    kill_process_group(group, Signal::KILL).map_err(std::io::Error::from)?;
    stream::check_cut(&survivor.finish(LIMIT)?.success()?, CONNECTIONS)
}
