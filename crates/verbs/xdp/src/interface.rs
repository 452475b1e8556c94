//! What the kernel says of a network interface, and of our capabilities.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::os::fd::RawFd;
use std::thread;
use std::time::Duration;

use sluice_sys::capability::{self, Capability};
use sluice_sys::errno::Errno;
use sluice_sys::raw::{check, int, syscall3};
use sluice_sys::unix::Fd;

use crate::error::OpenError;

/// `SIOCETHTOOL`, `ETHTOOL_GDRVINFO` and `ETHTOOL_GCHANNELS` of `sockios.h` and `ethtool.h`.
const ETHTOOL: usize = 0x8946;
const GET_DRIVER: u32 = 0x3;
const GET_CHANNELS: u32 = 0x3c;

/// How often it is looked whether a link is back, and the time from one look to the next: ten seconds
/// in all. Copper of 1 Gb/s takes two to four to agree on its speed.
const LINK_LOOKS_MAX: u32 = 500;
const LINK_LOOK: Duration = Duration::from_millis(20);

/// A network interface of this process's network namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    index: u32,
    name: String,
    mtu: usize,
    queues: u32,
    veth: bool,
}

/// `struct ethtool_drvinfo`.
#[repr(C)]
struct Driver {
    command: u32,
    name: [u8; 32],
    rest: [u8; 160],
}

#[repr(C)]
#[derive(Default)]
struct Channels {
    command: u32,
    receive_max: u32,
    send_max: u32,
    other_max: u32,
    combined_max: u32,
    receive: u32,
    send: u32,
    other: u32,
    combined: u32,
}

impl Interface {
    /// By its name.
    pub fn by_name(name: &str) -> Result<Self, OpenError> {
        let none = || OpenError::NoInterface {
            interface: name.to_owned(),
        };
        let socket = control_socket()?;
        let mut request = request(name).ok_or_else(none)?;
        ioctl(&socket, libc::SIOCGIFINDEX as usize, &mut request).map_err(|_| none())?;
        // SAFETY: the kernel filled in the index, an integer; every bit pattern is one.
        let index = unsafe { request.ifr_ifru.ifru_ifindex };
        Self::describe(&socket, index as u32, name)
    }

    /// By its index.
    pub fn by_index(index: u32) -> Result<Self, OpenError> {
        let none = |_| OpenError::NoInterface {
            interface: format!("number {index}"),
        };
        let socket = control_socket()?;
        let mut request = request("").ok_or_else(|| none(Errno::INVAL))?;
        request.ifr_ifru.ifru_ifindex = index as i32;
        ioctl(&socket, libc::SIOCGIFNAME as usize, &mut request).map_err(none)?;
        let name: Vec<u8> = request
            .ifr_name
            .iter()
            .map(|byte| *byte as u8)
            .take_while(|byte| *byte != 0)
            .collect();
        Self::describe(&socket, index, &String::from_utf8_lossy(&name))
    }

    fn describe(socket: &Fd, index: u32, name: &str) -> Result<Self, OpenError> {
        let none = || OpenError::NoInterface {
            interface: name.to_owned(),
        };
        let mut asked = request(name).ok_or_else(none)?;
        ioctl(socket, libc::SIOCGIFMTU as usize, &mut asked)
            .map_err(OpenError::system("ioctl(SIOCGIFMTU)"))?;
        // SAFETY: the kernel filled in the MTU, an integer; every bit pattern is one.
        let mtu = unsafe { asked.ifr_ifru.ifru_mtu };
        let mut channels = Channels {
            command: GET_CHANNELS,
            ..Channels::default()
        };
        let mut asked = request(name).ok_or_else(none)?;
        asked.ifr_ifru.ifru_data = (&raw mut channels).cast();
        // Drivers with one queue often do not answer.
        let queues = match ioctl(socket, ETHTOOL, &mut asked) {
            Ok(()) => channels.receive.saturating_add(channels.combined).max(1),
            Err(_) => 1,
        };
        let mut driver = Driver {
            command: GET_DRIVER,
            name: [0; 32],
            rest: [0; 160],
        };
        let mut asked = request(name).ok_or_else(none)?;
        asked.ifr_ifru.ifru_data = (&raw mut driver).cast();
        let veth = ioctl(socket, ETHTOOL, &mut asked).is_ok() && driver.name.starts_with(b"veth\0");
        Ok(Self {
            index,
            name: name.to_owned(),
            mtu: usize::try_from(mtu).unwrap_or(0),
            queues,
            veth,
        })
    }

