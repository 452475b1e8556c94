//! Who may attach the programs, beside whom, and what is left when they go.
#![allow(unsafe_code)]

mod common;

use std::fs::File;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::thread;

use common::places::{PLACES, SOCKET_OPERATIONS, all_attached, attached, bpf, detach, words};
use common::{Agent, Group, can_run, until};
use sluice_bpf::{
    Capture, CaptureOptions, Destination, Error, Finder, FinderOptions, Listener, Rules,
};

#[test]
fn agent() {
    common::run_as_agent();
}

fn finder(group: &Group) -> Result<Finder, Error> {
    Finder::attach(&group.open(), &FinderOptions::default(), &Rules::all())
}

fn capture(group: &Group) -> Result<Capture, Error> {
    Capture::attach(&group.open(), &CaptureOptions::default())
}

/// Whether there is a program with this number.
fn program_exists(id: u32) -> bool {
    const PROG_GET_FD_BY_ID: i64 = 13;
    let fd = bpf(PROG_GET_FD_BY_ID, &mut [id, 0, 0]);
    if fd < 0 {
        return false;
    }
    // SAFETY: the descriptor is new and nobody else's.
    drop(unsafe { OwnedFd::from_raw_fd(fd as i32) });
    true
}

#[test]
fn dropping_leaves_nothing() {
    if !can_run("dropping_leaves_nothing") {
        return;
    }
    let group = Group::new();
    let held = (
        finder(&group).expect("attaches"),
        capture(&group).expect("attaches"),
    );
    for (place, count) in PLACES {
        assert_eq!(attached(&group, place).len(), count, "at {place}");
    }
    let programs = all_attached(&group);
    assert!(programs.iter().all(|id| program_exists(*id)));
    detach(&group, held);
    // The kernel takes its time.
    until("no programs", || {
        !programs.iter().any(|id| program_exists(*id))
    });
}

#[test]
fn a_killed_daemon_leaves_working_connections_and_nothing_else() {
    if !can_run("a_killed_daemon_leaves_working_connections_and_nothing_else") {
        return;
    }
    const CONNECTIONS: usize = 2000;
    let net = common::net();
    let group = Group::new();
    let mut daemon = Agent::start(&net.a, None);
    let mut client = Agent::start(&net.a, Some(&group));
    let server = net
        .b
        .enter(|| TcpListener::bind(net.b.v4_any()).expect("bound"));
    let to = server.local_addr().expect("bound");
    let order = format!("hold {} {}", group.path().display(), to.ip());
    daemon.ask(&order).expect("attaches");
    let programs = all_attached(&group);
    assert_eq!(programs.len(), 9);
    // Nothing arrives here before it is killed.
    assert_eq!(client.ask(&format!("hammer {to} 100")), Ok("0".into()));
    server.set_nonblocking(true).expect("set");
    let nobody = server.accept().expect_err("nobody came");
    assert_eq!(nobody.kind(), std::io::ErrorKind::WouldBlock);

    client.tell(&format!("hammer {to} {CONNECTIONS}"));
    thread::sleep(std::time::Duration::from_millis(20));
    daemon.kill();
    server.set_nonblocking(false).expect("set");
    thread::spawn(move || while server.accept().is_ok() {});
    let failed: usize = client.answer().expect("done").parse().expect("a number");
    // One may have been on its way to the listener.
    assert!(failed <= 1, "{failed} of {CONNECTIONS}");
    let end = client.connect(to).expect("connects");
    assert_eq!((end.local.ip(), end.peer), (net.a.v4, to));

    assert_eq!(all_attached(&group), []);
    until("no programs", || {
        !programs.iter().any(|id| program_exists(*id))
    });
    if let Ok(pinned) = std::fs::read_dir("/sys/fs/bpf") {
        for entry in pinned {
            let name = entry.expect("read").file_name();
            assert!(!name.to_string_lossy().contains("sluice"), "{name:?}");
        }
    }
}

