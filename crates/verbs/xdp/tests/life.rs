//! Whose program is attached, how long, and what happens when something is taken away.
#![allow(unsafe_code)]

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::{Command, Stdio};

use common::{Device as _, Host, INTERFACE, Net, QPN, can_run, check, send, until};
use sluice_packet::{Port, SendError};
use sluice_xdp::{Interface, OpenError, Options};

/// Set for a process that [`process_that_holds_an_interface`] is run in.
const HOLD: &str = "SLUICE_XDP_TEST_HOLD";

/// Not a test of its own: what the tests below start, and kill.
#[test]
fn process_that_holds_an_interface() {
    if std::env::var_os(HOLD).is_none() {
        return;
    }
    let interface = Interface::by_name(INTERFACE).expect("made");
    let _open = interface.open(&Options::default()).expect("opens");
    println!("\nholding");
    // Until the other end is closed.
    let _ = std::io::stdin().read(&mut [0]);
}

#[test]
fn a_second_process_is_told_and_a_killed_one_leaves_nothing() {
    if !can_run("a_second_process_is_told_and_a_killed_one_leaves_nothing") {
        return;
    }
    let net = Net::new(1500);
    let mut command = Command::new(std::env::current_exe().expect("known"));
    command
        .args(["--exact", "process_that_holds_an_interface", "--nocapture"])
        .env(HOLD, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut holder = net.b.spawn(&mut command);
    let output = BufReader::new(holder.stdout.take().expect("piped"));
    let held = output
        .lines()
        .any(|line| line.is_ok_and(|line| line == "holding"));
    assert!(held);
    assert!(net.b.attached());
    let interface = net.b.interface();
    let refused = net.b.enter(|| interface.open(&Options::default()));
    let error = refused.expect_err("taken");
    let attached = OpenError::Attached {
        interface: "e0".into(),
    };
    assert_eq!(error, attached);
    assert!(net.b.attached(), "the first one's program stays");
    // SIGKILL.
    holder.kill().expect("killed");
    holder.wait().expect("waited for");
    until("nothing attached", || !net.b.attached());
    // The kernel takes its time with the queue, too.
    let mut opened = None;
    until("nothing left of the first one", || {
        match net.b.enter(|| interface.open(&Options::default())) {
            Ok(open) => opened = Some(open),
            Err(error) => assert!(matches!(error, OpenError::QueueBusy { .. }), "{error}"),
        }
        opened.is_some()
    });
}

#[test]
fn a_queue_with_a_socket_is_busy_until_it_is_closed() {
    if !can_run("a_queue_with_a_socket_is_busy_until_it_is_closed") {
        return;
    }
    let net = Net::new(1500);
    let (steering, ports) = net.b.open(&Options::default());
    drop(steering);
    // The kernel takes its time.
    until("nothing attached", || !net.b.attached());
    let interface = net.b.interface();
    let refused = net.b.enter(|| interface.open(&Options::default()));
    assert_eq!(
        refused.expect_err("taken").to_string(),
        "another process has an AF_XDP socket on queue 0 of e0"
    );
    until("nothing attached", || !net.b.attached());
    drop(ports);
    opens_again(&net.b, &Options::default());
}

/// Opens the interface once, when the kernel, or a child that another test is about to start a program in, has let go of
/// the queue.
fn opens_again(host: &Host, options: &Options) {
    let interface = host.interface();
    until("the queue's end", || {
        match host.enter(|| interface.open(options)) {
            Ok(_) => true,
            Err(error) => {
                assert!(matches!(error, OpenError::QueueBusy { .. }), "{error}");
                false
            }
        }
    });
    until("nothing attached", || !host.attached());
}

/// Loads and attaches a program that passes everything. What it gives keeps it attached.
fn somebody_elses_program(index: u32, generic: bool) -> [OwnedFd; 2] {
    // r0 = XDP_PASS; exit
    let code: [u64; 2] = [0x0000_0002_0000_00b7, 0x95];
    let mut load = [0u32; 20];
    let address = |value: *const u8| [value as usize as u32, (value as usize >> 32) as u32];
    load[0] = 6;
    load[1] = 2;
    load[2..4].copy_from_slice(&address(code.as_ptr().cast()));
    load[4..6].copy_from_slice(&address(c"GPL".as_ptr().cast()));
    load[17] = 37;
    let bpf = |command: i64, attribute: &mut [u32]| {
        let (address, len) = (attribute.as_mut_ptr(), size_of_val(attribute));
        // SAFETY: BPF_PROG_LOAD and BPF_LINK_CREATE with their attributes.
        let fd = unsafe { libc::syscall(libc::SYS_bpf, command, address, len) };
        assert!(fd >= 0, "{}", std::io::Error::last_os_error());
        // SAFETY: the descriptor is new and nobody else's.
        unsafe { OwnedFd::from_raw_fd(fd as i32) }
    };
    let program = bpf(5, &mut load);
    let flags = if generic { 1 << 1 } else { 1 << 2 };
    let link = bpf(28, &mut [program.as_raw_fd() as u32, index, 37, flags]);
    [program, link]
}

#[test]
fn somebody_elses_program_stays() {
    if !can_run("somebody_elses_program_stays") {
        return;
    }
    let net = Net::new(1500);
    let interface = net.b.interface();
    for generic in [false, true] {
        let theirs = net
            .b
            .enter(|| somebody_elses_program(interface.index(), generic));
        let before = net.b.ip(&format!("link show {INTERFACE}"));
        assert!(before.contains("xdp"));
        for native in [true, false] {
            let options = Options {
                native: Some(native),
                ..Options::default()
            };
            let refused = net.b.enter(|| interface.open(&options));
            let error = refused.expect_err("another program is there");
            assert_eq!(
                error,
                OpenError::Attached {
                    interface: "e0".into()
                },
                "generic {generic}, native {native}"
            );
            assert!(
                error
                    .to_string()
                    .starts_with("another XDP program is attached to e0")
            );
        }
        assert_eq!(net.b.ip(&format!("link show {INTERFACE}")), before);
        drop(theirs);
        // What failed left no socket behind.
        until("ours", || {
            net.b.enter(|| interface.open(&Options::default())).is_ok()
        });
        until("nothing attached", || !net.b.attached());
    }
}

#[test]
fn a_link_is_there_while_the_other_end_is_up_and_is_waited_for() {
    if !can_run("a_link_is_there_while_the_other_end_is_up_and_is_waited_for") {
        return;
    }
    let net = Net::new(1500);
    let interface = net.b.interface();
    assert!(net.b.enter(|| interface.has_link()));
    net.a.ip(&format!("link set {INTERFACE} down"));
    until("no link", || net.b.enter(|| !interface.has_link()));
    // That it has none hinders nobody.
    let opened = net.b.enter(|| interface.open(&Options::default()));
    assert!(opened.is_ok());
    let waiting = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| net.b.enter(|| interface.wait_for_link()));
        net.a.ip(&format!("link set {INTERFACE} up"));
        waiting.join()
    });
    assert!(waiting.expect("ends"), "the link is there again");
}

