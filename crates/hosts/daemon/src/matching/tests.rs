use super::*;

const HOME: Domain = Domain {
    netns: 1,
    interface: 0,
};
const AWAY: Domain = Domain {
    netns: 2,
    interface: 0,
};

fn tuple(local: u16, peer: u16) -> Tuple {
    Tuple {
        local: SocketAddr::from(([10, 0, 0, 1], local)),
        peer: SocketAddr::from(([10, 0, 0, 2], peer)),
    }
}

fn key(client: ClientId, end: u32) -> EndKey {
    EndKey { client, end }
}

/// An announcement by `client` of its end number `end`.
fn end(client: ClientId, end: u32, tuple: Tuple, domain: Domain, cookie: u64) -> Announced {
    Announced {
        key: key(client, end),
        generation: 1,
        tuple,
        domain,
        cookie,
    }
}

fn client_end(cookie: u64) -> Announced {
    end(1, 0, tuple(40_000, 80), HOME, cookie)
}

fn server_end(cookie: u64) -> Announced {
    end(2, 0, tuple(40_000, 80).mirrored(), HOME, cookie)
}

#[test]
fn mirrored_ends_of_one_namespace_match_in_either_order() {
    for swap in [false, true] {
        let (mut a, mut b) = (client_end(10), server_end(11));
        if swap {
            std::mem::swap(&mut a, &mut b);
        }
        let mut matcher = Matcher::default();
        assert_eq!(matcher.announce(a, None).0, Outcome::Waits);
        assert_eq!(matcher.announce(b, None).0, Outcome::Mirrored(vec![a.key]));
    }
}

#[test]
fn equal_addresses_are_no_match() {
    let mut matcher = Matcher::default();
    matcher.announce(client_end(10), None);
    let other = end(2, 0, tuple(40_000, 80), AWAY, 11);
    assert_eq!(matcher.announce(other, None).0, Outcome::Waits);
}

#[test]
fn another_interface_is_no_match() {
    let mut matcher = Matcher::default();
    matcher.announce(client_end(10), None);
    let mut bound = server_end(11);
    bound.domain.interface = 3;
    assert_eq!(matcher.announce(bound, None).0, Outcome::Waits);
}

#[test]
fn other_namespaces_are_candidates_unless_the_own_has_one() {
    let mut matcher = Matcher::default();
    let mut far = client_end(10);
    far.domain = AWAY;
    matcher.announce(far, None);
    let (outcome, _) = matcher.announce(server_end(11), None);
    assert_eq!(outcome, Outcome::Mirrored(vec![far.key]));
    let near = end(3, 0, tuple(40_000, 80), HOME, 12);
    assert_eq!(
        matcher.announce(near, None).0,
        Outcome::Mirrored(vec![key(2, 0)])
    );
    // And with both known, the server's next announcement prefers the near one.
    let again = end(2, 1, tuple(40_000, 80).mirrored(), HOME, 13);
    assert_eq!(
        matcher.announce(again, None).0,
        Outcome::Mirrored(vec![near.key, far.key])
    );
}

#[test]
fn both_ends_of_a_connection_can_be_one_clients() {
    let mut matcher = Matcher::default();
    let mut b = server_end(11);
    b.key = key(1, 1);
    matcher.announce(client_end(10), None);
    assert_eq!(
        matcher.announce(b, None).0,
        Outcome::Mirrored(vec![key(1, 0)])
    );
}

#[test]
fn an_end_is_not_its_own_peer() {
    // TCP's simultaneous open to oneself: one socket, connected to its own address.
    let mut matcher = Matcher::default();
    let address = SocketAddr::from(([127, 0, 0, 1], 5000));
    let to_itself = Tuple {
        local: address,
        peer: address,
    };
    assert_eq!(
        matcher.announce(end(1, 0, to_itself, HOME, 1), None).0,
        Outcome::Waits
    );
}

