//! Two hosts with a daemon each, that are eager: connections get lanes at once.

use sluice_tests::fleet::{Fleet, KEY};
use sluice_tests::hosts::{Pair, SIDES, Settings, Side};
use sluice_tests::suite::Verdict;

/// What [`Way::device`] is for a window, which has a path of its own in each stage: one whose caches agree, and
/// one whose lines are written back and invalidated.
pub const WINDOW: &str = "window";
pub const FLUSHED: &str = "window-flushed";

pub type Two = Fleet<Pair>;

/// What differs from row to row.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    pub device: &'static str,
    pub family: u8,
    /// Whether a fault injector lies between the hosts.
    pub faults: bool,
}

impl Way {
    /// Both daemons run, and have found each other.
    pub fn set_up(self) -> Verdict<Two> {
        let mut two = self.hosts()?;
        let device = self.device_of(&two)?;
        two.start_both(&device)?;
        Ok(two)
    }

    /// As configurations name it. A window is made for that.
    pub fn device_of(self, two: &Two) -> Verdict<String> {
        if ![WINDOW, FLUSHED].contains(&self.device) {
            return Ok(self.device.to_owned());
        }
        let path = two.dir().join("shared-window");
        let file = path.display().to_string();
        // More hosts than two: a daemon that was killed holds its slot for three seconds.
        let words = ["window", "create", &file, "--size", "256M", "--hosts", "6"];
        let mut create = two.sluice(Side::Left, &words);
        if self.device == FLUSHED {
            create.args(["--kind", "flush"]);
        }
        two.run_program(create, "window-create")?;
        Ok(format!("window:{file}"))
    }

    /// Daemons that do not have the same key.
    pub fn with_different_keys(self) -> Verdict<Two> {
        let mut two = self.hosts()?;
        for (side, key) in SIDES.into_iter().zip([KEY, !KEY]) {
            let text = two.head(side, key, self.device)? + &two.peer(side.other());
            two.write_config(side, &text)?;
            two.start(side)?;
        }
        Ok(two)
    }

    /// Without daemons.
    pub fn hosts(self) -> Verdict<Two> {
        let settings = Settings {
            faults: self.faults,
            ..Settings::default()
        };
        Fleet::new(Pair::new(settings)?, self.family, &["--eager"])
    }
}
