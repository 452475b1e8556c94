//! Devices without a shared receive queue: each link has receive buffers of its own.

use super::fake::{Shared, node_without, with};
use super::*;

/// Buffers that are posted for a link, and calls that posted any.
fn posted(qpn: u32) -> (usize, usize) {
    with(|fake| {
        let own = fake.own_receives.iter().filter(|(of, _)| *of == qpn);
        (own.count(), fake.receive_calls)
    })
}

#[test]
fn a_device_that_says_so_or_makes_none_has_buffers_for_each_link() {
    assert!(fake::node(Limits::default()).shares_receive_queue());
    for shared in [Shared::None, Shared::Refused] {
        let mut node = node_without(shared, Limits::default());
        assert!(!node.shares_receive_queue());
        let links = [link(&mut node), link(&mut node)];
        for (at, _) in links.iter().enumerate() {
            let qpn = with(|fake| fake.number(at));
            assert_eq!(posted(qpn), (256, 2), "{shared:?}");
            with(|fake| {
                fake.arrive(qpn, 7, 10);
                fake.receive(qpn, 20);
            });
            assert_eq!(poll(&mut node), [Told::Arrived(7, 10), Told::Message(20)]);
        }
    }
}

#[test]
fn each_links_buffers_are_posted_again_in_batches_and_all_before_a_sleep() {
    let mut node = node_without(Shared::None, Limits::default());
    let _links = [link(&mut node), link(&mut node)];
    let [one, other] = [0, 1].map(|at| with(|fake| fake.number(at)));
    for number in 0..63 {
        with(|fake| {
            fake.arrive(one, number, 10);
            fake.arrive(other, number, 10);
        });
        assert_eq!(poll(&mut node).len(), 2);
    }
    assert_eq!((posted(one), posted(other)), ((193, 2), (193, 2)));
    with(|fake| fake.arrive(one, 63, 10));
    poll(&mut node);
    assert_eq!((posted(one), posted(other)), ((256, 3), (193, 3)));
    node.arm().unwrap();
    assert_eq!((posted(one), posted(other)), ((256, 4), (256, 4)));
    let mut all = with(|fake| fake.own_receives.clone());
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 512, "a buffer was posted twice");
}

#[test]
fn a_link_that_fails_gets_no_buffers_and_hurts_no_other() {
    let mut node = node_without(Shared::None, Limits::default());
    let [first, second] = [link(&mut node), link(&mut node)];
    let [one, other] = [0, 1].map(|at| with(|fake| fake.number(at)));
    write(&mut node, first, 0).unwrap();
    with(|fake| fake.fail(IBV_WC_RETRY_EXC_ERR));
    let mut events = poll(&mut node);
    for _ in 0..3 {
        events.extend(poll(&mut node));
        node.arm().unwrap();
    }
    let failure = Status(IBV_WC_RETRY_EXC_ERR);
    assert_eq!(events, [Told::Failed(0, failure), Told::Broken(failure)]);
    assert_eq!((posted(one), posted(other)), ((0, 2), (256, 2)));
    assert_eq!(write(&mut node, second, 1), Ok(()));
    // Its successor in the same place has all of them, and hears nothing of the former one.
    node.destroy_link(first);
    poll(&mut node);
    let third = link(&mut node);
    assert_eq!(third.index(), first.index());
    let next = with(|fake| fake.number(1));
    assert_eq!(posted(next), (256, 3));
}

#[test]
fn what_comes_late_of_a_destroyed_link_is_nobodys() {
    let limits = Limits {
        links_max: 1,
        ..Limits::default()
    };
    let mut node = node_without(Shared::None, limits);
    let first = link(&mut node);
    let qpn = with(|fake| fake.number(0));
    with(|fake| fake.arrive(qpn, 1, 10));
    let late = with(|fake| fake.completions.pop_back().unwrap());
    node.destroy_link(first);
    poll(&mut node);
    link(&mut node);
    let next = with(|fake| fake.number(0));
    with(|fake| {
        fake.completions.push_back(ibv_wc {
            qp_num: next,
            ..late
        });
    });
    assert_eq!(poll(&mut node), []);
    node.arm().unwrap();
    assert_eq!(posted(next).0, 256, "a buffer was posted twice");
}

#[test]
fn a_link_that_takes_no_buffers_breaks_and_no_other() {
    let mut node = node_without(Shared::None, Limits::default());
    let [first, second] = [link(&mut node), link(&mut node)];
    let one = with(|fake| fake.number(0));
    with(|fake| {
        fake.arrive(one, 1, 10);
        fake.refuse_receives = libc::ENOMEM;
    });
    assert_eq!(poll(&mut node), [Told::Arrived(1, 10)]);
    node.arm().unwrap();
    assert_eq!(poll(&mut node), [Told::Broken(Status::GENERAL)]);
    assert_eq!(write(&mut node, first, 0), Err(PostError::NotConnected));
    assert_eq!(write(&mut node, second, 0), Ok(()));
    assert!(node.create_link().is_err(), "the new one takes none either");
}
