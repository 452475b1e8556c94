//! Which device.
#![allow(unsafe_code)]

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::error::Error;

/// What the name of a window's device begins with.
const WINDOW: &str = "window:";

/// Tells our library which devices to show. It looks when the process asks for devices the first
/// time.
pub const DEVICES_VARIABLE: &str = "SLUICE_VERBS_DEVICES";

/// A device, as a user names it: `shm`, `roce`, `roce-udp`, `window:PATH` or `hw:NAME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceChoice {
    /// Our library, over shared memory: peers are processes of this host.
    Shm,
    /// Our library, by RoCEv2 over AF_XDP.
    Roce,
    /// Our library, by RoCEv2 over UDP sockets.
    RoceUdp,
    /// Our library, by memory that hosts share: the window in this file.
    Window(PathBuf),
    /// The system's library, and the device of this name (`ibv_devices` lists them).
    Hardware(String),
}

impl DeviceChoice {
    /// What [`DEVICES_VARIABLE`] must be for the device, before the library is loaded; None for
    /// those of the system's library.
    ///
    /// Who starts the process can set it, or the process itself:
    /// [`set_environment`](Self::set_environment).
    pub fn environment(&self) -> Option<OsString> {
        let kind = match self {
            DeviceChoice::Shm => "shm",
            DeviceChoice::Roce => "roce",
            DeviceChoice::RoceUdp => "roce-udp",
            DeviceChoice::Window(path) => {
                let mut kind = OsString::from(WINDOW);
                kind.push(path);
                return Some(kind);
            }
            DeviceChoice::Hardware(_) => return None,
        };
        Some(kind.into())
    }

    /// Sets [`DEVICES_VARIABLE`] to what [`environment`](Self::environment) says.
    ///
    /// # Safety
    /// As for [`std::env::set_var`]: no other thread reads or writes the environment, which is so
    /// for certain as long as there is no other thread.
    pub unsafe fn set_environment(&self) {
        if let Some(value) = self.environment() {
            // SAFETY: the caller's contract.
            unsafe { std::env::set_var(DEVICES_VARIABLE, value) };
        }
    }

    pub(crate) fn check_environment(&self) -> Result<(), Error> {
        let Some(wanted) = self.environment() else {
            return Ok(());
        };
        match std::env::var_os(DEVICES_VARIABLE) {
            Some(value) if value == wanted => Ok(()),
            // What the library shows where nothing is said.
            None if *self == DeviceChoice::Shm => Ok(()),
            _ => Err(Error::Environment {
                variable: DEVICES_VARIABLE,
                wanted,
            }),
        }
    }

    /// Whether it is the device of this name. Ours shows one only.
    pub(crate) fn is(&self, name: &str) -> bool {
        match self {
            DeviceChoice::Hardware(wanted) => wanted == name,
            _ => true,
        }
    }
}

impl FromStr for DeviceChoice {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Ok(match text {
            "shm" => DeviceChoice::Shm,
            "roce" => DeviceChoice::Roce,
            "roce-udp" => DeviceChoice::RoceUdp,
            _ => match (text.strip_prefix("hw:"), text.strip_prefix(WINDOW)) {
                (Some(name), _) if !name.is_empty() => DeviceChoice::Hardware(name.to_owned()),
                (_, Some(path)) if !path.is_empty() => DeviceChoice::Window(path.into()),
                _ => return Err(Error::Choice(text.to_owned())),
            },
        })
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceChoice::Hardware(name) => write!(to, "hw:{name}"),
            _ => self.environment().unwrap_or_default().display().fmt(to),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_devices_are_read_and_written() {
        for name in ["shm", "roce", "roce-udp", "window:/a/b", "hw:mlx5_0"] {
            let choice: DeviceChoice = name.parse().unwrap();
            assert_eq!(choice.to_string(), name);
            assert_eq!(choice.environment().is_none(), name.starts_with("hw"));
        }
        for wrong in ["", "SHM", "hw", "hw:", "window:", "roce-xdp"] {
            assert!(wrong.parse::<DeviceChoice>().is_err(), "{wrong}");
        }
    }
}
