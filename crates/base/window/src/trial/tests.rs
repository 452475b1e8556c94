use super::*;
use crate::Kind;
use sluice_sys::mapping::Mapping;

const BYTES: usize = 4 << 20;
const SOON: Duration = Duration::from_secs(120);

/// Time passes slowly, so that nobody is silent, or stuck, whose thread stands still for a while.
pub(super) fn now_ns() -> u64 {
    sluice_sys::clock::now_ns() / 40
}

/// So long that it is, by that clock.
const SHORT: Duration = Duration::from_millis(10);

fn region(kind: Kind, hosts: u32) -> Region {
    let memory = Mapping::anonymous(BYTES).unwrap();
    Region::format(memory, hosts, kind, true).unwrap()
}

/// A claim whose clock goes on as it looks.
fn claimed(region: &Region) -> Hold {
    let mut now = now_ns();
    let nap = || {
        now += 5_000_000;
        now
    };
    claim_napping(region, SOON, None, nap).unwrap()
}

fn free_slots(region: &Region) -> usize {
    let is_free = |slot: &u32| region.look(*slot, Word::Generation) == 0;
    (0..region.hosts()).filter(is_free).count()
}

#[test]
fn two_hosts_find_each_other_and_measure_both_ways() {
    for kind in [Kind::Coherent, Kind::Flush] {
        let region = region(kind, 3);
        let tried = std::thread::scope(|scope| {
            // One after the other: of two that claim at once without a compare-and-swap one may find, having
            // stood still, that it has lost its slot.
            let holds = [(); 2].map(|()| claimed(&region));
            let region = &region;
            let tries = holds.map(|mut hold| {
                scope.spawn(move || {
                    let peer = partner(region, &mut hold, SOON)?.expect("a partner");
                    measure(region, hold, peer, SOON)
                })
            });
            tries.map(|tried| tried.join().unwrap().unwrap())
        });
        let [[one, other], [others, ones]] = tried;
        assert_eq!([one, other], [ones, others], "each says what it has found");
        for found in [one, other] {
            assert!(found.round_trip_ns > 0 && found.bytes_per_second > 0);
            assert!(found.round_trip_99_ns >= found.round_trip_ns);
        }
        // Nothing stays held or lent.
        assert_eq!(free_slots(&region), 3);
        for slot in 0..3 {
            assert_eq!(Ledger::lent_bytes(&region.view(slot), region.header()), 0);
        }
    }
}

#[test]
fn nobody_else_is_no_partner() {
    let region = region(Kind::Coherent, 3);
    let mut other = Claim::new(7, "sluiced", None);
    let Claimed::Held(other) = other.poll(&region, now_ns()) else {
        panic!("a free slot");
    };
    let mut hold = claim(&region, SOON, None).unwrap();
    let found = partner(&region, &mut hold, Duration::from_millis(300));
    assert_eq!(found, Ok(None));
    // One that has the name and does not beat was killed.
    let silent = claim(&region, SOON, None).unwrap();
    let found = partner(&region, &mut hold, Duration::from_millis(300));
    assert_eq!(found, Ok(None));
    assert_eq!(claim(&region, SHORT, None).err(), Some(Failure::NoSlot));
    for hold in [other, hold, silent] {
        hold.release(&region);
    }
}

/// A slot whose holder gives no sign of life for three seconds is anybody's.
#[test]
fn who_waits_for_a_second_slot_keeps_the_first() {
    let region = region(Kind::Coherent, 2);
    let mut first = claim(&region, SOON, None).unwrap();
    let mut other = claim(&region, SOON, None).unwrap();
    let mut now = now_ns();
    let nap = || {
        other.beat(&region).unwrap();
        now += 5_000_000;
        now
    };
    let second = claim_napping(&region, CLAIM_LIMIT, Some(&mut first), nap).err();
    assert_eq!(second, Some(Failure::NoSlot));
    assert!(now_ns() + SILENCE_NS < now, "it has waited for so long");
    assert_eq!(first.beat(&region), Ok(()));
    for hold in [first, other] {
        hold.release(&region);
    }
}

#[test]
fn a_host_that_never_answers_is_given_up() {
    let region = region(Kind::Coherent, 2);
    let hold = claim(&region, SOON, None).unwrap();
    let failed = measure(&region, hold, 1, SHORT);
    assert_eq!(failed, Err(Failure::Stuck));
    assert_eq!(free_slots(&region), 2);
}

/// A host that meets the other one, and then does as `lies` says. The other one has so much patience.
fn beside_a_liar(
    patience: Duration,
    lies: impl Fn(&mut Host<'_>) -> Result<(), Failure> + Sync,
) -> Failure {
    let region = region(Kind::Coherent, 2);
    let holds = [(); 2].map(|()| claim(&region, SOON, None).unwrap());
    let [honest, liar] = holds;
    let slots = [honest.slot(), liar.slot()];
    std::thread::scope(|scope| {
        let tried = scope.spawn(|| measure(&region, honest, slots[1], patience));
        let mut host = Host::new(&region, liar, slots[0], SOON).unwrap();
        while !host.link.is_up() {
            host.look().unwrap();
        }
        // The other one may have ended this meanwhile.
        let _ = lies(&mut host);
        let failed = tried.join().unwrap();
        host.leave();
        failed.unwrap_err()
    })
}

#[test]
fn a_host_that_lends_what_cannot_be_ends_the_trial() {
    let lends = [
        [0, 4096],
        [!4095, 4096],
        [1 << 21, 3 << 12],
        [1 << 21, 1 << 40],
        [1 << 21, 0],
        [(1 << 21) + 8, 4096],
    ];
    for lend in lends {
        let failed = beside_a_liar(SOON, |host| {
            host.tell(LEND, lend)?;
            host.hear(READY).map(drop)
        });
        let is_told = matches!(failed, Failure::Broken(_) | Failure::Ended(_));
        assert!(is_told, "{lend:x?}: {failed:?}");
    }
}

#[test]
fn a_host_that_sends_other_bytes_is_found_out() {
    // It is asked first, as its slot is the higher one.
    let failed = beside_a_liar(SOON, |host| {
        let mut rings = host.meet()?;
        let mut line = rings.take_line(host)?;
        line[7] ^= 1;
        rings.send_line(host, line)?;
        host.hear(READY).map(drop)
    });
    assert_eq!(failed, Failure::Wrong(LINE_BYTES));
    let failed = beside_a_liar(SHORT, |host| {
        let mut rings = host.meet()?;
        loop {
            let line = rings.take_line(host)?;
            if line[0] == STREAM {
                break;
            }
            rings.send_line(host, line)?;
        }
        // It never looks at the stream, and says that it was good.
        rings.send_line(host, [DONE, 0, 0, 0, 0, 0, 0, 0])?;
        host.hear(READY).map(drop)
    });
    assert_eq!(failed, Failure::Stuck);
}