#[test]
fn dropping_detaches() {
    if !can_run("dropping_detaches") {
        return;
    }
    let net = Net::new(1500);
    let (steering, ports) = net.b.open(&Options::default());
    assert!(net.b.attached());
    assert_eq!(steering.interface(), net.b.interface().index());
    drop(ports);
    assert!(net.b.attached());
    drop(steering);
    until("nothing attached", || !net.b.attached());
}

#[test]
fn an_interface_is_left_to_others_while_nothing_is_wanted() {
    if !can_run("an_interface_is_left_to_others_while_nothing_is_wanted") {
        return;
    }
    let net = Net::new(1500);
    let (steering, _ports) = net.b.open(&Options::default());
    let index = steering.interface();
    for _ in 0..3 {
        net.b.enter(|| steering.want(false));
        until("nothing attached", || !net.b.attached());
        net.b.enter(|| steering.want(true));
        until("ours", || net.b.attached());
    }
    // Many wishes at once: the last one counts.
    for wish in 0..100 {
        net.b.enter(|| steering.want(wish % 2 == 0));
    }
    until("nothing attached", || !net.b.attached());
    let theirs = net.b.enter(|| somebody_elses_program(index, true));
    let before = net.b.ip(&format!("link show {INTERFACE}"));
    net.b.enter(|| steering.want(true));
    std::thread::sleep(std::time::Duration::from_millis(200));
    assert_eq!(net.b.ip(&format!("link show {INTERFACE}")), before);
    drop(theirs);
    until("nothing attached", || !net.b.attached());
    until("ours", || {
        net.b.enter(|| steering.want(true));
        net.b.attached()
    });
    drop(steering);
    until("nothing attached", || !net.b.attached());
}

