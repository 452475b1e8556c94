//! Faults on purpose: packets that get lost, come twice, come late or are damaged, below whatever
//! makes a transport reliable.
//!
//! [`Faults`] says how often (`sluice verbs --fault`, `SLUICE_VERBS_FAULT`). A transport makes an
//! [`Injector`] of it for each queue pair, or wherever else packets go one after the other, and
//! asks it for the [`Fate`] of each. Fates depend on the seed, the injector's number and the
//! packet's place only, so a run can be repeated as far as its packets can.
//!
//! What is done with a packet of each fate is [`Impair`]'s; a transport says what its packets are.
//! One without packets has [`Messages`] suffer instead.

mod impair;
mod messages;
mod report;

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use sluice_sys::process::random;

pub use impair::{Impair, Passing};
pub use messages::{Messages, Outlet, Senders};
pub use report::at_exit;

/// Says what is to happen; `sluice verbs --fault` sets it.
pub const VARIABLE: &str = "SLUICE_VERBS_FAULT";

/// Probabilities are multiples of one in this many.
const WHOLE: u64 = 1 << 53;
/// How long a packet that is to come late is held back at most, if nothing is said.
const DELAY: Duration = Duration::from_millis(1);
/// The longest such time that can be asked for.
const DELAY_MAX: Duration = Duration::from_secs(1);

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Nothing happens to it.
    Pass,
    /// It does not arrive.
    Drop,
    /// It arrives twice.
    Duplicate,
    /// It arrives after the next one, or after [`Faults::delay`] if none comes before.
    Late,
    /// It arrives damaged, which the receiver's ICRC shows.
    Corrupt,
}

impl Fate {
    const ALL: [Self; 5] = [
        Self::Pass,
        Self::Drop,
        Self::Duplicate,
        Self::Late,
        Self::Corrupt,
    ];
}

/// A share of all packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Probability(u64);

impl FromStr for Probability {
    type Err = ();

    /// A number from 0 to 1, or a percentage.
    fn from_str(text: &str) -> Result<Self, ()> {
        let (number, whole) = match text.strip_suffix('%') {
            Some(number) => (number, 100.0),
            None => (text, 1.0),
        };
        // Not what else a float can be written as.
        if !number.starts_with(|first: char| first.is_ascii_digit() || first == '.') {
            return Err(());
        }
        let share = number.parse::<f64>().map_err(|_| ())? / whole;
        if !(0.0..=1.0).contains(&share) {
            return Err(());
        }
        Ok(Self((share * WHOLE as f64) as u64))
    }
}

impl fmt::Display for Probability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Divided by a power of two, which loses nothing; read again it is the same.
        write!(f, "{}", self.0 as f64 / WHOLE as f64)
    }
}

/// How often what happens to a packet. At most one thing happens to each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Faults {
    loss: Probability,
    duplicate: Probability,
    reorder: Probability,
    corrupt: Probability,
    delay: Duration,
    seed: Option<u64>,
}

/// A list of faults that cannot be understood; says what is wrong and what would be right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseError(String);

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ParseError {}

fn wrong<T>(text: String) -> Result<T, ParseError> {
    Err(ParseError(text))
}

impl FromStr for Faults {
    type Err = ParseError;

    /// `loss=`, `dup=`, `reorder=` and `corrupt=` with a probability (0.01 or 1%), `delay=` with
    /// a time (500us, 2ms), `seed=` with a number; with commas between, each at most once.
    fn from_str(text: &str) -> Result<Self, ParseError> {
        let mut faults = Self {
            loss: Probability::default(),
            duplicate: Probability::default(),
            reorder: Probability::default(),
            corrupt: Probability::default(),
            delay: DELAY,
            seed: None,
        };
        let mut seen: Vec<&str> = Vec::new();
        for item in text.split(',').map(str::trim) {
            let Some((name, value)) = item.split_once('=') else {
                return wrong(format!(
                    "{item:?} is no fault: give a list like loss=1%,reorder=0.005"
                ));
            };
            let (name, value) = (name.trim(), value.trim());
            if seen.contains(&name) {
                return wrong(format!("{name} is given twice"));
            }
            seen.push(name);
            let place = match name {
                "loss" => &mut faults.loss,
                "dup" => &mut faults.duplicate,
                "reorder" => &mut faults.reorder,
                "corrupt" => &mut faults.corrupt,
                "delay" => {
                    faults.delay = parse_delay(value)?;
                    continue;
                }
                "seed" => {
                    faults.seed = Some(parse_seed(value)?);
                    continue;
                }
                _ => {
                    return wrong(format!(
                        "there is no fault {name:?}: give loss, dup, reorder, corrupt, delay \
                         or seed"
                    ));
                }
            };
            let Ok(probability) = value.parse() else {
                return wrong(format!(
                    "{name}={value}: give a probability from 0 to 1, or from 0% to 100%"
                ));
            };
            *place = probability;
        }
        let [.., all] = faults.bounds();
        if all > WHOLE {
            return wrong(
                "loss, corrupt, dup and reorder add up to more than 1: at most one thing happens \
                 to a packet"
                    .to_owned(),
            );
        }
        Ok(faults)
    }
}

