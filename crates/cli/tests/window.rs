//! `sluice window`: files, what is in them, and a server for virtual machines.

mod common;

use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Child, Stdio};

use common::{Scratch, stderr, stdout, wait_for};
use sluice_sys::ofd_lock;
use sluice_window::View;
use sluice_window::claim::{Claim, Claimed};
use sluice_window::ivshmem::Client;
use sluice_window::ledger::Ledger;
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

/// `sluice window serve` at that socket, and a connection to it.
fn served(scratch: &Scratch, socket: &Path) -> (Child, Client) {
    let words = ["window", "serve", socket.to_str().unwrap(), "--size", "1M"];
    let server = scratch.sluice(words).stdout(Stdio::null()).spawn().unwrap();
    let mut connected = None;
    wait_for("the server", || {
        connected = Client::connect(socket).ok();
        connected.is_some()
    });
    (server, connected.unwrap())
}

/// A served window with a holder that lends, one piece that is mapped, and a ledger that lies.
#[test]
fn what_is_lent_and_mapped_in_a_served_window_is_shown() {
    let scratch = Scratch::new();
    let socket = scratch.path("ivshmem.sock");
    let path = socket.to_str().unwrap();
    let (mut server, client) = served(&scratch, &socket);
    let memory = client.memory().as_raw_fd();
    let region = Region::open(Path::new(&format!("/proc/self/fd/{memory}"))).unwrap();
    let Claimed::Held(hold) = Claim::new(7, "alpha", Some(1)).poll(&region, 0) else {
        panic!("an empty window has a free slot");
    };
    let view = region.view(hold.slot());
    let mut ledger = Ledger::open(&view, region.header(), hold.slot());
    let piece = ledger.lend(&view, 0, 3 * 4096).unwrap();
    let start = region.header().geometry.slot_at(1) + piece.0;
    let again = ofd_lock::reopen(memory).unwrap();
    ofd_lock::share(again.raw(), &(start..start + 3 * 4096)).unwrap();

    let shown = || {
        let shown = scratch.sluice(["window", "show", "--json", path]).output();
        serde_json::from_slice::<serde_json::Value>(&shown.unwrap().stdout).unwrap()
    };
    let document = shown();
    assert_eq!(
        (&document["peers"], &document["doorbells"]),
        (&1.into(), &4.into())
    );
    let slot = document["slots"][1].clone();
    assert_eq!(
        (&slot["state"], &slot["name"]),
        (&"silent".into(), &"alpha".into())
    );
    assert!(slot["beat_age_ms"].as_u64() >= Some(700), "{slot}");
    assert_eq!(
        (&slot["lent_bytes"], &slot["pieces"]),
        (&12288.into(), &1.into())
    );
    assert_eq!(document["slots"][0]["pieces"], 0);

    // A holder that beats is no silent one. It is looked at for less than a second, in which who is to beat may get no
    // processor.
    let mut hold = hold;
    let words = ["window", "show", path];
    let mut text = String::new();
    wait_for("a holder that is seen to beat", || {
        let mut program = scratch
            .sluice(words)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        wait_for("what is shown", || {
            hold.beat(&region).unwrap();
            program.try_wait().unwrap().is_some()
        });
        text = stdout(&program.wait_with_output().unwrap());
        assert!(text.contains(", 1 peers with 4 doorbells\n"), "{text}");
        text.contains("slot 1: held alpha, beat ")
    });
    assert!(
        text.contains(" ms ago, 12K lent, 1 pieces mapped\n"),
        "{text}"
    );

    // Of what a configuration names, everything that is there is shown.
    let config = scratch.path("sluiced.toml");
    let lines = format!(
        "[daemon]\nname = \"alpha\"\n[[window]]\npath = {path:?}\nusers = [\"0\"]\n\
         [[window]]\npath = \"/nowhere/w\"\nusers = [\"0\"]\n"
    );
    std::fs::write(&config, lines).unwrap();
    let words = [
        "window",
        "list",
        "--json",
        "--config",
        config.to_str().unwrap(),
    ];
    let listed = scratch.sluice(words).output().unwrap();
    assert_eq!(listed.status.code(), Some(1), "{}", stderr(&listed));
    assert!(
        stderr(&listed).contains("/nowhere/w"),
        "{}",
        stderr(&listed)
    );
    let document: serde_json::Value = serde_json::from_slice(&listed.stdout).unwrap();
    assert_eq!(document["windows"].as_array().unwrap().len(), 1);
    assert_eq!(document["windows"][0]["slots"][1]["lent_bytes"], 12288);

    // Whoever shares the window can write anything there.
    drop(again);
    let (heap, bytes) = region.header().geometry.heap();
    let at = |at| sluice_window::Out { slot: 1, at };
    view.write(at(heap + 64), &vec![0xff; (bytes - 64) as usize]);
    let slot = shown()["slots"][1].clone();
    assert!(slot["lent_bytes"].as_u64().unwrap() <= bytes, "{slot}");
    assert_eq!(slot["pieces"], 0);
    view.write(at(heap), &vec![0xff; bytes as usize]);
    assert_eq!(shown()["slots"][1]["lent_bytes"], 0);
    let pid = rustix::process::Pid::from_child(&server);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    assert_eq!(server.wait().unwrap().code(), Some(0));
}

#[test]
fn without_windows_there_are_none() {
    let scratch = Scratch::new();
    let config = scratch.path("sluiced.toml");
    std::fs::write(&config, "[daemon]\nname = \"alpha\"\n").unwrap();
    let words = ["window", "list", "--config", config.to_str().unwrap()];
    let listed = scratch.sluice(words).output().unwrap();
    assert_eq!(listed.status.code(), Some(0), "{}", stderr(&listed));
    assert!(
        stdout(&listed).starts_with("no windows"),
        "{}",
        stdout(&listed)
    );
    std::fs::write(&config, "[[window]]\nusers = 5\n").unwrap();
    let listed = scratch.sluice(words).output().unwrap();
    assert_eq!(listed.status.code(), Some(1));
}

#[test]
fn a_served_window_is_one_for_all_peers_and_ends_cleanly() {
    let scratch = Scratch::new();
    let socket = scratch.path("ivshmem.sock");
    let (mut server, first) = served(&scratch, &socket);
    let second = Client::connect(&socket).unwrap();
    let open = |client: &Client| {
        let path = format!("/proc/self/fd/{}", client.memory().as_raw_fd());
        Region::open(Path::new(&path)).unwrap()
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