#[test]
fn a_child_of_fork_lets_go() {
    if !can_run("a_child_of_fork_lets_go") {
        return;
    }
    let net = Net::new(1500);
    let (steering, ports) = net.b.open(&Options::default());
    let mut descriptors = steering.descriptors();
    descriptors.extend(ports.iter().flat_map(|port| port.all_descriptors()));
    for raw in &descriptors {
        // SAFETY: F_GETFD takes integers only.
        let flags = unsafe { libc::fcntl(*raw, libc::F_GETFD) };
        assert_eq!(flags & libc::FD_CLOEXEC, libc::FD_CLOEXEC, "{raw}");
    }
    let (mut go_child, mut go) = std::os::unix::net::UnixStream::pair().expect("a pair");
    // SAFETY: until its end the child makes system calls on memory that is there before the fork.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // Should the test fail: it also has the other end of the pair, so nothing else ends it.
        // SAFETY: prctl takes integers here.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        let mut byte = [0];
        let _ = go_child.read(&mut byte);
        for raw in &descriptors {
            // SAFETY: close takes an integer; nobody uses the ports in this process.
            unsafe { libc::close(*raw) };
        }
        let _ = go_child.write(&byte);
        let _ = go_child.read(&mut byte);
        // SAFETY: ends the process without running anything of the parent's.
        unsafe { libc::_exit(0) };
    }
    assert!(child > 0);
    drop(ports);
    drop(steering);
    // Of what attaches the program the child has let go by itself.
    until("nothing attached", || !net.b.attached());
    let interface = net.b.interface();
    let refused = net.b.enter(|| interface.open(&Options::default()));
    assert!(refused.is_err(), "the child's copies hold the sockets");
    until("nothing attached", || !net.b.attached());
    go.write_all(&[1]).expect("written");
    go.read_exact(&mut [0]).expect("closed");
    opens_again(&net.b, &Options::default());
    drop(go);
    drop(go_child);
    // SAFETY: the child is ours, and is waited for once.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, core::ptr::null_mut(), 0);
    }
}

#[test]
fn an_interface_goes_down_and_up() {
    if !can_run("an_interface_goes_down_and_up") {
        return;
    }
    let net = Net::new(1500);
    let (_steering, mut a) = net.a.open_one(&Options::default());
    let (_other, mut b) = net.b.open_one(&Options::default());
    let path = net.a.path(&net.b, false);
    net.a.ip(&format!("link set {INTERFACE} down"));
    assert_eq!(send(&mut a, &path, QPN, 1, 8), Ok(()), "nobody knows yet");
    until("flush ends", || a.flush());
    assert!(a.is_down());
    assert_eq!(send(&mut a, &path, QPN, 2, 8), Err(SendError::Unreachable));
    assert_eq!(a.receive(&mut |_| panic!("nothing can come")), 0);
    assert_eq!(a.counters().refused, 1);
    net.a.ip(&format!("link set {INTERFACE} up"));
    // Carrier needs both ends.
    until("it works again", || {
        let sent = send(&mut a, &path, QPN, 3, 8);
        a.flush();
        let mut got = None;
        b.receive(&mut |received| got = Some(check(received).0));
        sent.is_ok() && got == Some(3)
    });
    assert!(!a.is_down());
}

#[test]
fn an_interface_is_deleted() {
    if !can_run("an_interface_is_deleted") {
        return;
    }
    let net = Net::new(1500);
    let (mut steering, mut a) = net.a.open_one(&Options::default());
    let path = net.a.path(&net.b, true);
    assert_eq!(send(&mut a, &path, QPN, 1, 8), Ok(()));
    net.a.ip(&format!("link del {INTERFACE}"));
    for _ in 0..100 {
        let _ = send(&mut a, &path, QPN, 2, 8);
        until("flush ends", || a.flush());
        assert_eq!(a.receive(&mut |_| panic!("nothing can come")), 0);
    }
    assert!(a.is_down());
    assert_eq!(send(&mut a, &path, QPN, 2, 8), Err(SendError::Unreachable));
    steering.add_block(77).expect("the maps are still there");
    steering
        .set_addresses(&[])
        .expect("the maps are still there");
    assert_eq!(steering.counters().expect("counters").redirected, 0);
    drop(a);
    drop(steering);
    let gone = net.a.enter(|| Interface::by_name(INTERFACE));
    assert_eq!(
        gone.expect_err("deleted").to_string(),
        "there is no network interface e0 in this namespace"
    );
    let gone = net.a.enter(|| Interface::by_index(path.interface));
    assert!(matches!(gone, Err(OpenError::NoInterface { .. })));
}