fn parse_delay(text: &str) -> Result<Duration, ParseError> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let number = number.parse::<u64>().ok();
    let delay = match (number, unit) {
        (Some(number), "us") => Some(Duration::from_micros(number)),
        (Some(number), "ms") => Some(Duration::from_millis(number)),
        (Some(number), "s") => Some(Duration::from_secs(number)),
        _ => None,
    };
    match delay {
        Some(delay) if delay <= DELAY_MAX => Ok(delay),
        _ => wrong(format!(
            "delay={text}: give a time of at most 1s, like 500us or 2ms"
        )),
    }
}

fn parse_seed(text: &str) -> Result<u64, ParseError> {
    let seed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    seed.map_err(|_| ParseError(format!("seed={text}: give a number below 2^64")))
}

impl fmt::Display for Faults {
    /// What [`Faults::from_str`] reads as the same faults.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "loss={},dup={},reorder={},corrupt={},delay={}us",
            self.loss,
            self.duplicate,
            self.reorder,
            self.corrupt,
            self.delay.as_micros()
        )?;
        match self.seed {
            Some(seed) => write!(f, ",seed={seed}"),
            None => Ok(()),
        }
    }
}

impl Faults {
    /// The seed, if one was given.
    pub fn seed(&self) -> Option<u64> {
        self.seed
    }

    /// The same with a seed; with a random one if there was none.
    pub fn seeded(self) -> Self {
        // 32 bits: short enough to be typed again.
        let seed = self
            .seed
            .unwrap_or_else(|| random().unwrap_or_default()[0] & u64::from(u32::MAX));
        Self {
            seed: Some(seed),
            ..self
        }
    }

    /// How long a packet that is to come late waits for another to overtake it.
    pub fn delay(&self) -> Duration {
        self.delay
    }

    /// Whether anything ever happens.
    pub fn is_nothing(&self) -> bool {
        self.bounds()[3] == 0
    }

    /// Where the shares of lost, damaged, doubled and late packets end, when they lie side by
    /// side in `0..WHOLE`.
    fn bounds(&self) -> [u64; 4] {
        let mut end = 0;
        [self.loss, self.corrupt, self.duplicate, self.reorder].map(|share| {
            end += share.0;
            end
        })
    }

    /// The injector with this number. Another number gives other fates.
    pub fn injector(&self, number: u64) -> Injector {
        let seed = self.seed.unwrap_or_default();
        Injector {
            bounds: self.bounds(),
            state: mix(seed) ^ mix(number.wrapping_mul(GOLDEN).wrapping_add(1)),
        }
    }
}

/// 2⁶⁴ over the golden ratio.
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// The finaliser of splitmix64.
fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

/// Decides the fates of packets that go one after the other.
#[derive(Clone, Debug)]
pub struct Injector {
    bounds: [u64; 4],
    /// splitmix64's.
    state: u64,
}

impl Injector {
    /// The next packet's fate, which is counted ([`counts`]).
    pub fn fate(&mut self) -> Fate {
        self.state = self.state.wrapping_add(GOLDEN);
        let drawn = mix(self.state) >> 11;
        let [lost, damaged, doubled, late] = self.bounds;
        let fate = match drawn {
            at if at < lost => Fate::Drop,
            at if at < damaged => Fate::Corrupt,
            at if at < doubled => Fate::Duplicate,
            at if at < late => Fate::Late,
            _ => Fate::Pass,
        };
        COUNTS[fate as usize].fetch_add(1, Ordering::Relaxed);
        fate
    }
}

/// By [`Fate`].
static COUNTS: [AtomicU64; Fate::ALL.len()] = [const { AtomicU64::new(0) }; Fate::ALL.len()];

/// How many packets of this process have met which fate.
pub fn counts() -> [(Fate, u64); Fate::ALL.len()] {
    Fate::ALL.map(|fate| (fate, COUNTS[fate as usize].load(Ordering::Relaxed)))
}

/// The faults that the environment asks for, if any; with a seed. One answer for the life of the
/// process.
pub fn from_environment() -> Result<Option<&'static Faults>, ParseError> {
    static ASKED: OnceLock<Result<Option<Faults>, ParseError>> = OnceLock::new();
    let read = || match std::env::var(VARIABLE) {
        Ok(text) if text.is_empty() => Ok(None),
        Ok(text) => text.parse::<Faults>().map(|faults| Some(faults.seeded())),
        Err(std::env::VarError::NotPresent) => Ok(None),
        Err(std::env::VarError::NotUnicode(_)) => wrong("it is not text".to_owned()),
    };
    ASKED
        .get_or_init(read)
        .as_ref()
        .map(Option::as_ref)
        .map_err(Clone::clone)
}

