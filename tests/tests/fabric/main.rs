//! Sockets between two hosts, each with a `sluiced` of its own: unmodified programs, bytes by RDMA,
//! and daemons and links that end in the middle.
//!
//! A run has the rows that each module's `is_usual` names; `SLUICE_ROWS=all` has all of them, which
//! takes most of an hour.

#[path = "../roce/attacks.rs"]
mod attacks;
#[path = "../../../crates/hosts/daemon/tests/common/mod.rs"]
mod common;
mod flood;
mod hosts;
mod matrix;
mod plain;
mod programs;
mod queues;
mod security;
mod sleepers;
mod ssh;
mod tools;
mod translated;
mod troubles;
mod web;
#[allow(dead_code)]
#[path = "../../../crates/hosts/peering/tests/common/wire.rs"]
mod wire;

use std::process::ExitCode;

use sluice_tests::suite;

fn main() -> ExitCode {
    let mut trials = Vec::new();
    trials.extend(suite::usual(matrix::trials(), matrix::is_usual));
    trials.extend(suite::usual(programs::trials(), programs::is_usual));
    trials.extend(suite::usual(web::trials(), web::is_usual));
    trials.extend(ssh::trials());
    trials.extend(sleepers::trials());
    trials.extend(suite::usual(troubles::trials(), troubles::is_usual));
    trials.extend(suite::usual(queues::trials(), queues::is_usual));
    trials.extend(plain::trials());
    trials.extend(security::trials());
    trials.extend(translated::trials());
    trials.extend(flood::trials());
    // One at a time: programs and daemons poll.
    suite::run(trials, 1).exit_code()
}
