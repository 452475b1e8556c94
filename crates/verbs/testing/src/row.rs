//! A row of the conformance suite.

use sluice_verbs::transport::TransportCaps;
use sluice_verbs::{QpType, WrOpcode};

use crate::side::{Side, Thread};

/// What a row needs of a device beyond SEND, WRITE and READ on reliable connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    Uc,
    Ud,
    Xrc,
    Atomics,
    /// Immediate data on reliable connections.
    Immediate,
    /// SEND_WITH_INV.
    Invalidate,
    /// Messages wait for receives.
    RnrRetry,
}

impl Need {
    pub fn is_met(self, caps: &TransportCaps) -> bool {
        let rc = caps.opcodes_of(QpType::Rc);
        match self {
            Need::Uc => caps.uc,
            Need::Ud => caps.ud,
            Need::Xrc => caps.xrc,
            Need::Atomics => {
                rc.contains(WrOpcode::AtomicCmpAndSwp) && rc.contains(WrOpcode::AtomicFetchAndAdd)
            }
            Need::Immediate => {
                rc.contains(WrOpcode::SendWithImm) && rc.contains(WrOpcode::RdmaWriteWithImm)
            }
            Need::Invalidate => rc.contains(WrOpcode::SendWithInv),
            Need::RnrRetry => caps.rnr_retry,
        }
    }
}

/// Two programs that talk to each other, and what they need.
#[derive(Clone, Copy)]
pub struct Row {
    pub needs: &'static [Need],
    pub first: fn(&mut Side),
    pub second: fn(&mut Side),
}

impl Row {
    pub const fn new(needs: &'static [Need], first: fn(&mut Side), second: fn(&mut Side)) -> Row {
        Row {
            needs,
            first,
            second,
        }
    }

    /// Whether a device can do what the row needs.
    pub fn is_for(&self, caps: &TransportCaps) -> bool {
        self.needs.iter().all(|need| need.is_met(caps))
    }

    /// Runs one of the programs, if the device can do what the row needs.
    pub fn run(&self, program: fn(&mut Side), side: &mut Side) {
        let caps = side.caps();
        if self.is_for(&caps) {
            program(side);
        } else {
            let missing = self.needs.iter().find(|need| !need.is_met(&caps));
            println!("left out: the device does not claim {missing:?}");
        }
    }

    /// Runs the two programs in threads of this process. The sides are made there.
    pub fn in_threads(
        &self,
        first: impl FnOnce(Thread) -> Side + Send,
        second: impl FnOnce(Thread) -> Side + Send,
    ) {
        let [left, right] = Thread::two();
        std::thread::scope(|scope| {
            let first = scope.spawn(move || self.run(self.first, &mut first(left)));
            let second = scope.spawn(move || self.run(self.second, &mut second(right)));
            let failed = [first.join(), second.join()].map(|ended| ended.is_err());
            assert_eq!(failed, [false; 2], "of the first and second program");
        });
    }
}
