//! Bad paths with names, and whether what they are named for has happened.

use crate::hosts::faults::{Counts, Faults};
use crate::hosts::injector::{Direction, Injector};
use crate::suite::{Verdict, ensure};

/// What an [`Injector`] does to RoCE frames in both directions.
#[derive(Clone, Copy, Debug)]
pub struct Path {
    pub name: &'static str,
    pub faults: Faults,
    /// What must have happened on it, or the test has not tested it.
    hit: fn(&Counts) -> u64,
}

impl Path {
    /// Segments of TCP have those fates too, that TCP's own checksum lets them have.
    #[must_use]
    pub const fn of_tcp(self) -> Path {
        let faults = Faults {
            of_tcp: true,
            ..self.faults
        };
        Path { faults, ..self }
    }

    /// The path is like that from now on.
    pub fn begin(&self, injector: &Injector) {
        injector.forget_counts();
        injector.set_both(self.faults);
    }

    /// The path is a good one again. Fails if the result does, or when nothing of the kind has
    /// happened.
    pub fn end(&self, injector: &Injector, result: Verdict) -> Verdict {
        injector.set_both(Faults::NONE);
        let both = [Direction::LeftToRight, Direction::RightToLeft].map(|way| injector.counts(way));
        result.inspect_err(|_| println!("{both:?}"))?;
        injector.check_running()?;
        let hit: u64 = both.iter().map(self.hit).sum();
        ensure(hit > 0, || format!("the path was a good one: {both:?}"))
    }
}

const GOOD: Faults = Faults {
    seed: 0x51,
    ..Faults::NONE
};

const fn lossy(name: &'static str, loss: f64) -> Path {
    Path {
        name,
        faults: Faults { loss, ..GOOD },
        hit: |counts| counts.lost,
    }
}

pub const LOSS_1_OF_1000: Path = lossy("loss-0.1%", 0.001);
pub const LOSS_1_OF_100: Path = lossy("loss-1%", 0.01);
pub const LOSS_10_OF_100: Path = lossy("loss-10%", 0.1);

pub const DUPLICATION: Path = Path {
    name: "duplication",
    faults: Faults {
        duplication: 0.1,
        ..GOOD
    },
    hit: |counts| counts.duplicated,
};

pub const REORDERING: Path = Path {
    name: "reordering",
    faults: Faults {
        reordering: 0.05,
        ..GOOD
    },
    hit: |counts| counts.held,
};

pub const CORRUPTION: Path = Path {
    name: "corruption",
    faults: Faults {
        corruption: 0.01,
        ..GOOD
    },
    hit: |counts| counts.corrupted,
};

pub const CORRUPTION_THAT_CHECKSUMS_MISS: Path = Path {
    name: "corruption-that-checksums-miss",
    faults: Faults {
        repair_checksum: true,
        ..CORRUPTION.faults
    },
    hit: |counts| counts.corrupted,
};

pub const CONGESTION_MARKS: Path = Path {
    name: "congestion-marks",
    faults: Faults {
        marking: 0.1,
        ..GOOD
    },
    hit: |counts| counts.marked,
};

/// Some of everything.
pub const MIXTURE: Path = Path {
    name: "mixture",
    faults: Faults {
        loss: 0.01,
        duplication: 0.01,
        reordering: 0.01,
        reorder_depth: 8,
        corruption: 0.01,
        repair_checksum: true,
        marking: 0.01,
        of_tcp: false,
        of_one_queue_pair: false,
        loss_of_others: 0.0,
        seed: 0x52,
    },
    hit: |counts| {
        let each = [
            counts.lost,
            counts.duplicated,
            counts.held,
            counts.corrupted,
        ];
        each.into_iter().min().unwrap_or(0)
    },
};
