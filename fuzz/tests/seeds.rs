//! Every seed of every target.

use std::process::Command;

/// In a process of its own, as a target may end it.
#[test]
fn every_target_survives_its_seeds() {
    let replay = Command::new(env!("CARGO_BIN_EXE_fuzz"))
        .arg("replay")
        .output()
        .expect("fuzz");
    // The last line is what it died of.
    let said = String::from_utf8_lossy(&replay.stdout);
    let why = String::from_utf8_lossy(&replay.stderr);
    assert!(replay.status.success(), "{}\n{said}{why}", replay.status);
}
