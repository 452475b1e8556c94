//! What strangers send: nothing panics, no stranger changes another's connection, nobody gets
//! back more than was sent, and nothing grows without a limit.

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;

use super::super::connection::State;
use super::*;

/// A machine (host 2) with a connection to host 1 in every state, and their names.
fn populated() -> (Machine, Vec<u32>, Instant) {
    let now = Instant::now();
    let mut pair = Pair::new();
    let mut names = Vec::new();
    for (turn, steps) in (0..6).enumerate() {
        let (_, passive, _) = pair.asked(100 + turn as u32);
        names.push(passive);
        if steps == 0 {
            continue;
        }
        if steps == 1 {
            pair.two.command(now, passive, &reject(28));
        } else {
            pair.two.command(now, passive, &reply(200 + turn as u32));
        }
        if steps >= 3 {
            pair.two.communication_established(passive);
        }
        if steps >= 4 {
            pair.two.command(now, passive, &Message::DisconnectRequest);
        }
    }
    for message in [request(300), lookup()] {
        let id = pair.two.open(9, path(2, 1)).unwrap();
        pair.two.command(now, id, &message);
        names.push(id);
    }
    drain(&mut pair.two);
    (pair.two, names, now)
}

fn states(machine: &Machine, names: &[u32]) -> Vec<Option<State>> {
    names.iter().map(|name| machine.state(*name)).collect()
}

prop_compose! {
    /// A message with a right header, about one of the connections or none.
    fn plausible()(
        attribute in 0x0f_u16..0x1b,
        names in any::<[prop::sample::Index; 2]>(),
        any_names in any::<[bool; 2]>(),
        body in vec(any::<u8>(), 232),
        transaction in any::<u64>(),
        known in Just(populated().1),
    ) -> Mad {
        let mut mad = [0; MAD_BYTES];
        mad[..4].copy_from_slice(&[1, 7, 2, 3]);
        mad[8..16].copy_from_slice(&transaction.to_be_bytes());
        mad[16..18].copy_from_slice(&attribute.to_be_bytes());
        mad[24..].copy_from_slice(&body);
        for (at, name) in names.iter().enumerate() {
            if !any_names[at] {
                let name = name.get(&known).to_be_bytes();
                mad[24 + 4 * at..28 + 4 * at].copy_from_slice(&name);
            }
        }
        // A service that exists, and the header of annex A11.
        if matches!(attribute, 0x10 | 0x17) {
            mad[32..40].copy_from_slice(&[0, 0, 0, 0, 1, 6, 0x1d, 0x2f]);
            let private = if attribute == 0x10 { 164 } else { 40 };
            mad[private] = 0;
            mad[private + 1] = 0x40;
        }
        mad
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn any_bytes(bytes in vec(any::<u8>(), MAD_BYTES), passed_on: bool) {
        let (mut machine, names, now) = populated();
        let before = states(&machine, &names);
        let mad: &Mad = bytes.first_chunk().unwrap();
        machine.received(now, &path(1, 2), mad, passed_on);
        let out = drain(&mut machine);
        prop_assert!(out.sent.len() <= 1);
        prop_assert_eq!(states(&machine, &names), before);
    }

    #[test]
    fn messages_of_a_stranger_change_nothing(mads in vec(plausible(), 1..40), passed_on: bool) {
        let (mut machine, names, now) = populated();
        let before = states(&machine, &names);
        for mad in &mads {
            let incoming = machine.received(now, &path(3, 2), mad, passed_on);
            let out = drain(&mut machine);
            prop_assert!(out.sent.len() + out.passed_on.len() <= 1);
            prop_assert!(out.events.is_empty());
            // It gets its answers itself.
            prop_assert!(out.sent.iter().all(|(to, _)| to.destination == gid(3)));
            if let Some(incoming) = incoming {
                machine.turn_away(&incoming);
                prop_assert!(drain(&mut machine).sent.len() <= 1);
            }
        }
        prop_assert_eq!(states(&machine, &names), before);
    }

    /// The peer itself may break its own connections, and only those.
    #[test]
    fn messages_of_the_peer(mads in vec(plausible(), 1..40), admits: bool) {
        let (mut machine, names, now) = populated();
        let mut events = 0;
        for mad in &mads {
            let incoming = machine.received(now, &path(1, 2), mad, false);
            if let Some(incoming) = incoming
                && admits
            {
                prop_assert!(machine.admit(&incoming, 50).is_some());
            }
            let out = drain(&mut machine);
            prop_assert!(out.sent.len() <= 3, "{}", out.sent.len());
            events += out.events.len();
        }
        prop_assert!(machine.len() <= names.len() + mads.len());
        // Each connection has two events at most: it comes up, and it ends.
        prop_assert!(events <= 2 * (names.len() + mads.len()));
        // And all of it goes away.
        machine.release_all(now);
        while let Some(deadline) = machine.deadline() {
            machine.tick(deadline);
            drain(&mut machine);
        }
        prop_assert_eq!(machine.len(), 0);
        prop_assert!(machine.tables_are_empty());
    }
}

#[test]
fn a_flood_of_refused_requests_is_forgotten() {
    let mut pair = Pair::new();
    let most = 20_000;
    for number in 0..most {
        let id = pair.one.open(1, path(1, 2)).unwrap();
        pair.one.command(pair.now, id, &request(100 + number));
        let req = drain(&mut pair.one).sent[0].1;
        pair.one.forget_all();
        let incoming = pair.two.received(pair.now, &path(1, 2), &req, false);
        let passive = pair.two.admit(&incoming.unwrap(), 2).unwrap();
        pair.two.command(pair.now, passive, &reject(28));
        pair.two.release(pair.now, passive);
        drain(&mut pair.two);
    }
    assert!(pair.two.len() <= 5000, "{}", pair.two.len());
    pair.two.tick(pair.now + Duration::from_secs(80));
    assert_eq!(pair.two.len(), 0);
    assert!(pair.two.tables_are_empty());
}

#[test]
fn connections_beyond_the_limit_are_refused() {
    let mut machine = Pair::new().one;
    let opened = (0..70_000)
        .take_while(|_| machine.open(1, path(1, 2)).is_some())
        .count();
    assert_eq!(opened, 60_000);
    assert_eq!(machine.counters.overflow, 1);
}

#[test]
fn what_is_for_another_process_is_passed_on_once() {
    let mut pair = Pair::new();
    let (_, _, rep) = {
        let mut other = Pair::new();
        other.one = Machine::new(0x0a77, 1, MTU, 9);
        other.replied()
    };
    let (now, from) = (pair.now, path(2, 1));
    assert!(pair.one.received(now, &from, &rep, false).is_none());
    assert_eq!(drain(&mut pair.one).passed_on, [Some(0x0a77)]);
    assert!(pair.one.received(now, &from, &rep, true).is_none());
    let out = drain(&mut pair.one);
    assert!(out.passed_on.is_empty() && out.sent.is_empty());
    assert_eq!(pair.one.counters.misplaced, 1);
}
