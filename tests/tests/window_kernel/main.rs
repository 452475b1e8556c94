//! The module of `kernel/window`: its protocol in user space beside the crate `sluice-window`, over
//! one memory, and the module itself in guests, with a host of this crate as its peer.

mod build;
mod channel;
mod ends;
mod guest;
mod guests;
mod host;
mod liar;
mod libraries;
mod outsider;
mod protocol;
mod rdma;
mod smc;
mod stranger;
mod strangers;
mod unready;
mod users;
mod victim;

use std::process::ExitCode;

use sluice_tests::suite::{self, Verdict};

/// Fails with this text unless it is so.
fn sure(condition: bool, text: impl Into<String>) -> Verdict {
    suite::ensure(condition, || text.into())
}

fn main() -> ExitCode {
    let mut trials = protocol::trials();
    trials.extend(channel::trials());
    trials.extend(guests::trials());
    trials.extend(rdma::trials());
    trials.extend(strangers::trials());
    trials.extend(unready::trials());
    trials.extend(ends::trials());
    trials.extend(users::trials());
    trials.extend(smc::trials());
    trials.extend(libraries::trials());
    // One at a time: an emulated machine can use every core.
    suite::run(trials, 1).exit_code()
}