/// Takes capabilities from the calling thread.
fn give_up(numbers: &[u32]) {
    let mut header = [0x2008_0522_u32, 0];
    let mut sets = [0u32; 6];
    // SAFETY: capget and capset read and write a header of two and sets of six words.
    unsafe {
        assert_eq!(
            libc::syscall(libc::SYS_capget, header.as_mut_ptr(), sets.as_mut_ptr()),
            0
        );
        for number in numbers {
            sets[*number as usize / 32 * 3] &= !(1 << (number % 32));
        }
        assert_eq!(
            libc::syscall(libc::SYS_capset, header.as_mut_ptr(), sets.as_ptr()),
            0
        );
    }
}

#[test]
fn a_missing_capability_is_named() {
    if !can_run("a_missing_capability_is_named") {
        return;
    }
    const ADMIN: u32 = 12;
    const RAW: u32 = 13;
    const SYS_ADMIN: u32 = 21;
    const BPF: u32 = 39;
    let net = Net::new(1500);
    let interface = net.b.interface();
    for (without, named) in [
        (&[ADMIN, SYS_ADMIN][..], vec!["CAP_NET_ADMIN"]),
        (&[RAW], vec!["CAP_NET_RAW"]),
        (&[BPF, SYS_ADMIN], vec!["CAP_BPF"]),
        (
            &[ADMIN, RAW, BPF, SYS_ADMIN],
            vec!["CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_BPF"],
        ),
    ] {
        let refused = net.b.enter(|| {
            give_up(without);
            interface.open(&Options::default())
        });
        match refused {
            Err(OpenError::NotPermitted { missing, .. }) => assert_eq!(missing, named),
            other => panic!("{named:?}: {other:?}"),
        }
    }
    assert!(!net.b.attached());
}

#[test]
fn little_locked_memory_is_said() {
    if !can_run("little_locked_memory_is_said") {
        return;
    }
    let net = Net::new(1500);
    let interface = net.b.interface();
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: one rlimit is written or read. The other threads have CAP_IPC_LOCK, for which the
    // limit does not hold.
    let set = |limit: &libc::rlimit| unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, limit) };
    // SAFETY: one rlimit is written, which is ours.
    unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) };
    let small = libc::rlimit {
        rlim_cur: 65536,
        ..limit
    };
    assert_eq!(set(&small), 0);
    let refused = net.b.enter(|| {
        give_up(&[14]);
        interface.open(&Options::default())
    });
    assert_eq!(set(&limit), 0);
    match refused {
        Err(OpenError::LockedMemory { bytes, limit }) => {
            assert!(bytes > 1 << 20);
            assert_eq!(limit, 65536);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn options_out_of_range_are_refused() {
    if !can_run("options_out_of_range_are_refused") {
        return;
    }
    let net = Net::new(1500);
    let interface = net.b.interface();
    let with = |receive_chunks, send_packets, queues| Options {
        receive_chunks,
        send_packets,
        queues: Some(queues),
        ..Options::default()
    };
    for options in [
        with(0, 64, 1),
        with(64, 0, 1),
        with(63, 64, 1),
        with(64, 100, 1),
        with(1 << 15, 64, 1),
        with(64, u32::MAX, 1),
        with(64, 64, 0),
    ] {
        let refused = net.b.enter(|| interface.open(&options));
        assert!(
            matches!(refused, Err(OpenError::Options { .. })),
            "{options:?}"
        );
    }
    let opened = net.b.enter(|| interface.open(&with(64, 64, 1)));
    drop(opened.expect("the smallest"));
    let many = Options {
        addresses: vec![net.b.v4; 2000],
        ..Options::default()
    };
    // The same address many times is one.
    until("nothing attached", || !net.b.attached());
    opens_again(&net.b, &many);
}
