//! `sluice doctor --window`: what a window is, whether bytes go through it, and how fast.

use std::path::Path;
use std::time::Duration;

use sluice_window::claim::Hold;
use sluice_window::region::Region;
use sluice_window::trial::{self, Failure, Figures};

use super::Check;
use crate::units;
use crate::window;

/// How long the other host may say nothing while both measure.
const PATIENCE: Duration = Duration::from_secs(10);

const WINDOW: &str = "window";
const SLOT: &str = "slot";
const PARTNER: &str = "other host";
const ROUND_TRIP: &str = "round trip";
const STREAM: &str = "bandwidth";

/// `wait`: how long to wait for a doctor on another host.
pub fn checks(path: &Path, wait: Duration) -> Vec<Check> {
    let memory = match window::open(path) {
        Ok(memory) => memory,
        Err(failure) => return vec![Check::missing(WINDOW, failure.what, failure.hint)],
    };
    let region = &memory.region;
    let mut checks = vec![Check::ok(WINDOW, window::describe(region))];
    if let Err(check) = tried(region, wait, &mut checks) {
        checks.push(check);
    }
    checks
}

fn tried(region: &Region, wait: Duration, checks: &mut Vec<Check>) -> Result<(), Check> {
    let failed =
        |name| move |failure: Failure| Check::missing(name, failure.to_string(), hint(failure));
    let mut hold = trial::claim(region, trial::CLAIM_LIMIT, None).map_err(failed(SLOT))?;
    let own = hold.slot();
    checks.push(Check::ok(SLOT, format!("slot {own} while this lasts")));
    let found = trial::partner(region, &mut hold, wait);
    let found = match found {
        Ok(found) => found,
        Err(failure) => {
            hold.release(region);
            return Err(failed(SLOT)(failure));
        }
    };
    let figures = match found {
        Some(peer) => {
            checks.push(Check::ok(PARTNER, format!("another doctor, slot {peer}")));
            trial::measure(region, hold, peer, PATIENCE)
        }
        None => {
            checks.push(Check::note(
                PARTNER,
                format!("none within {} s: both ends are here", wait.as_secs()),
                "to measure between two hosts, run this on both at the same time; --wait SECONDS \
                 gives the other one longer to come",
            ));
            alone(region, hold)
        }
    };
    let [own, others] = figures.map_err(failed(PARTNER))?;
    checks.push(Check::ok(ROUND_TRIP, round_trips(&own, &others)));
    checks.push(Check::ok(STREAM, rates(&own, &others)));
    Ok(())
}

/// Both ends in this process, on a thread each.
fn alone(region: &Region, mut hold: Hold) -> Result<[Figures; 2], Failure> {
    let other = match trial::claim(region, trial::CLAIM_LIMIT, Some(&mut hold)) {
        Ok(other) => other,
        Err(failure) => {
            hold.release(region);
            return Err(failure);
        }
    };
    let slots = [hold.slot(), other.slot()];
    std::thread::scope(|scope| {
        let there = scope.spawn(move || trial::measure(region, other, slots[0], PATIENCE));
        let here = trial::measure(region, hold, slots[1], PATIENCE);
        // What one of them has found the other one has been told.
        let _ = there.join();
        here
    })
}

fn hint(failure: Failure) -> &'static str {
    match failure {
        Failure::NoSlot => {
            "'sluice window show PATH' says who holds them: end one of those, or make a window with \
             more --hosts"
        }
        Failure::NoRoom => "make the window anew, or with a larger --size",
        Failure::Ended(_) | Failure::Stuck | Failure::Lost => {
            "run it again on both hosts; if it stays so, the hosts do not see the same memory, or \
             its kind is not what it was made with: --kind flush where caches do not agree"
        }
        Failure::Version(_) => "install the same version of Sluice on both hosts",
        Failure::Broken(_) | Failure::Wrong(_) => {
            "somebody else writes to this memory, or caches do not agree: a window with --kind flush \
             is for that"
        }
        Failure::System => "see getrandom(2)",
    }
}

fn round_trips(own: &Figures, others: &Figures) -> String {
    let one = |figures: &Figures| {
        format!(
            "{} (99th percentile {})",
            units::micros(figures.round_trip_ns),
            units::micros(figures.round_trip_99_ns)
        )
    };
    format!(
        "64 bytes, polled: {}; asked by the other end {}",
        one(own),
        one(others)
    )
}

fn rates(own: &Figures, others: &Figures) -> String {
    let one = |figures: &Figures| units::bytes(figures.bytes_per_second);
    format!(
        "{}/s there, {}/s back, every byte checked",
        one(own),
        one(others)
    )
}
