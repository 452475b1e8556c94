//! A tap device of this machine as a port's cable.
#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;

use crate::qdma_packet_len_max;

pub struct Tap {
    file: File,
    buffer: Vec<u8>,
}

impl Tap {
    /// Takes the tap device of that name, making it if it is not there.
    pub fn open(name: &str) -> io::Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
            .open("/dev/net/tun")?;
        // SAFETY: all zeros is an ifreq.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        if name.is_empty() || name.len() >= request.ifr_name.len() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "no name for a device",
            ));
        }
        for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
            *to = from as libc::c_char;
        }
        request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI) as libc::c_short;
        // SAFETY: the request is an ifreq that outlives the call, which reads its name and flags.
        let result = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &mut request) };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        let buffer = vec![0; qdma_packet_len_max()];
        Ok(Self { file, buffer })
    }

    /// Sends a packet; a tap that is full or down loses it, as a cable does.
    pub fn send(&mut self, packet: &[u8]) {
        let _ = self.file.write(packet);
    }

    /// The next packet that waits.
    pub fn receive(&mut self) -> Option<Vec<u8>> {
        let len = self.file.read(&mut self.buffer).ok()?;
        Some(self.buffer.get(..len)?.to_vec())
    }
}
