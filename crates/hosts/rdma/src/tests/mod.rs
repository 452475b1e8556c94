//! A node over a library that completes requests as a test says: order, failures, and completions
//! that make no sense.
#![allow(unsafe_code)]

mod fake;
mod hostile;
mod own_buffers;

use std::ptr;

use sluice_verbs_abi::*;

use crate::endpoint::Endpoint;
use crate::{
    DeviceEvents, Error, Event, Limits, LinkId, Node, PostError, Remote, Slice, Status,
    WriteRequest,
};
use fake::{node, open, open_of, with};

const SLICE: Slice = Slice {
    address: 0x1000,
    length: 64,
    key: 5,
};
const REMOTE: Remote = Remote {
    address: 0x2000,
    key: 9,
};

/// What was told, without the bytes of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    Done(u64),
    Failed(u64, Status),
    Arrived(u32, u32),
    Message(usize),
    Broken(Status),
    Device(DeviceEvents),
}

fn told(event: Event<'_>) -> Told {
    match event {
        Event::Done { id, .. } => Told::Done(id),
        Event::Failed { id, status, .. } => Told::Failed(id, status),
        Event::Arrived { number, bytes, .. } => Told::Arrived(number, bytes),
        Event::Message { bytes, .. } => Told::Message(bytes.len()),
        Event::Broken { status, .. } => Told::Broken(status),
        Event::Device(events) => Told::Device(events),
    }
}

fn poll(node: &mut Node) -> Vec<Told> {
    let mut events = Vec::new();
    let count = node.poll(1000, &mut |event| events.push(told(event)));
    assert_eq!(count, events.len());
    events
}

fn link(node: &mut Node) -> LinkId {
    let (link, endpoint) = node.create_link().unwrap();
    let peer = Endpoint::decode(&endpoint.encode()).unwrap();
    assert_eq!(peer.address().to_string(), "127.0.0.1");
    node.connect(link, &peer).unwrap();
    link
}

fn write(node: &mut Node, link: LinkId, id: u64) -> Result<(), PostError> {
    node.write(link, SLICE, REMOTE, Some(id as u32), id)
}

fn one(id: u64) -> WriteRequest {
    WriteRequest {
        local: SLICE,
        remote: REMOTE,
        number: Some(id as u32),
        id,
    }
}

/// What is told when all that is posted succeeds, a marker behind it too.
fn all_succeed(node: &mut Node) -> Vec<Told> {
    let mut events = Vec::new();
    while with(|fake| !fake.posted.is_empty()) {
        with(|fake| fake.succeed(fake.posted.len()));
        events.extend(poll(node));
        events.extend(poll(node));
    }
    events
}

fn done(ids: std::ops::Range<u64>) -> Vec<Told> {
    ids.map(Told::Done).collect()
}

#[test]
fn what_asked_for_no_completion_is_told_of_all_the_same() {
    let mut node = node(Limits::default());
    let link = link(&mut node);
    for id in 0..10 {
        write(&mut node, link, id).unwrap();
    }
    with(|fake| fake.succeed(10));
    let mut events = poll(&mut node);
    assert!(events.len() < 10, "all asked: {events:?}");
    assert_eq!(node.unfinished(link), 10 - events.len());
    assert_eq!(with(|fake| fake.posted.len()), 0);
    events.extend(poll(&mut node));
    let marker = with(|fake| fake.posted[0]);
    assert_eq!((marker.opcode, marker.length), (IBV_WR_RDMA_WRITE, 0));
    assert_eq!(marker.remote, REMOTE.address);
    with(|fake| fake.succeed(1));
    events.extend(poll(&mut node));
    assert_eq!(events, done(0..10));
    assert_eq!(node.unfinished(link), 0);
    assert_eq!(poll(&mut node), []);
    assert_eq!(with(|fake| fake.posted.len()), 0);
}

#[test]
fn who_falls_asleep_posts_the_marker_first() {
    let mut node = node(Limits::default());
    let link = link(&mut node);
    for id in 0..6 {
        write(&mut node, link, id).unwrap();
    }
    with(|fake| fake.succeed(6));
    poll(&mut node);
    node.arm().unwrap();
    assert!(with(|fake| fake.armed));
    assert_eq!(with(|fake| fake.posted.len()), 1);
}

