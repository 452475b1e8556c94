//! Faults by choice, each a count of events between two of them; 0 is never.

/// What goes wrong, and how often.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Every Nth received packet is said to have an error in its completion.
    pub bad_completion: u32,
    /// Every Nth interrupt is not sent.
    pub lost_interrupt: u32,
    /// Completions of what the host sent are written this many rounds late.
    pub late_completion: u32,
    /// Every Nth received packet is dropped before the queue.
    pub lost_packet: u32,
}

/// Counts to the next fault.
#[derive(Clone, Copy, Debug, Default)]
pub struct Every(u32);

impl Every {
    /// Whether this event is the one.
    pub fn strikes(&mut self, interval: u32) -> bool {
        if interval == 0 {
            return false;
        }
        self.0 += 1;
        if self.0 < interval {
            return false;
        }
        self.0 = 0;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_third_strikes() {
        let mut every = Every::default();
        let struck: Vec<bool> = (0..6).map(|_| every.strikes(3)).collect();
        assert_eq!(struck, [false, false, true, false, false, true]);
        assert!(!every.strikes(0));
    }
}