#[test]
fn a_new_socket_replaces_a_stale_one_and_its_peer_is_free_again() {
    let mut matcher = Matcher::default();
    matcher.announce(client_end(10), None);
    matcher.announce(server_end(11), None);
    matcher.pair(key(1, 0), key(2, 0));
    let fresh = end(3, 7, tuple(40_000, 80), HOME, 99);
    let (outcome, displaced) = matcher.announce(fresh, None);
    assert_eq!(outcome, Outcome::Mirrored(vec![key(2, 0)]));
    assert_eq!(displaced.replaced, 1);
    assert!(matcher.entry(key(1, 0)).is_none());
}

#[test]
fn a_socket_with_a_lane_announced_by_a_second_process_stays_where_it_is() {
    let mut matcher = Matcher::default();
    matcher.announce(client_end(10), None);
    matcher.announce(server_end(11), None);
    matcher.pair(key(1, 0), key(2, 0));
    let copy = end(3, 0, tuple(40_000, 80), HOME, 10);
    assert_eq!(matcher.announce(copy, None).0, Outcome::Duplicate);
    assert!(matcher.entry(key(1, 0)).is_some());
}

#[test]
fn a_socket_without_a_lane_follows_the_last_process_that_announced_it() {
    let mut matcher = Matcher::default();
    matcher.announce(client_end(10), None);
    let copy = end(3, 0, tuple(40_000, 80), HOME, 10);
    let (outcome, displaced) = matcher.announce(copy, None);
    assert_eq!((outcome, displaced.replaced), (Outcome::Waits, 0));
    assert_eq!(
        matcher.announce(server_end(11), None).0,
        Outcome::Mirrored(vec![copy.key])
    );
}

#[test]
fn a_paired_end_is_no_candidate_until_its_partner_leaves() {
    let mut matcher = Matcher::default();
    matcher.announce(client_end(10), None);
    matcher.announce(server_end(11), None);
    matcher.pair(key(1, 0), key(2, 0));
    assert!(!matcher.is_free(key(2, 0), 1));
    matcher.remove_client(1);
    assert!(matcher.is_free(key(2, 0), 1));
    let heir = end(3, 0, tuple(40_000, 80), HOME, 10);
    assert_eq!(
        matcher.announce(heir, None).0,
        Outcome::Mirrored(vec![key(2, 0)])
    );
}

#[test]
fn a_release_counts_only_in_its_generation() {
    let mut matcher = Matcher::default();
    matcher.announce(client_end(10), None);
    assert!(matcher.release(key(1, 0), 2).is_none());
    assert!(matcher.release(key(1, 0), 1).is_some());
    assert!(matcher.release(key(1, 0), 1).is_none());
    assert!(matcher.is_empty());
}

#[test]
fn too_many_waiting_ends_of_a_client_push_its_own_oldest_out() {
    let mut matcher = Matcher::default();
    matcher.announce(end(9, 0, tuple(1, 1), HOME, 1), None);
    let addresses = |n: u32| Tuple {
        local: SocketAddr::from((std::net::Ipv4Addr::from(0x0a00_0000 + n), 1)),
        peer: SocketAddr::from(([1, 1, 1, 1], 2)),
    };
    let limit = WAITING_PER_CLIENT_MAX as u32;
    for n in 0..limit {
        let (_, displaced) = matcher.announce(end(1, n, addresses(n), HOME, u64::from(n)), None);
        assert_eq!(displaced, Displaced::default());
    }
    let (_, displaced) = matcher.announce(end(1, limit, addresses(limit), HOME, 0), None);
    assert_eq!(displaced.forgotten, 1);
    assert!(matcher.entry(key(1, 0)).is_none());
    assert!(matcher.entry(key(1, 1)).is_some());
    assert!(matcher.entry(key(9, 0)).is_some());
}

