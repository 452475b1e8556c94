//! Tells a service manager how things are (sd_notify(3)), where one asks by `NOTIFY_SOCKET`.

use std::ffi::OsString;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use rustix::time::{ClockId, clock_gettime};

/// Whoever started sluiced and wants to hear of it.
#[derive(Clone, Debug, Default)]
pub struct Manager(Option<SocketAddr>);

impl Manager {
    /// `socket`: what `NOTIFY_SOCKET` says.
    pub fn new(socket: Option<OsString>) -> Self {
        let Some(socket) = socket else {
            return Self(None);
        };
        let address = match socket.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
            path @ [b'/', ..] => SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(path)),
            _ => return Self(None),
        };
        Self(address.ok())
    }

    /// Programs can connect.
    pub fn ready(&self, what: &str) {
        self.say(&format!("READY=1\nSTATUS={what}"));
    }

    /// The configuration is being read again; [`Manager::ready`] follows.
    pub fn reloading(&self) {
        let now = clock_gettime(ClockId::Monotonic);
        let now_us = now.tv_sec * 1_000_000 + now.tv_nsec / 1000;
        self.say(&format!("RELOADING=1\nMONOTONIC_USEC={now_us}"));
    }

    /// sluiced ends.
    pub fn stopping(&self) {
        self.say("STOPPING=1");
    }

    /// A manager that does not listen misses it.
    fn say(&self, text: &str) {
        let Some(address) = &self.0 else {
            return;
        };
        let Ok(socket) = UnixDatagram::unbound() else {
            return;
        };
        let _ = socket.set_nonblocking(true);
        let _ = socket.send_to_addr(text.as_bytes(), address);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hear(socket: &UnixDatagram) -> String {
        let mut buffer = [0; 256];
        let bytes = socket.recv(&mut buffer).expect("it was said");
        String::from_utf8(buffer[..bytes].to_vec()).expect("text")
    }

    #[test]
    fn a_manager_with_a_path_or_an_abstract_name_hears() {
        let path = std::env::temp_dir().join(format!("sluice-notify-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let by_path = UnixDatagram::bind(&path).expect("a socket");
        Manager::new(Some(path.clone().into())).ready("serves");
        assert_eq!(hear(&by_path), "READY=1\nSTATUS=serves");
        std::fs::remove_file(&path).expect("there");

        let name = format!("sluice-notify-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).expect("a name");
        let by_name = UnixDatagram::bind_addr(&address).expect("a socket");
        let manager = Manager::new(Some(format!("@{name}").into()));
        manager.reloading();
        assert!(hear(&by_name).starts_with("RELOADING=1\nMONOTONIC_USEC="));
        manager.stopping();
        assert_eq!(hear(&by_name), "STOPPING=1");
        // Nobody asks, or asks for nonsense.
        Manager::default().stopping();
        Manager::new(Some("nonsense".into())).stopping();
    }
}