#[test]
fn a_full_queue_has_room_again_when_something_is_done() {
    let mut node = node(Limits::default());
    let link = link(&mut node);
    for id in 0..256 {
        write(&mut node, link, id).unwrap();
    }
    assert_eq!(write(&mut node, link, 256), Err(PostError::Full));
    assert_eq!(node.send(link, b"x", 256), Err(PostError::Full));
    with(|fake| fake.succeed(128));
    let events = poll(&mut node);
    assert_eq!(events, done(0..events.len() as u64));
    assert!(!events.is_empty());
    assert_eq!(write(&mut node, link, 256), Ok(()));
}

#[test]
fn messages_are_bounded_and_copied() {
    let mut node = node(Limits::default());
    let link = link(&mut node);
    for id in 0..16 {
        node.send(link, &[7; 4096], id).unwrap();
    }
    assert_eq!(node.send(link, &[7; 1], 16), Err(PostError::Full));
    assert_eq!(node.send(link, &[7; 4097], 16), Err(PostError::TooLong));
    assert_eq!(write(&mut node, link, 16), Ok(()));
    with(|fake| fake.succeed(3));
    assert_eq!(poll(&mut node), done(0..3));
    assert_eq!(node.send(link, &[], 17), Ok(()));
}

#[test]
fn a_failure_brings_everything_back_once_and_in_order() {
    let mut node = node(Limits::default());
    let link = link(&mut node);
    for id in 0..20 {
        write(&mut node, link, id).unwrap();
    }
    with(|fake| {
        fake.succeed(7);
        fake.fail(IBV_WC_REM_ACCESS_ERR);
    });
    let mut expected = done(0..7);
    expected.push(Told::Failed(7, Status::REMOTE_ACCESS));
    expected.extend((8..20).map(|id| Told::Failed(id, Status::FLUSHED)));
    expected.push(Told::Broken(Status::REMOTE_ACCESS));
    let mut events = poll(&mut node);
    events.extend(poll(&mut node));
    assert_eq!(events, expected);
    assert_eq!(write(&mut node, link, 20), Err(PostError::NotConnected));
    assert_eq!(node.unfinished(link), 0);
    assert_eq!(poll(&mut node), []);
}

#[test]
fn a_link_that_the_device_gives_up_brings_back_what_had_succeeded_silently() {
    let mut node = node(Limits::default());
    let link = link(&mut node);
    for id in 0..6 {
        write(&mut node, link, id).unwrap();
    }
    with(|fake| {
        fake.succeed(6);
        let qp = fake.queue_pairs[0];
        fake.happen(IBV_EVENT_QP_ACCESS_ERR, qp);
    });
    node.arm().unwrap();
    let mut events = poll(&mut node);
    events.extend(poll(&mut node));
    // Nobody knows of the last two.
    let mut expected = done(0..4);
    expected.extend((4..6).map(|id| Told::Failed(id, Status::FLUSHED)));
    expected.push(Told::Broken(Status(IBV_WC_LOC_ACCESS_ERR)));
    assert_eq!(events, expected);
    assert_eq!(with(|fake| fake.unacknowledged), 0);
}

#[test]
fn a_quiet_link_that_the_device_gives_up_is_told_of() {
    let mut node = node(Limits::default());
    let [first, second] = [link(&mut node), link(&mut node)];
    with(|fake| {
        let qp = fake.queue_pairs[1];
        fake.happen(IBV_EVENT_QP_FATAL, qp);
    });
    // Also to who polls and never arms.
    let mut events = Vec::new();
    for _ in 0..2000 {
        events.extend(poll(&mut node));
    }
    assert_eq!(events, [Told::Broken(Status::GENERAL)]);
    assert_eq!(write(&mut node, first, 0), Ok(()));
    assert_eq!(write(&mut node, second, 0), Err(PostError::NotConnected));
}

#[test]
fn what_the_kernel_emulates_is_no_adapter() {
    for (vendor_id, is_adapter) in [(0x2_c903, true), (0, false), (0xff_ffff, false)] {
        let node = open_of(vendor_id, "127.0.0.1", Limits::default()).unwrap();
        assert_eq!(node.is_adapter(), is_adapter, "{vendor_id:#x}");
    }
}

