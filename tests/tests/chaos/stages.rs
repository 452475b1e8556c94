//! Where the programs of a round run.

use std::path::Path;
use std::process::Command;

use sluice_tests::lab::{Lab, Mode};
use sluice_tests::random::Random;
use sluice_tests::stats::Totals;
use sluice_tests::suite::Verdict;

/// Where the server listens and where clients find it, as the programs' arguments.
pub struct Meeting {
    pub listen: String,
    pub connect: String,
    /// 0: whichever the server gets.
    pub port: u16,
}

pub trait Stage {
    /// For the state of a round and its outputs.
    fn dir(&self) -> &Path;

    fn meeting(&self) -> Meeting;

    fn server(&self, program: &Path) -> Command;

    fn client(&self, program: &Path) -> Command;

    /// Whether clients can connect to the port at which the server listens; 0 if it does not yet.
    fn is_open(&self, port: u16) -> bool {
        port != 0
    }

    /// Kills a daemon and starts it again.
    fn hurt_daemon(&mut self, random: &mut Random) -> Verdict;

    /// Whether connections may break when a daemon is killed.
    fn cuts_with_daemon(&self) -> bool;

    /// Before the programs of a round start.
    fn prepare(&self) -> Verdict {
        Ok(())
    }

    /// Whether programs count what they do.
    fn has_totals(&self) -> bool {
        true
    }

    /// What programs that have ended did by lanes and by TCP.
    fn totals(&self) -> Verdict<Totals>;

    /// What else there is to see after a failure.
    fn describe(&self) -> String;
}

/// All programs run plainly (`SLUICE_TEST_STANDIN=1`).
pub fn is_standin() -> bool {
    std::env::var_os("SLUICE_TEST_STANDIN").is_some_and(|value| value == "1")
}

/// This machine, with one daemon.
pub struct OneHost {
    lab: Lab,
    mode: Mode,
}

impl OneHost {
    /// Connections get lanes at their first bytes if they are `eager`.
    pub fn new(mode: Mode, is_eager: bool) -> Verdict<OneHost> {
        let mut lab = Lab::new()?;
        if is_eager {
            lab.announce_at_once();
        }
        Ok(OneHost { lab, mode })
    }
}

impl Stage for OneHost {
    fn dir(&self) -> &Path {
        self.lab.path()
    }

    fn meeting(&self) -> Meeting {
        Meeting {
            listen: "-".to_owned(),
            connect: "-".to_owned(),
            port: 0,
        }
    }

    fn server(&self, program: &Path) -> Command {
        self.lab.command(self.mode, program)
    }

    fn client(&self, program: &Path) -> Command {
        self.lab.command(self.mode, program)
    }

    fn hurt_daemon(&mut self, _: &mut Random) -> Verdict {
        self.lab.replace_daemon()
    }

    fn cuts_with_daemon(&self) -> bool {
        false
    }

    fn totals(&self) -> Verdict<Totals> {
        self.lab.totals()
    }

    fn describe(&self) -> String {
        let log = self.lab.daemon().map(|it| it.describe());
        let status = self.lab.status(&["--wide"]);
        format!("{}\n{status}", log.unwrap_or_default())
    }
}