/// Attaches a program that does nothing, with or without BPF_F_ALLOW_MULTI.
fn somebody_elses_program(group: &Group, flags: u32) -> OwnedFd {
    const PROG_LOAD: i64 = 5;
    const PROG_ATTACH: i64 = 8;
    // r0 = 1; exit
    let code: [u64; 2] = [0x0000_0001_0000_00b7, 0x95];
    let mut load = [0u32; 20];
    load[0] = 13;
    load[1] = 2;
    load[2..4].copy_from_slice(&words(code.as_ptr().cast()));
    load[4..6].copy_from_slice(&words(c"GPL".as_ptr().cast()));
    load[17] = SOCKET_OPERATIONS;
    let fd = bpf(PROG_LOAD, &mut load);
    assert!(fd >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: the descriptor is new and nobody else's.
    let program = unsafe { OwnedFd::from_raw_fd(fd as i32) };
    let directory = File::open(group.path()).expect("there");
    let target = directory.as_raw_fd() as u32;
    let source = program.as_raw_fd() as u32;
    let ret = bpf(
        PROG_ATTACH,
        &mut [target, source, SOCKET_OPERATIONS, flags, 0],
    );
    assert_eq!(ret, 0, "{}", std::io::Error::last_os_error());
    program
}

#[test]
fn other_programs_stay() {
    if !can_run("other_programs_stay") {
        return;
    }
    const ALLOW_MULTI: u32 = 1 << 1;
    let group = Group::new();
    let _theirs = somebody_elses_program(&group, ALLOW_MULTI);
    let theirs = attached(&group, SOCKET_OPERATIONS);
    let held = (
        finder(&group).expect("attaches"),
        capture(&group).expect("attaches"),
    );
    assert_eq!(attached(&group, SOCKET_OPERATIONS).len(), 3);
    drop(held);
    until("theirs is there alone", || {
        attached(&group, SOCKET_OPERATIONS) == theirs
    });

    let group = Group::new();
    let _theirs = somebody_elses_program(&group, 0);
    let theirs = all_attached(&group);
    let refused = finder(&group).expect_err("it is alone");
    let exclusive = |program| Error::Exclusive { program };
    assert_eq!(refused, exclusive("find_peer"));
    assert!(refused.to_string().contains("another one is there"));
    assert_eq!(
        capture(&group).expect_err("it is alone"),
        exclusive("follow")
    );
    until("nothing of what was attached before", || {
        all_attached(&group) == theirs
    });
}

/// Takes capabilities from the calling thread.
fn give_up(numbers: &[u32]) {
    let mut header = [0x2008_0522_u32, 0];
    let mut sets = [0u32; 6];
    // SAFETY: capget and capset read and write a header of two and sets of six words.
    unsafe {
        let get = libc::syscall(libc::SYS_capget, header.as_mut_ptr(), sets.as_mut_ptr());
        assert_eq!(get, 0);
        for number in numbers {
            sets[*number as usize / 32 * 3] &= !(1 << (number % 32));
        }
        let set = libc::syscall(libc::SYS_capset, header.as_mut_ptr(), sets.as_ptr());
        assert_eq!(set, 0);
    }
}

const NET_ADMIN: u32 = 12;
const SYS_ADMIN: u32 = 21;
const PERFMON: u32 = 38;
const BPF: u32 = 39;

#[test]
fn a_missing_capability_is_named() {
    if !can_run("a_missing_capability_is_named") {
        return;
    }
    let group = Group::new();
    for (without, named) in [
        (&[NET_ADMIN, SYS_ADMIN][..], vec!["CAP_NET_ADMIN"]),
        (&[BPF, SYS_ADMIN], vec!["CAP_BPF"]),
        (
            &[BPF, NET_ADMIN, SYS_ADMIN],
            vec!["CAP_BPF", "CAP_NET_ADMIN"],
        ),
    ] {
        let refused = thread::scope(|scope| {
            let thread = scope.spawn(|| {
                give_up(without);
                let refusals = [finder(&group).map(drop), capture(&group).map(drop)];
                refusals.map(|refused| refused.expect_err("not permitted"))
            });
            thread.join().expect("the thread ends well")
        });
        for refused in refused {
            match refused {
                Error::NotPermitted { missing, .. } => assert_eq!(missing, named),
                other => panic!("{named:?}: {other:?}"),
            }
        }
    }
    until("nothing is attached", || all_attached(&group).is_empty());
    let finder = finder(&group).expect("attaches");
    let refused = thread::scope(|scope| {
        let thread = scope.spawn(|| {
            give_up(&[PERFMON, SYS_ADMIN]);
            finder.enroll_listeners().expect_err("not permitted")
        });
        thread.join().expect("the thread ends well")
    });
    let missing = vec!["CAP_PERFMON"];
    let what = "to load a BPF program";
    if !matches!(refused, Error::Kernel { .. }) {
        assert_eq!(refused, Error::NotPermitted { what, missing });
    }
}

#[test]
fn capabilities_are_needed_only_once() {
    if !can_run("capabilities_are_needed_only_once") {
        return;
    }
    let group = Group::new();
    let mut finder = finder(&group).expect("attaches");
    let mut capture = capture(&group).expect("attaches");
    thread::scope(|scope| {
        scope.spawn(|| {
            give_up(&[NET_ADMIN, SYS_ADMIN, BPF]);
            finder.set_rules(&Rules::none()).expect("rules");
            assert_eq!(finder.verdict(1), Ok(None));
            assert_eq!(finder.read(&mut |event| panic!("{event:?}")), 0);
            let address: IpAddr = [192, 0, 2, 1].into();
            let destination = Destination {
                address,
                port: None,
                source: None,
            };
            capture.set_destinations(&[destination]).expect("set");
            capture.set_listener(1, Listener::default()).expect("set");
            let end = SocketAddr::new(address, 1);
            assert_eq!(capture.take_original(1, end, end), Ok(None));
            capture.present(1, end, end, end).expect("told");
        });
    });
}

#[test]
fn a_removed_cgroup_does_not_matter() {
    if !can_run("a_removed_cgroup_does_not_matter") {
        return;
    }
    let group = Group::new();
    let mut finder = finder(&group).expect("attaches");
    let mut capture = capture(&group).expect("attaches");
    std::fs::remove_dir(group.path()).expect("removed");
    finder.set_rules(&Rules::none()).expect("rules");
    capture.set_destinations(&[]).expect("set");
    assert_eq!(finder.verdict(1), Ok(None));
    assert!(!Path::new(group.path()).exists());
}