    /// Its number.
    pub const fn index(&self) -> u32 {
        self.index
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Longest IP packet, in bytes.
    pub const fn mtu(&self) -> usize {
        self.mtu
    }

    /// How many receive queues are in use.
    pub const fn queues(&self) -> u32 {
        self.queues
    }

    /// Whether it is up and has a carrier, as the kernel says now. Where the kernel does not say, it has.
    pub fn has_link(&self) -> bool {
        let flags = flags_of(&self.name);
        flags.is_none_or(|flags| flags & libc::IFF_LOWER_UP as u32 != 0)
    }

    /// Waits until it has a link, for up to ten seconds. False: it has none still.
    ///
    /// Some drivers (`igb`) start their device anew when a program is attached ([`Interface::open`]), so
    /// that a link that was there is away for as long as both ends take to agree again. What is sent
    /// meanwhile is lost.
    pub fn wait_for_link(&self) -> bool {
        comes_back(|| self.has_link(), || thread::sleep(LINK_LOOK))
    }

    /// One of a pair of virtual devices that are joined in the kernel (veth(4)).
    pub const fn is_veth(&self) -> bool {
        self.veth
    }
}

/// Looks until it is so, at most [`LINK_LOOKS_MAX`] times with a pause between two. Whether it became so.
fn comes_back(mut look: impl FnMut() -> bool, mut pause: impl FnMut()) -> bool {
    for _ in 1..LINK_LOOKS_MAX {
        if look() {
            return true;
        }
        pause();
    }
    look()
}

/// `IFF_…` of an interface. Not by SIOCGIFFLAGS, whose 16 bits end below the carrier's.
fn flags_of(name: &str) -> Option<u32> {
    let mut list: *mut libc::ifaddrs = core::ptr::null_mut();
    // SAFETY: the library writes one pointer to a list that is ours until freeifaddrs.
    if unsafe { libc::getifaddrs(&raw mut list) } != 0 {
        return None;
    }
    let mut found = None;
    let mut next = list;
    // SAFETY: the list ends with a null pointer and every element is a valid ifaddrs.
    while let Some(entry) = unsafe { next.as_ref() } {
        next = entry.ifa_next;
        if entry.ifa_name.is_null() {
            continue;
        }
        // SAFETY: getifaddrs gives names as C strings, which live until freeifaddrs.
        let its_name = unsafe { CStr::from_ptr(entry.ifa_name) };
        if its_name.to_bytes() == name.as_bytes() {
            found = Some(entry.ifa_flags);
            break;
        }
    }
    // SAFETY: the list from above, freed once; nothing refers to it any more.
    unsafe { libc::freeifaddrs(list) };
    found
}

/// Any socket will do to ask about interfaces.
fn control_socket() -> Result<Fd, OpenError> {
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC;
    // SAFETY: socket takes integers only.
    let ret = unsafe { syscall3(libc::SYS_socket, int(libc::AF_UNIX), int(kind), 0) };
    check(ret)
        .map(|fd| Fd::own(fd as RawFd))
        .map_err(OpenError::system("socket(AF_UNIX)"))
}

/// None: no interface has such a name.
fn request(name: &str) -> Option<libc::ifreq> {
    // SAFETY: ifreq is integers, a pointer and arrays of these, for all of which zero is valid.
    let mut request: libc::ifreq = unsafe { core::mem::zeroed() };
    if name.len() >= request.ifr_name.len() || name.contains('\0') {
        return None;
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    Some(request)
}

fn ioctl(socket: &Fd, which: usize, request: &mut libc::ifreq) -> Result<(), Errno> {
    let address = &raw mut *request as usize;
    // SAFETY: the requests of this file read and write one ifreq, and those of ethtool what
    // ifru_data points to, which is as large as the kernel's structure of that command.
    check(unsafe { syscall3(libc::SYS_ioctl, int(socket.raw()), which, address) }).map(drop)
}

/// Those that AF_XDP takes and this process does not have.
pub(crate) fn missing_capabilities() -> Vec<&'static str> {
    capability::missing(&[
        Capability::NetAdmin,
        Capability::NetRaw,
        Capability::Bpf,
        Capability::Perfmon,
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_waited_for_until_it_is_back() {
        for away in [0, 1, 7, LINK_LOOKS_MAX - 1] {
            let (mut looks, mut pauses) = (0, 0);
            let back = comes_back(
                || {
                    looks += 1;
                    looks > away
                },
                || pauses += 1,
            );
            assert!(back, "after {away}");
            assert_eq!((looks, pauses), (away + 1, away));
        }
    }

    #[test]
    fn a_link_that_stays_away_is_given_up() {
        let (mut looks, mut pauses) = (0, 0);
        let back = comes_back(
            || {
                looks += 1;
                false
            },
            || pauses += 1,
        );
        assert!(!back);
        assert_eq!((looks, pauses), (LINK_LOOKS_MAX, LINK_LOOKS_MAX - 1));
    }

    #[test]
    fn the_loopback_interface_has_flags_and_one_that_is_not_there_has_none() {
        let flags = flags_of("lo").expect("every namespace has one");
        assert!(flags & libc::IFF_LOOPBACK as u32 != 0);
        assert_eq!(flags_of("sluice-none0"), None);
    }
}
