use std::net::{Ipv4Addr, Ipv6Addr};

use super::*;

const TCP: u16 = 0x106;

fn v4(last: u8, port: u16) -> Address {
    Address::new(Ipv4Addr::new(127, 0, 0, last).into(), port)
}

fn any4(port: u16) -> Address {
    Address::new(Ipv4Addr::UNSPECIFIED.into(), port)
}

fn any6(port: u16) -> Address {
    Address::new(Ipv6Addr::UNSPECIFIED.into(), port)
}

fn errno(result: Result<Claim, Errno>) -> Option<i32> {
    result.err().map(|errno| errno.0)
}

#[test]
fn same_address_is_in_use_and_wildcards_are_not_available() {
    let directory = tempfile::tempdir().unwrap();
    let names = Rendezvous::for_test(directory.path(), 1);
    let claim = names.claim(TCP, v4(1, 70), false, false).unwrap();
    let again = names.claim(TCP, v4(1, 70), false, false);
    assert_eq!(errno(again), Some(libc::EADDRINUSE));
    let wildcard = names.claim(TCP, any4(70), false, false);
    assert_eq!(errno(wildcard), Some(libc::EADDRNOTAVAIL));
    names.claim(TCP, v4(2, 70), false, false).unwrap();
    names.claim(TCP, v4(1, 71), false, false).unwrap();
    names.claim(0x111, v4(1, 70), false, false).unwrap();
    drop(claim);
    names.claim(TCP, v4(1, 70), false, false).unwrap();
}

#[test]
fn namespaces_do_not_share_ports() {
    let directory = tempfile::tempdir().unwrap();
    let here = Rendezvous::for_test(directory.path(), 1);
    let there = Rendezvous::for_test(directory.path(), 2);
    let _claim = here.claim(TCP, any4(70), false, false).unwrap();
    there.claim(TCP, any4(70), false, false).unwrap();
}

#[test]
fn reuse_lets_two_bind_until_one_listens() {
    let directory = tempfile::tempdir().unwrap();
    let names = Rendezvous::for_test(directory.path(), 1);
    let mut first = names.claim(TCP, v4(1, 70), true, false).unwrap();
    let second = names.claim(TCP, v4(1, 70), true, false).unwrap();
    assert_eq!(first.listen(8).err(), Some(Errno(libc::EADDRINUSE)));
    drop(second);
    let _socket = first.listen(8).unwrap();
    let third = names.claim(TCP, v4(1, 70), true, false);
    assert_eq!(errno(third), Some(libc::EADDRINUSE));
}

#[test]
fn families_stand_apart_only_when_both_say_so() {
    let directory = tempfile::tempdir().unwrap();
    let names = Rendezvous::for_test(directory.path(), 1);
    let _six = names.claim(TCP, any6(70), false, true).unwrap();
    assert_eq!(
        errno(names.claim(TCP, any4(70), false, false)),
        Some(libc::EADDRNOTAVAIL)
    );
    names.claim(TCP, any4(70), false, true).unwrap();
}

#[test]
fn port_zero_picks_ports_that_are_free() {
    let directory = tempfile::tempdir().unwrap();
    let names = Rendezvous::for_test(directory.path(), 1);
    let claims: Vec<Claim> = (0..50)
        .map(|_| names.claim(TCP, any4(0), false, false).unwrap())
        .collect();
    let mut ports: Vec<u16> = claims.iter().map(|claim| claim.address().port).collect();
    ports.sort_unstable();
    ports.dedup();
    assert_eq!(ports.len(), 50);
    assert!(
        ports
            .iter()
            .all(|port| EPHEMERAL.contains(&u32::from(*port)))
    );
}

#[test]
fn the_entry_of_a_dead_process_is_taken_over() {
    let directory = tempfile::tempdir().unwrap();
    let names = Rendezvous::for_test(directory.path(), 1);
    let mut claim = names.claim(TCP, v4(1, 70), false, false).unwrap();
    let _socket = claim.listen(8).unwrap();
    // What a killed process leaves: names without a lock.
    let left = claim.entry.name();
    fs::write(directory.path().join("kept"), left.as_bytes()).unwrap();
    let (name, socket) = (left.clone(), format!("{left}.sock"));
    drop(claim);
    fs::write(directory.path().join(&name), b"").unwrap();
    fs::write(directory.path().join(&socket), b"").unwrap();
    names.claim(TCP, v4(1, 70), false, false).unwrap();
    assert!(!directory.path().join(&name).exists());
    assert!(!directory.path().join(&socket).exists());
}

#[test]
fn the_exact_listener_comes_before_the_wildcard_one_of_the_other_family() {
    let directory = tempfile::tempdir().unwrap();
    let names = Rendezvous::for_test(directory.path(), 1);
    let mut exact = names.claim(TCP, v4(1, 70), false, true).unwrap();
    let mut wide = names.claim(TCP, any6(70), false, true).unwrap();
    let _sockets = (exact.listen(8).unwrap(), wide.listen(8).unwrap());
    let found = names.listeners(TCP, &v4(1, 70)).unwrap();
    assert_eq!(found, [Candidate(exact.entry.name())]);
    let loopback6 = Address::new(Ipv6Addr::LOCALHOST.into(), 70);
    let found = names.listeners(TCP, &loopback6).unwrap();
    assert_eq!(found, [Candidate(wide.entry.name())]);
    assert_eq!(names.listeners(TCP, &v4(2, 70)).unwrap(), []);
}

#[test]
fn a_local_destination_is_never_looked_for_elsewhere() {
    let directory = tempfile::tempdir().unwrap();
    let here = Rendezvous::for_test(directory.path(), 1);
    let there = Rendezvous::for_test(directory.path(), 2);
    let mut claim = here.claim(TCP, any4(70), false, false).unwrap();
    let _socket = claim.listen(8).unwrap();
    assert_eq!(there.listeners(TCP, &v4(1, 70)).unwrap(), []);
    // An address of another namespace of this user is asked for at its listeners.
    let elsewhere = Address::new(Ipv4Addr::new(192, 0, 2, 1).into(), 70);
    assert_eq!(there.listeners(TCP, &elsewhere).unwrap().len(), 1);
    assert!(!claim.answers_for(&elsewhere));
    assert!(claim.answers_for(&v4(1, 70)));
}

#[test]
fn foreign_names_are_no_entries() {
    for name in [
        "",
        "cm-",
        "qpn",
        "cm-1-106-70-47f000001-0-1",
        "cm-1-0106-0046-4x-0-1",
    ] {
        assert_eq!(Entry::parse(name), None, "{name}");
    }
    let entry = Entry {
        netns: 0xf000_0001,
        port_space: TCP,
        address: any6(7471),
        flags: 3,
        unique: 17,
    };
    assert_eq!(Entry::parse(&entry.name()), Some(entry));
}

#[test]
fn a_directory_that_others_can_write_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o777)).unwrap();
    assert_eq!(make_private(directory.path()), Err(Errno(libc::EACCES)));
}
