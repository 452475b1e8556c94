use super::*;
use crate::Kind;
use crate::model::{Chooser, Model, ModelView};

const HOSTS: u32 = 3;
const KINDS: [Kind; 2] = [Kind::Coherent, Kind::Flush];

fn model(kind: Kind) -> Model {
    Model::random(kind, HOSTS, 4096, 1)
}

/// Polls until the claim is decided; the clock goes on to when it asks for.
fn claim(claim: &mut Claim, table: &ModelView, now: &mut u64) -> Hold {
    loop {
        match claim.poll(table, *now) {
            Claimed::Held(hold) => return hold,
            Claimed::Wait { until_ns } => *now = until_ns,
        }
    }
}

#[test]
fn each_host_gets_a_slot_and_one_too_many_waits_for_a_dead_one() {
    for kind in KINDS {
        let model = model(kind);
        let mut now = 0;
        let mut holds: Vec<Hold> = (0..HOSTS)
            .map(|host| {
                let table = model.view(host);
                claim(
                    &mut Claim::new(10 + u64::from(host), "h", None),
                    &table,
                    &mut now,
                )
            })
            .collect();
        let slots: Vec<u32> = holds.iter().map(Hold::slot).collect();
        assert_eq!(slots, [0, 1, 2]);
        let table = model.view(0);
        let mut late = Claim::new(99, "late", None);
        let begun = now;
        // Two go on beating, the third has died.
        let hold = loop {
            for hold in &mut holds[..2] {
                hold.beat(&table).unwrap();
            }
            match late.poll(&table, now) {
                Claimed::Held(hold) => break hold,
                Claimed::Wait { until_ns } => now = until_ns,
            }
            assert!(now - begun < 10 * SILENCE_NS);
        };
        assert_eq!(hold.slot(), 2);
        assert!(now - begun >= SILENCE_NS);
        // The dead one comes back.
        assert_eq!(holds[2].beat(&table), Err(Lost));
        holds.pop().unwrap().release(&table);
        assert_eq!(table.look(2, Word::Generation), 99);
        hold.release(&table);
        assert_eq!(table.look(2, Word::Generation), 0);
    }
}

/// A claimant that stood still, perhaps with the holder: what it has not watched is no silence. Once it watches again,
/// a holder that is dead is found to be.
#[test]
fn a_claimant_that_stood_still_takes_nobodys_slot() {
    for kind in KINDS {
        let model = model(kind);
        let table = model.view(0);
        let mut now = 0;
        let mut held = claim(&mut Claim::new(5, "", Some(1)), &table, &mut now);
        let mut late = Claim::new(6, "", Some(1));
        for _ in 0..4 {
            assert!(matches!(late.poll(&table, now), Claimed::Wait { .. }));
            now += 10 * SILENCE_NS;
            assert!(matches!(late.poll(&table, now), Claimed::Wait { .. }));
            assert_eq!(held.beat(&table), Ok(()), "{kind}");
        }
        let begun = now;
        let heir = claim(&mut late, &table, &mut now);
        assert!((SILENCE_NS..2 * SILENCE_NS).contains(&(now - begun)));
        assert_eq!(held.beat(&table), Err(Lost), "{kind}");
        heir.release(&table);
    }
}

#[test]
fn a_slot_that_was_asked_for_is_waited_for() {
    let model = model(Kind::Coherent);
    let table = model.view(0);
    let mut now = 0;
    let held = claim(&mut Claim::new(5, "", Some(1)), &table, &mut now);
    assert_eq!(held.slot(), 1);
    let mut second = Claim::new(6, "", Some(1));
    assert!(matches!(second.poll(&table, now), Claimed::Wait { .. }));
    held.release(&table);
    assert!(matches!(second.poll(&table, now), Claimed::Held(_)));
}

/// Claimants that are late by less than a claim waits: never two holders of a slot. Those that
/// are later than that are found out by whoever beats.
#[test]
fn claims_by_chance_have_one_holder_a_slot() {
    for kind in KINDS {
        for seed in 1..500 {
            let model = model(kind);
            let table = model.view(0);
            let mut chance = Chooser::Random(seed);
            let mut claims: Vec<Option<Claim>> = (0..5)
                .map(|host| Some(Claim::new(100 + host, "", None)))
                .collect();
            let mut holds: Vec<Option<Hold>> = (0..5).map(|_| None).collect();
            let mut now = 0;
            for _ in 0..400 {
                now += u64::from(chance.choose(2)) * SETTLE_NS / 3;
                let host = chance.choose(5) as usize;
                for hold in holds.iter_mut().flatten() {
                    assert_eq!(hold.beat(&table), Ok(()), "{kind} {seed}");
                }
                if let Some(claim) = &mut claims[host]
                    && let Claimed::Held(hold) = claim.poll(&table, now)
                {
                    holds[host] = Some(hold);
                    claims[host] = None;
                } else if chance.choose(6) == 0
                    && let Some(hold) = holds[host].take()
                {
                    hold.release(&table);
                    claims[host] = Some(Claim::new(100 + host as u64, "", None));
                }
                let mut slots: Vec<u32> = holds.iter().flatten().map(Hold::slot).collect();
                slots.sort_unstable();
                let held = slots.len();
                slots.dedup();
                assert_eq!(slots.len(), held, "{kind} {seed}: two holders of a slot");
            }
        }
    }
}

#[test]
fn a_name_is_kept_in_part() {
    let model = model(Kind::Coherent);
    let table = model.view(0);
    let mut now = 0;
    let long = "a-name-that-is-too-long";
    let hold = claim(&mut Claim::new(5, long, None), &table, &mut now);
    let words = [Word::NameLow, Word::NameHigh].map(|word| table.look(hold.slot(), word));
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    assert_eq!(bytes, &long.as_bytes()[..16]);
}