#[test]
fn a_marker_that_is_refused_breaks_the_link_and_loses_nothing() {
    let mut node = node(Limits::default());
    let link = link(&mut node);
    for id in 0..6 {
        write(&mut node, link, id).unwrap();
    }
    with(|fake| fake.succeed(6));
    let mut events = poll(&mut node);
    with(|fake| fake.refuse = libc::EIO);
    events.extend(poll(&mut node));
    let mut expected = done(0..4);
    expected.extend((4..6).map(|id| Told::Failed(id, Status::FLUSHED)));
    expected.push(Told::Broken(Status::GENERAL));
    assert_eq!(events, expected);
}

#[test]
fn several_writes_go_to_the_device_with_one_call() {
    let mut node = node(Limits::default());
    let link = link(&mut node);
    let writes: Vec<WriteRequest> = (0..20).map(one).collect();
    with(|fake| fake.send_calls = 0);
    assert_eq!(node.write_all(link, &writes), Ok(20));
    assert_eq!(with(|fake| (fake.send_calls, fake.posted.len())), (1, 20));
    assert_eq!(node.room(link), 236);
    assert_eq!(all_succeed(&mut node), done(0..20));
    assert_eq!(node.write_all(link, &[]), Ok(0));
}

#[test]
fn of_several_writes_those_are_posted_that_there_is_room_for() {
    let mut node = node(Limits::default());
    let link = link(&mut node);
    for id in 0..250 {
        write(&mut node, link, id).unwrap();
    }
    let writes: Vec<WriteRequest> = (250..270).map(one).collect();
    assert_eq!(node.write_all(link, &writes), Ok(6));
    assert_eq!(node.room(link), 0);
    assert_eq!(node.write_all(link, &writes[6..]), Err(PostError::Full));
    assert_eq!(all_succeed(&mut node), done(0..256));
}

#[test]
fn what_the_device_refuses_of_several_writes_has_not_happened() {
    let mut node = node(Limits::default());
    let link = link(&mut node);
    let writes: Vec<WriteRequest> = (0..20).map(one).collect();
    with(|fake| (fake.refuse, fake.refuse_behind) = (libc::ENOMEM, 13));
    assert_eq!(node.write_all(link, &writes), Ok(13));
    assert_eq!(node.unfinished(link), 13);
    let refused = PostError::Refused(libc::ENOMEM);
    assert_eq!(node.write_all(link, &writes[13..]), Err(refused));
    assert_eq!(node.unfinished(link), 13);
    with(|fake| fake.refuse = 0);
    assert_eq!(node.write_all(link, &writes[13..]), Ok(7));
    assert_eq!(all_succeed(&mut node), done(0..20));
}

#[test]
fn a_request_that_is_refused_has_not_happened() {
    let mut node = node(Limits::default());
    let link = link(&mut node);
    with(|fake| fake.refuse = libc::ENOMEM);
    assert_eq!(
        write(&mut node, link, 0),
        Err(PostError::Refused(libc::ENOMEM))
    );
    assert_eq!(
        node.send(link, &[1; 300], 0),
        Err(PostError::Refused(libc::ENOMEM))
    );
    assert_eq!(node.unfinished(link), 0);
    with(|fake| fake.refuse = 0);
    write(&mut node, link, 1).unwrap();
    with(|fake| fake.succeed(1));
    assert_eq!(poll(&mut node), done(1..2));
}

#[test]
fn a_destroyed_link_is_told_of_no_more_and_its_place_is_used_again() {
    let limits = Limits {
        links_max: 1,
        ..Limits::default()
    };
    let mut node = node(limits);
    let first = link(&mut node);
    for id in 0..30 {
        write(&mut node, first, id).unwrap();
    }
    with(|fake| fake.succeed(5));
    node.destroy_link(first);
    assert_eq!(write(&mut node, first, 30), Err(PostError::NotConnected));
    assert!(matches!(node.create_link(), Err(Error::TooManyLinks)));
    assert_eq!(with(|fake| fake.queue_pairs.len()), 1);
    assert_eq!(poll(&mut node), []);
    assert_eq!(with(|fake| fake.queue_pairs.len()), 0);
    let second = link(&mut node);
    assert_ne!(first, second);
    assert_eq!(first.index(), second.index());
    assert_eq!(write(&mut node, first, 0), Err(PostError::NotConnected));
    assert_eq!(node.unfinished(first), 0);
    node.destroy_link(first);
    assert_eq!(write(&mut node, second, 0), Ok(()));
}

