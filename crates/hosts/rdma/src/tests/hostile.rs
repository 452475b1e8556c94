//! Completions that no library should make, or that a peer has a hand in.

use sluice_verbs_abi::*;

use super::fake::{completion, node, with};
use super::{Told, done, link, poll, write};
use crate::link::{RECEIVE, request_id};
use crate::{Limits, LinkId, Status};

#[test]
fn numbers_that_nobody_gave_mean_nothing() {
    let mut node = node(Limits::default());
    let link = link(&mut node);
    write(&mut node, link, 0).unwrap();
    let stale = LinkId {
        slot: link.slot,
        generation: link.generation + 1,
    };
    let beyond = LinkId {
        slot: u16::MAX,
        generation: 0,
    };
    let free = LinkId {
        slot: 1,
        generation: 0,
    };
    let qpn = with(|fake| fake.number(0));
    for wr_id in [
        request_id(link, 1),
        request_id(link, u32::MAX),
        request_id(stale, 0),
        request_id(beyond, 0),
        request_id(free, 0),
        RECEIVE | 1024,
        RECEIVE | u64::from(u32::MAX),
    ] {
        for status in [IBV_WC_SUCCESS, IBV_WC_RETRY_EXC_ERR, u32::MAX] {
            with(|fake| fake.completions.push_back(completion(wr_id, status, qpn)));
        }
    }
    assert_eq!(poll(&mut node), []);
    with(|fake| fake.succeed(1));
    assert_eq!(poll(&mut node), done(0..1));
}

#[test]
fn a_completion_that_comes_twice_tells_nothing_new() {
    let mut node = node(Limits::default());
    let link = link(&mut node);
    for id in 0..3 {
        write(&mut node, link, id).unwrap();
    }
    with(|fake| {
        let first = completion(fake.posted[0].wr_id, IBV_WC_SUCCESS, 0);
        fake.completions.extend([first, first, first]);
    });
    assert_eq!(poll(&mut node), done(0..1));
}

#[test]
fn an_arrival_for_an_unknown_queue_pair_gives_its_buffer_back() {
    let limits = Limits {
        receive_depth: 4,
        ..Limits::default()
    };
    let mut node = node(limits);
    link(&mut node);
    for _ in 0..100 {
        with(|fake| fake.arrive(0x77_7777, 1, 1));
        assert_eq!(poll(&mut node), []);
        node.arm().unwrap();
    }
    assert_eq!(with(|fake| fake.receives.len()), 4);
}

#[test]
fn a_message_longer_than_its_buffer_breaks_its_link_only() {
    let mut node = node(Limits::default());
    let (first, second) = (link(&mut node), link(&mut node));
    let numbers = with(|fake| [fake.number(0), fake.number(1)]);
    with(|fake| {
        fake.receive(numbers[1], 4096);
        fake.receive(numbers[0], 4097);
        fake.receive(numbers[0], 4);
        fake.receive(numbers[1], 0);
    });
    let events = poll(&mut node);
    assert_eq!(
        events,
        [
            Told::Message(4096),
            Told::Message(4),
            Told::Message(0),
            Told::Broken(Status::GENERAL)
        ]
    );
    assert!(write(&mut node, first, 0).is_err());
    assert!(write(&mut node, second, 0).is_ok());
    // What still comes by a broken link is not told of.
    with(|fake| fake.receive(numbers[0], 4));
    assert_eq!(poll(&mut node), []);
}

#[test]
fn a_receive_that_is_none_breaks_its_link() {
    for (opcode, status) in [
        (0, IBV_WC_SUCCESS),
        (u32::MAX, IBV_WC_SUCCESS),
        (IBV_WC_RECV, IBV_WC_LOC_LEN_ERR),
        (IBV_WC_RECV, u32::MAX),
    ] {
        let mut node = node(Limits::default());
        link(&mut node);
        with(|fake| {
            let qpn = fake.number(0);
            let mut wc = completion(fake.receives.remove(0), status, qpn);
            wc.opcode = opcode;
            fake.completions.push_back(wc);
        });
        let expected = match status {
            IBV_WC_SUCCESS => Status::GENERAL,
            other => Status(other),
        };
        assert_eq!(poll(&mut node), [Told::Broken(expected)]);
    }
}

#[test]
fn nothing_told_means_that_the_queue_was_empty() {
    let mut node = node(Limits::default());
    link(&mut node);
    with(|fake| {
        let qpn = fake.number(0);
        for _ in 0..500 {
            let nothing = completion(RECEIVE | 9999, IBV_WC_SUCCESS, qpn);
            fake.completions.push_back(nothing);
        }
        fake.arrive(qpn, 3, 4);
    });
    let mut events = Vec::new();
    node.poll(1, &mut |event| events.push(super::told(event)));
    assert_eq!(events, [Told::Arrived(3, 4)]);
}

#[test]
fn a_library_that_counts_wrongly_is_not_followed() {
    let mut node = node(Limits::default());
    link(&mut node);
    with(|fake| fake.poll_answer = Some(i32::MAX));
    // It says that there are more than it was asked for; they are all the same old ones.
    node.poll(10, &mut |_| {});
    with(|fake| fake.poll_answer = None);
    assert_eq!(poll(&mut node), []);
}
