//! A queue pair 1 that gets what it sends. The C calls have one agent per process, so their tests
//! run again in a process where it has this one.

use std::sync::{Arc, Mutex, OnceLock};

use sluice_verbs::transport::{Gsi, MAD_BYTES, MadPath, MadReceiver};

use super::port::Config;

/// Set in that process.
pub const VARIABLE: &str = "SLUICE_TEST_CM_OVER_WIRE";

struct Loopback(Mutex<Option<Arc<dyn MadReceiver>>>);

impl Gsi for Loopback {
    fn send(&self, path: &MadPath, mad: &[u8; MAD_BYTES]) -> sluice_verbs::Result<()> {
        let receiver = self.0.lock().unwrap().clone();
        if let Some(receiver) = receiver {
            receiver.received(path, mad, false);
        }
        Ok(())
    }

    fn set_receiver(&self, receiver: Arc<dyn MadReceiver>) {
        *self.0.lock().unwrap() = Some(receiver);
    }

    fn tag(&self) -> sluice_verbs::Result<u16> {
        Ok(0x5a5a)
    }

    fn pass_on(&self, _tag: Option<u16>, _path: &MadPath, _mad: &[u8; MAD_BYTES]) {}
}

pub fn active() -> bool {
    std::env::var_os(VARIABLE).is_some()
}

/// Instead of a device's.
pub fn config(mtu: u8) -> Option<Config> {
    static PORT: OnceLock<Loopback> = OnceLock::new();
    active().then(|| Config {
        gsi: PORT.get_or_init(|| Loopback(Mutex::new(None))),
        ca_guid: 1,
        mtu,
        host_device: false,
    })
}