#[test]
fn a_new_link_takes_no_requests_and_is_connected_once() {
    let mut node = node(Limits::default());
    let (link, endpoint) = node.create_link().unwrap();
    assert_eq!(write(&mut node, link, 0), Err(PostError::NotConnected));
    node.connect(link, &endpoint).unwrap();
    assert!(matches!(
        node.connect(link, &endpoint),
        Err(Error::Connected)
    ));
    node.destroy_link(link);
    poll(&mut node);
    assert!(matches!(
        node.connect(link, &endpoint),
        Err(Error::NoSuchLink)
    ));
}

#[test]
fn receive_buffers_are_posted_again_in_batches_and_all_before_a_sleep() {
    let mut node = node(Limits::default());
    link(&mut node);
    assert_eq!(
        with(|fake| (fake.receives.len(), fake.receive_calls)),
        (1024, 1)
    );
    let qpn = with(|fake| fake.number(0));
    for number in 0..63 {
        with(|fake| fake.arrive(qpn, number, 10));
        assert_eq!(poll(&mut node), [Told::Arrived(number, 10)]);
    }
    assert_eq!(
        with(|fake| (fake.receives.len(), fake.receive_calls)),
        (961, 1)
    );
    with(|fake| fake.arrive(qpn, 63, 10));
    poll(&mut node);
    assert_eq!(
        with(|fake| (fake.receives.len(), fake.receive_calls)),
        (1024, 2)
    );
    with(|fake| fake.arrive(qpn, 64, 10));
    poll(&mut node);
    node.arm().unwrap();
    assert_eq!(
        with(|fake| (fake.receives.len(), fake.receive_calls)),
        (1024, 3)
    );
    let mut all = with(|fake| fake.receives.clone());
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 1024, "a buffer was posted twice");
}

#[test]
fn what_happens_to_the_device_is_told_once() {
    let mut node = node(Limits::default());
    for event in [
        IBV_EVENT_PORT_ERR,
        IBV_EVENT_GID_CHANGE,
        IBV_EVENT_GID_CHANGE,
    ] {
        with(|fake| fake.happen(event, ptr::null_mut()));
    }
    node.arm().unwrap();
    let happened = DeviceEvents {
        port_down: true,
        addresses: true,
        ..DeviceEvents::default()
    };
    assert_eq!(poll(&mut node), [Told::Device(happened)]);
    assert_eq!(poll(&mut node), []);
    assert_eq!(with(|fake| fake.unacknowledged), 0);
}

#[test]
fn a_device_that_is_gone_is_told_of_once() {
    let mut node = node(Limits::default());
    with(|fake| fake.poll_answer = Some(-libc::EIO));
    poll(&mut node);
    let gone = DeviceEvents {
        gone: true,
        ..DeviceEvents::default()
    };
    assert_eq!(poll(&mut node), [Told::Device(gone)]);
    assert_eq!(poll(&mut node), []);
    assert!(node.arm().is_err());
}

#[test]
fn the_channels_event_is_taken_before_the_queue_is_armed_again() {
    let mut node = node(Limits::default());
    node.arm().unwrap();
    with(|fake| fake.ring());
    assert_eq!(poll(&mut node), []);
    node.arm().unwrap();
    assert_eq!(
        with(|fake| (fake.channel_events, fake.unacknowledged, fake.armed)),
        (0, 0, true)
    );
}

#[test]
fn what_the_device_does_not_have_is_refused() {
    let too_many = Limits {
        links_max: 1025,
        send_depth: 16,
        ..Limits::default()
    };
    let error = open("127.0.0.1", too_many).err().unwrap();
    assert!(
        matches!(
            error,
            Error::Device {
                wanted: 1025,
                has: 1024,
                ..
            }
        ),
        "{error}"
    );
    let error = open("10.0.0.1", Limits::default()).err().unwrap();
    assert_eq!(
        error.to_string(),
        "fake0 does not have the address 10.0.0.1; it has 127.0.0.1 127.0.0.1"
    );
}
