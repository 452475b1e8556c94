//! `sluice window`: files, what is in them, and a server for virtual machines.

mod common;

use std::os::fd::AsRawFd;
use std::process::Stdio;

use common::{Scratch, stderr, stdout, wait_for};
use sluice_window::claim::{Claim, Claimed};
use sluice_window::ivshmem::Client;
use sluice_window::region::Region;

#[test]
fn a_window_is_made_shown_and_not_overwritten() {
    let scratch = Scratch::new();
    let file = scratch.path("w");
    let path = file.to_str().unwrap();
    let create = |more: &[&str]| {
        let mut command = scratch.sluice(["window", "create", path]);
        command.args(more).output().unwrap()
    };
    let no_size = create(&[]);
    assert_eq!(no_size.status.code(), Some(1));
    assert!(stderr(&no_size).contains("--size"), "{no_size:?}");
    let small = create(&["--size", "4K"]);
    assert!(stderr(&small).contains("too few"), "{small:?}");
    assert!(!file.exists());
    assert_eq!(
        create(&["--size", "1M", "--hosts", "3"]).status.code(),
        Some(0)
    );
    let again = create(&[]);
    assert_eq!(again.status.code(), Some(1));
    assert!(stderr(&again).contains("--force"), "{again:?}");

    let region = Region::open(&file).unwrap();
    let Claimed::Held(_hold) = Claim::new(7, "alpha\x1b[2J", Some(1)).poll(&region, 0) else {
        panic!("an empty window has a free slot");
    };
    let shown = scratch.sluice(["window", "show", path]).output().unwrap();
    let text = stdout(&shown);
    assert!(text.contains("a coherent window of"), "{text}");
    assert!(text.contains("slot 0: free\n"), "{text}");
    // It does not beat, and its name is printed without control characters.
    assert!(text.contains("slot 1: silent alpha"), "{text}");
    assert!(!text.contains('\x1b'), "{text}");
    let json = scratch.sluice(["window", "show", "--json", path]).output();
    let document: serde_json::Value = serde_json::from_slice(&json.unwrap().stdout).unwrap();
    assert_eq!(document["format"], 1);
    assert_eq!(document["slots"].as_array().unwrap().len(), 3);
    assert_eq!(document["slots"][1]["state"], "silent");
}

#[test]
fn what_is_no_window_is_named() {
    let scratch = Scratch::new();
    for path in ["/dev/null", "/etc/passwd", "/nowhere/w", "/tmp"] {
        let shown = scratch.sluice(["window", "show", path]).output().unwrap();
        assert_eq!(shown.status.code(), Some(1), "{path}");
        assert!(!stderr(&shown).is_empty(), "{path}");
    }
}

#[test]
fn a_served_window_is_one_for_all_peers_and_ends_cleanly() {
    let scratch = Scratch::new();
    let socket = scratch.path("ivshmem.sock");
    let words = ["window", "serve", socket.to_str().unwrap(), "--size", "1M"];
    let mut server = scratch.sluice(words).stdout(Stdio::null()).spawn().unwrap();
    let mut connected = None;
    wait_for("the server", || {
        connected = Client::connect(&socket).ok();
        connected.is_some()
    });
    let first = connected.unwrap();
    let second = Client::connect(&socket).unwrap();
    let open = |client: &Client| {
        let path = format!("/proc/self/fd/{}", client.memory().as_raw_fd());
        Region::open(std::path::Path::new(&path)).unwrap()
    };
    assert_eq!(open(&first).header(), open(&second).header());
    // The size is sealed.
    let file = std::fs::File::from(first.memory().try_clone_to_owned().unwrap());
    assert!(file.set_len(4096).is_err());
    let pid = rustix::process::Pid::from_child(&server);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    assert_eq!(server.wait().unwrap().code(), Some(0));
    assert!(!socket.exists());
}