/// Who announces `tuple` in a hundred namespaces of its own.
fn many(matcher: &mut Matcher, client: ClientId, tuple: Tuple, user: Payer) {
    for n in 0..100 {
        let mut announced = end(client, n, tuple, HOME, u64::from(n));
        announced.domain.netns = 100 * u64::from(client) + u64::from(n);
        matcher.announce(announced, user);
    }
}

#[test]
fn one_address_in_many_namespaces_stays_bounded() {
    let mut matcher = Matcher::default();
    many(&mut matcher, 1, tuple(40_000, 80), None);
    let (outcome, _) = matcher.announce(server_end(11), None);
    let newest = (100 - SAME_ADDRESSES_MAX as u32..100).map(|n| key(1, n));
    assert_eq!(outcome, Outcome::Mirrored(newest.collect()));
}

#[test]
fn many_in_other_namespaces_do_not_hide_an_end_in_its_own() {
    for victim_first in [false, true] {
        let mut matcher = Matcher::default();
        if victim_first {
            matcher.announce(client_end(10), Some(1000));
        }
        many(&mut matcher, 66, tuple(40_000, 80), Some(666));
        many(&mut matcher, 67, tuple(40_000, 80).mirrored(), Some(666));
        if !victim_first {
            matcher.announce(client_end(10), Some(1000));
        }
        let (outcome, _) = matcher.announce(server_end(11), Some(1001));
        let Outcome::Mirrored(found) = outcome else {
            panic!("{outcome:?}");
        };
        assert_eq!(found[0], key(1, 0));
        assert!(found.len() <= 1 + SAME_ADDRESSES_MAX, "{found:?}");
    }
}

#[test]
fn many_of_one_user_do_not_keep_anothers_end_from_a_third_namespace() {
    for victim_first in [false, true] {
        let mut matcher = Matcher::default();
        let mut victim = client_end(10);
        victim.domain = AWAY;
        if victim_first {
            matcher.announce(victim, Some(1000));
        }
        many(&mut matcher, 66, tuple(40_000, 80), Some(666));
        if !victim_first {
            matcher.announce(victim, Some(1000));
        }
        many(&mut matcher, 67, tuple(40_000, 80), Some(666));
        let (outcome, _) = matcher.announce(server_end(11), Some(1001));
        let Outcome::Mirrored(found) = outcome else {
            panic!("{outcome:?}");
        };
        assert!(found.contains(&victim.key), "{found:?}");
        assert_eq!(found.len(), SAME_ADDRESSES_MAX);
    }
}

#[test]
fn removing_a_client_leaves_nothing_behind() {
    let mut matcher = Matcher::default();
    matcher.announce(client_end(10), None);
    matcher.announce(server_end(11), None);
    matcher.pair(key(1, 0), key(2, 0));
    matcher.announce(end(1, 5, tuple(7, 8), AWAY, 3), None);
    matcher.remove_client(1);
    matcher.remove_client(2);
    assert!(matcher.is_empty() && matcher.by_place.is_empty());
    assert!(matcher.candidates.is_empty() && matcher.by_client.is_empty());
    assert_eq!(matcher.waiting, 0);
}

#[test]
fn room_for_many_ends_is_given_back_when_they_are_gone() {
    let mut matcher = Matcher::default();
    let number = |at: u32| u16::try_from(at).unwrap();
    for at in 0..8_000 {
        matcher.announce(end(1, at, tuple(number(at), 80), HOME, u64::from(at)), None);
    }
    assert!(!matcher.give_memory_back(), "it is used");
    for at in 10..8_000 {
        matcher.release(key(1, at), 1);
    }
    assert!(matcher.give_memory_back());
    assert!(matcher.entries.capacity() < 1_000);
    assert!(!matcher.give_memory_back(), "it has been");
    // What is left is known as before.
    assert_eq!(matcher.len(), 10);
    let other = end(2, 0, tuple(3, 80).mirrored(), HOME, 9_999);
    assert_eq!(
        matcher.announce(other, None).0,
        Outcome::Mirrored(vec![key(1, 3)])
    );
}
