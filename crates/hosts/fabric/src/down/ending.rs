//! How the far program's stream ends, and that the far daemon hears that this is known.

/// Where the end of a stream is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ending {
    /// More may come.
    #[default]
    Open,
    /// Nothing comes any more.
    Over,
    /// The far daemon has said so, and waits to hear that this is known.
    Heard,
    /// It has been told.
    Finished,
}

impl Ending {
    /// Whether nothing comes any more.
    pub fn is_over(self) -> bool {
        self != Self::Open
    }

    /// Whether nothing comes any more, and nobody waits to be told that this is known.
    pub fn is_known(self) -> bool {
        matches!(self, Self::Over | Self::Finished)
    }

    /// Nothing comes any more, whoever says so.
    pub fn over(&mut self) {
        if *self == Self::Open {
            *self = Self::Over;
        }
    }

    /// The far daemon says that nothing comes any more.
    pub fn heard(&mut self) {
        *self = Self::Heard;
    }

    /// Whether the far daemon is to be told now, which it is from here on; or nobody is there to tell.
    pub fn finish(&mut self) -> bool {
        let is_owed = *self == Self::Heard;
        if is_owed {
            *self = Self::Finished;
        }
        is_owed
    }

    /// There is a new link. The answer may have been lost with the old one, and after the end of this lane there is
    /// nobody to ask.
    pub fn resume(&mut self) {
        if *self == Self::Finished {
            *self = Self::Heard;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_answered_once_on_each_link() {
        let mut ending = Ending::default();
        assert!(!ending.is_over() && !ending.finish());
        ending.heard();
        assert!(ending.is_over() && !ending.is_known());
        assert!(ending.finish() && ending.is_known() && !ending.finish());
        ending.resume();
        assert!(!ending.is_known() && ending.finish() && !ending.finish());
    }

    #[test]
    fn an_end_that_nobody_said_is_answered_when_somebody_does() {
        let mut ending = Ending::default();
        ending.over();
        ending.resume();
        assert!(ending.is_known() && !ending.finish());
        ending.heard();
        // What is known here does not undo that an answer is due.
        ending.over();
        assert!(!ending.is_known() && ending.finish());
    }
}