/// Says on standard error that faults cannot happen to `what` and why; once for each `what`.
pub fn say_useless(what: &'static str, why: &str) {
    static SAID: Mutex<Vec<&'static str>> = Mutex::new(Vec::new());
    let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    if !said.contains(&what) {
        said.push(what);
        report::say(&format!("nothing happens to {what}: {why}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Faults {
        text.parse().unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn a_list_is_read_and_written_the_same() {
        let faults = parse("loss=1%, dup=0.5 ,reorder=.25,corrupt=0,delay=20us,seed=0x10");
        assert_eq!(faults.delay(), Duration::from_micros(20));
        assert_eq!(faults.seed(), Some(16));
        assert_eq!(parse(&faults.to_string()), faults);
        let every = parse("loss=33.3%,dup=1e-9,reorder=0.1,corrupt=12.5%,delay=1s");
        assert_eq!(parse(&every.to_string()), every);
        assert_eq!(every.seed(), None);
        assert!(parse("seed=1").is_nothing() && !parse("dup=1%").is_nothing());
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, part) in [
            ("", "no fault"),
            ("loss", "\"loss\""),
            ("loss=1%,", "\"\""),
            ("lost=1%", "\"lost\""),
            ("loss=2", "loss=2"),
            ("loss=101%", "loss=101%"),
            ("loss=-1%", "loss=-1%"),
            ("dup=nan", "dup=nan"),
            ("dup=inf", "dup=inf"),
            ("dup=", "dup="),
            ("corrupt=1%%", "corrupt=1%%"),
            ("loss=1%,loss=2%", "twice"),
            ("loss=60%,dup=41%", "more than 1"),
            ("delay=1", "delay=1"),
            ("delay=2s", "delay=2s"),
            ("delay=99999999999999999999us", "delay="),
            ("seed=x", "seed=x"),
            ("seed=-1", "seed=-1"),
        ] {
            let error = text.parse::<Faults>().expect_err(text).to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
        // Not one hair more than everything.
        let all = parse("loss=25%,dup=25%,reorder=25%,corrupt=25%");
        assert!(
            (0..1000)
                .scan(all.injector(0), |at, _| Some(at.fate()))
                .all(|f| f != Fate::Pass)
        );
    }

    fn fates(text: &str, number: u64, count: usize) -> Vec<Fate> {
        let mut injector = parse(text).injector(number);
        (0..count).map(|_| injector.fate()).collect()
    }

    #[test]
    fn a_seed_and_a_number_decide_everything() {
        let list = "loss=20%,dup=20%,reorder=20%,corrupt=20%";
        let with = |seed: u64| format!("{list},seed={seed}");
        let first = fates(&with(1), 0, 64);
        assert_eq!(first, fates(&with(1), 0, 64));
        assert_ne!(first, fates(&with(2), 0, 64));
        assert_ne!(first, fates(&with(1), 1, 64));
        // What these are must not change: people note seeds.
        let shown: String = first[..16]
            .iter()
            .map(|fate| format!("{fate:?} "))
            .collect();
        assert_eq!(
            shown.trim_end(),
            "Pass Duplicate Drop Pass Drop Corrupt Drop Late Corrupt Pass Corrupt Late Duplicate \
             Duplicate Late Duplicate"
        );
    }

    #[test]
    fn each_fate_is_as_frequent_as_asked_for() {
        const COUNT: usize = 100_000;
        let drawn = fates("loss=10%,dup=20%,reorder=5%,corrupt=1%,seed=3", 7, COUNT);
        for (fate, percent) in [
            (Fate::Drop, 10.0),
            (Fate::Duplicate, 20.0),
            (Fate::Late, 5.0),
            (Fate::Corrupt, 1.0),
            (Fate::Pass, 64.0),
        ] {
            let found = drawn.iter().filter(|drawn| **drawn == fate).count();
            let found = found as f64 * 100.0 / COUNT as f64;
            // Seven standard deviations at most, and the seed is fixed.
            assert!((found - percent).abs() < 1.0, "{fate:?}: {found} %");
        }
        assert!(
            fates("loss=0,seed=1", 0, 1000)
                .iter()
                .all(|fate| *fate == Fate::Pass)
        );
        assert!(
            fates("loss=1,seed=1", 0, 1000)
                .iter()
                .all(|fate| *fate == Fate::Drop)
        );
    }

    #[test]
    fn a_seed_is_found_where_none_is_given() {
        assert_eq!(parse("loss=1%,seed=5").seeded().seed(), Some(5));
        assert!(parse("loss=1%").seeded().seed().is_some());
    }
}
