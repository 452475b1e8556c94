//! One guest for all tests of a test binary: booting takes longer than most tests.

use std::cell::Cell;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::ops::Deref;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tempfile::TempDir;

use crate::guest::{Guest, Settings};
use crate::hosts::Host;
use crate::suite::{Problem, Verdict, fail};

/// A host and the guest that a cable joins to it.
pub struct Stranger {
    // Dropped in this order: the guest before the host that its cable ends in.
    pub guest: Guest,
    pub host: Host,
    dir: TempDir,
    settings: Settings,
    /// Of the cable, in bytes.
    mtu: Cell<u32>,
}

impl Stranger {
    /// Boots a guest beside a new host.
    pub fn new(settings: Settings) -> Verdict<Stranger> {
        let dir = tempfile::Builder::new().prefix("sluice-guest-").tempdir()?;
        let addresses = (
            Ipv4Addr::new(10, 45, 0, 1),
            Ipv6Addr::new(0xfd45, 0, 0, 0, 0, 0, 0, 1),
        );
        let mut host = Host::new(dir.path(), "host", addresses)?;
        let guest = Guest::boot(&mut host, settings)?;
        Ok(Stranger {
            guest,
            host,
            dir,
            settings,
            mtu: Cell::new(settings.mtu),
        })
    }

    /// A directory that is removed with the guest.
    pub fn path(&self) -> &std::path::Path {
        self.dir.path()
    }

    /// Changes the MTU of the cable unless it is so.
    pub fn set_mtu(&self, mtu: u32) -> Verdict {
        if self.mtu.replace(mtu) != mtu {
            self.guest.set_mtu(&self.host, mtu)?;
        }
        Ok(())
    }
}

enum State {
    Unknown,
    Up(Box<Stranger>),
    Failed(String),
    Skipped(String),
}

static SHARED: Mutex<State> = Mutex::new(State::Unknown);

/// The shared stranger, for one test at a time.
pub struct Borrowed(MutexGuard<'static, State>);

/// QEMU's processors were seen to stumble over code that the guest's kernel changes as it boots, on
/// a machine that had little time for them: one more attempt then.
fn boot(settings: Settings) -> Verdict<Stranger> {
    match Stranger::new(settings) {
        Err(Problem::Failed(text)) => {
            println!("{text}");
            Stranger::new(settings)
        }
        booted => booted,
    }
}

/// Boots the shared guest if no test has done so yet, and waits while another test has it.
///
/// A guest that did not boot at the second attempt is not tried again. The test binary calls
/// [`dismiss`] at its end.
pub fn borrow() -> Verdict<Borrowed> {
    borrow_with(Settings::default())
}

/// The same behind a fault injector. A guest without one is switched off for it: the tests that
/// want it come best one after the other.
pub fn borrow_behind_faults() -> Verdict<Borrowed> {
    borrow_with(Settings {
        faults: true,
        ..Settings::default()
    })
}

fn borrow_with(settings: Settings) -> Verdict<Borrowed> {
    let mut state = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    if let State::Up(stranger) = &mut *state
        && let Some(status) = stranger.guest.ended()?
    {
        let said = stranger.guest.console();
        *state = State::Failed(format!(
            "the guest ended ({status}) in an earlier test\n{said}"
        ));
    }
    if matches!(&*state, State::Up(stranger) if stranger.settings != settings) {
        *state = State::Unknown;
    }
    if matches!(*state, State::Unknown) {
        *state = match boot(settings) {
            Ok(stranger) => State::Up(Box::new(stranger)),
            Err(Problem::Failed(text)) => State::Failed(text),
            Err(Problem::Skipped(reason)) => State::Skipped(reason),
        };
    }
    match &*state {
        State::Failed(text) => fail(text.clone()),
        State::Skipped(reason) => Err(Problem::Skipped(reason.clone())),
        State::Up(_) | State::Unknown => Ok(Borrowed(state)),
    }
}

/// Ends the shared guest, if there is one. Statics are not dropped at the end of a process: without
/// this the kernel ends the guest, but its directory stays.
pub fn dismiss() {
    *SHARED.lock().unwrap_or_else(PoisonError::into_inner) = State::Unknown;
}

impl Deref for Borrowed {
    type Target = Stranger;

    fn deref(&self) -> &Stranger {
        match &*self.0 {
            State::Up(stranger) => stranger,
            // `borrow` hands out no other, and who has the lock alone changes it.
            _ => unreachable!("only a running guest is lent"),
        }
    }
}
