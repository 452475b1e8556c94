//! Ends of programs and of the module under load, in a guest with two devices: the short form for each run, and
//! as many as `scripts/kernel-ends` asks for.

use std::time::Duration;

use libtest_mimic::Trial;
use sluice_tests::suite::{Verdict, fail, trial};

use crate::guest::serve;
use crate::rdma::boot;
use crate::sure;

/// What `scripts/kernel-ends` says: how many programs are killed, and how often the module goes.
const KILLS: &str = "SLUICE_KERNEL_KILLS";
const REMOVALS: &str = "SLUICE_KERNEL_REMOVALS";
/// Without it.
const SHORT: (u32, u32) = (8, 1);
/// For each of either, on a machine that does other things as well.
const SECONDS_EACH: u64 = 30;

pub fn trials() -> Vec<Trial> {
    vec![trial("rdma_ends_6_12", ends)]
}

/// Pages that are pinned, and what the device has, are as many as before.
const SCRIPT: &str = r#"
both
hosts
pinned() {
    local got=$(sed -n 's/^nr_foll_pin_acquired //p' /proc/vmstat)
    echo $((got - $(sed -n 's/^nr_foll_pin_released //p' /proc/vmstat)))
}
# What a program had goes when it has ended.
same() {
    local now try
    for try in $(seq 300); do
        now=$("$@")
        [ "$now" != "$before" ] || return 0
        sleep 0.1
    done
    echo "$*: $before before, now $now"
    exit 1
}
objects() { rdma resource show; }
before=$(objects)
[ -n "$before" ]
pins=$(pinned)
$KILLS_PROGRAM kills $KILLS sluice0 sluice1
same objects
before=$pins
same pinned
echo killed_either=$KILLS
for round in $(seq $REMOVALS); do
    at 1 "rping -s -P -a 0.0.0.0" >/run/listener 2>&1 &
    listener=$!
    $KILLS_PROGRAM holds sluice0 sluice1 >/run/holds &
    holds=$!
    $VERBS load sluice1 sluice0 >/run/load &
    load=$!
    # It is tried again until there is who listens, and goes on for ever then.
    ( until at 2 "rping -c -v -a 10.9.0.1"; do sleep 0.2; done ) >/run/client 2>&1 &
    client=$!
    for file in holds:holding load:loading client:ping; do
        until grep -qs ${file#*:} /run/${file%:*}; do sleep 0.1; done
    done
    ucmatose -b 10.9.0.77 >/dev/null 2>&1 &
    rmmod sluice_rdma
    wait $holds
    wait $load
    grep held=ok /run/holds
    grep load_ended=ok /run/load
    [ -z "$(rdma resource show)" ]
    kill $client $! || :
    wait $client $! || :
    kill -9 $(pgrep -x rping) $listener || :
    wait $listener || :
    same pinned
    $USER unlent $DEVICE
    insmod $RDMA
    until [ -e /sys/class/infiniband/sluice1 ]; do sleep 0.1; done
    hosts
done
$VERBS transfers sluice0 sluice1
same pinned
ip netns del host1
ip netns del host2
rmmod sluice_rdma
$USER unlent $DEVICE
rmmod sluice_window
nothing_left
echo removed=$REMOVALS
"#;

fn number(name: &str, otherwise: u32) -> Verdict<u32> {
    match std::env::var(name) {
        Ok(text) => text
            .parse()
            .or_else(|_| fail(format!("{name} is not a number: {text}"))),
        Err(_) => Ok(otherwise),
    }
}

fn ends() -> Verdict {
    let (kills, removals) = (number(KILLS, SHORT.0)?, number(REMOVALS, SHORT.1)?);
    let place = tempfile::tempdir()?;
    let server = serve(place.path())?;
    let script = format!("KILLS={kills}\nREMOVALS={removals}\n{SCRIPT}");
    let device = Some((&server, 2));
    let mut guest = boot(place.path(), device, "bookworm-backports", &script, None)?;
    let more = u64::from(kills.saturating_sub(SHORT.0) + removals.saturating_sub(SHORT.1));
    guest.more_time(Duration::from_secs(more * SECONDS_EACH));
    guest.run(|_| Ok(false))?;
    let console = guest.finish()?;
    for word in [
        format!("killed_either={kills}"),
        format!("removed={removals}"),
    ] {
        sure(console.contains(&word), format!("no {word}\n{console}"))?;
    }
    Ok(())
}
