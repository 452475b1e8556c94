//! How sluiced is run and watched: figures for Prometheus, the service manager, reloading, what
//! capabilities it keeps, how hosts find each other by handshakes, the pair of hosts that `sluice doctor` looks at, and the DaemonSet.

mod device_plugin;
mod exposition;
mod figures;
mod finding;
mod kubernetes;
mod lab;
mod pair;
mod service;

use std::process::ExitCode;

use sluice_tests::suite;

fn main() -> ExitCode {
    let mut trials = Vec::new();
    trials.extend(figures::trials());
    trials.extend(finding::trials());
    trials.extend(service::trials());
    trials.extend(pair::trials());
    trials.extend(kubernetes::trials());
    trials.extend(device_plugin::trials());
    suite::run(trials, 1).exit_code()
}
