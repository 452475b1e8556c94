//! Which processes have a socket open, and what is mapped into them, as far as `/proc` (proc(5))
//! shows it to this process. Allocates nothing.
#![allow(unsafe_code)]

use core::ffi::CStr;
use core::fmt::Write;

use crate::errno::Errno;
use crate::raw::{check, int, syscall3, syscall4};
use crate::unix::Fd;

const ENTRIES_BYTES: usize = 4096;
/// Of the length and the name in `struct linux_dirent64` (getdents(2)).
const ENTRY_LENGTH: usize = 16;
const ENTRY_NAME: usize = 19;

/// A short path or text, with a zero at its end.
struct Text {
    bytes: [u8; 64],
    len: usize,
}

impl Text {
    fn of(text: core::fmt::Arguments) -> Text {
        let mut own = Text {
            bytes: [0; 64],
            len: 0,
        };
        // What does not fit is cut off, and found nowhere.
        let _ = own.write_fmt(text);
        own
    }

    fn address(&self) -> usize {
        self.bytes.as_ptr() as usize
    }
}

impl Write for Text {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        let end = self.len + text.len();
        let room = self.bytes.get_mut(self.len..end).filter(|_| end < 64);
        room.ok_or(core::fmt::Error)?
            .copy_from_slice(text.as_bytes());
        self.len = end;
        Ok(())
    }
}

fn open(path: &Text, flags: i32) -> Result<Fd, Errno> {
    // SAFETY: the path ends with a zero.
    let opened = unsafe {
        syscall4(
            libc::SYS_openat,
            int(libc::AT_FDCWD),
            path.address(),
            int(flags | libc::O_RDONLY | libc::O_CLOEXEC),
            0,
        )
    };
    check(opened).map(|fd| Fd::own(fd as i32))
}

/// Calls `each` with the names in a folder that are numbers, until it says false.
fn for_each_number(folder: &Text, mut each: impl FnMut(u32) -> bool) -> Result<(), Errno> {
    let folder = open(folder, libc::O_DIRECTORY)?;
    let mut buffer = [0_u8; ENTRIES_BYTES];
    loop {
        // SAFETY: the kernel writes entries of at most that many bytes.
        let got = check(unsafe {
            syscall3(
                libc::SYS_getdents64,
                int(folder.raw()),
                buffer.as_mut_ptr() as usize,
                buffer.len(),
            )
        })?;
        let mut rest = buffer.get(..got).unwrap_or_default();
        if rest.is_empty() {
            return Ok(());
        }
        while let Some(length) = rest.get(ENTRY_LENGTH..ENTRY_LENGTH + 2) {
            let length = usize::from(u16::from_ne_bytes([length[0], length[1]]));
            let entry = rest.get(..length).filter(|entry| !entry.is_empty());
            let Some(name) = entry.and_then(|entry| entry.get(ENTRY_NAME..)) else {
                return Err(Errno::PROTO);
            };
            let name = CStr::from_bytes_until_nul(name).map_or("", |it| it.to_str().unwrap_or(""));
            if let Ok(number) = name.parse()
                && !each(number)
            {
                return Ok(());
            }
            rest = rest.get(length..).unwrap_or_default();
        }
    }
}

/// Calls `each` with the processes that have the socket with this inode open, until it says false.
/// Those that this process may not look into are left out.
///
/// # Errors
/// Those of open(2) and getdents(2) for `/proc`.
pub fn for_each_holder(inode: u32, mut each: impl FnMut(u32) -> bool) -> Result<(), Errno> {
    let wanted = Text::of(format_args!("socket:[{inode}]"));
    for_each_number(&Text::of(format_args!("/proc")), |process| {
        let mut has = false;
        // It may have ended, or be somebody else's.
        let _ = for_each_number(&Text::of(format_args!("/proc/{process}/fd")), |fd| {
            let path = Text::of(format_args!("/proc/{process}/fd/{fd}"));
            let mut link = [0_u8; 64];
            // SAFETY: the path ends with a zero; the kernel writes at most 64 bytes.
            let got = check(unsafe {
                syscall4(
                    libc::SYS_readlinkat,
                    int(libc::AT_FDCWD),
                    path.address(),
                    link.as_mut_ptr() as usize,
                    link.len(),
                )
            });
            has = got.is_ok_and(|len| link.get(..len) == wanted.bytes.get(..wanted.len));
            !has
        });
        !has || each(process)
    })
}

/// A file that is mapped: its device and inode, as `/proc/*/maps` writes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapped {
    device: (u32, u32),
    inode: u64,
}

/// The file that is mapped at an address of this process; `None` if there is none.
pub fn mapped_at(address: usize) -> Option<Mapped> {
    let mut found = None;
    for_each_mapping(&Text::of(format_args!("/proc/self/maps")), |range, file| {
        if range.contains(&address) {
            found = Some(file);
        }
        found.is_none()
    });
    found.filter(|file| file.inode != 0)
}

/// Whether a process has the file mapped; false if this process may not look.
pub fn has_mapped(process: u32, file: Mapped) -> bool {
    let mut found = false;
    for_each_mapping(
        &Text::of(format_args!("/proc/{process}/maps")),
        |_, mapped| {
            found = mapped == file;
            !found
        },
    );
    found
}

/// The parts of a line that are looked at are at its start.
const LINE_BYTES: usize = 128;

fn for_each_mapping(path: &Text, mut each: impl FnMut(core::ops::Range<usize>, Mapped) -> bool) {
    let Ok(file) = open(path, 0) else {
        return;
    };
    let mut buffer = [0_u8; ENTRIES_BYTES];
    let (mut line, mut filled) = ([0_u8; LINE_BYTES], 0);
    loop {
        // SAFETY: the kernel writes at most that many bytes.
        let got = check(unsafe {
            syscall3(
                libc::SYS_read,
                int(file.raw()),
                buffer.as_mut_ptr() as usize,
                buffer.len(),
            )
        });
        let Ok(got @ 1..) = got else {
            return;
        };
        for byte in buffer.iter().take(got) {
            if *byte != b'\n' {
                if let Some(place) = line.get_mut(filled) {
                    *place = *byte;
                    filled += 1;
                }
                continue;
            }
            let parsed = line.get(..filled).and_then(mapping);
            filled = 0;
            if let Some((range, file)) = parsed
                && !each(range, file)
            {
                return;
            }
        }
    }
}

/// `55d0-55e0 r-xp 00001000 fe:01 1234 /path`.
fn mapping(line: &[u8]) -> Option<(core::ops::Range<usize>, Mapped)> {
    let mut words = line.split(|byte| *byte == b' ').filter(|it| !it.is_empty());
    let mut word = || core::str::from_utf8(words.next()?).ok();
    let (from, to) = word()?.split_once('-')?;
    let range = usize::from_str_radix(from, 16).ok()?..usize::from_str_radix(to, 16).ok()?;
    let (_permissions, _offset) = (word()?, word()?);
    let (major, minor) = word()?.split_once(':')?;
    let device = (
        u32::from_str_radix(major, 16).ok()?,
        u32::from_str_radix(minor, 16).ok()?,
    );
    let inode = word()?.parse().ok()?;
    Some((range, Mapped { device, inode }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memfd;

    #[test]
    fn who_has_a_socket_is_found() {
        let _children = crate::testing::with_children();
        let (one, other) = crate::unix::seqpacket_pair().expect("a pair");
        let inode = memfd::stat(one.raw()).expect("an inode").inode as u32;
        let all = || {
            let mut all = Vec::new();
            for_each_holder(inode, |process| {
                all.push(process);
                true
            })
            .expect("/proc");
            all.sort_unstable();
            all
        };
        let have_it = |processes: &[u32]| assert_eq!(all(), processes);
        have_it(&[std::process::id()]);
        let inherited = std::process::Command::new("sleep")
            .arg("100")
            .stdin(duplicate(one.raw()))
            .spawn();
        let mut child = inherited.expect("sleep");
        let mut both = [std::process::id(), child.id()];
        both.sort_unstable();
        have_it(&both);
        child.kill().expect("killed");
        child.wait().expect("collected");
        drop(one);
        have_it(&[]);
        drop(other);
    }

    fn duplicate(fd: i32) -> std::os::fd::OwnedFd {
        // SAFETY: borrowed for the call that duplicates it.
        unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) }
            .try_clone_to_owned()
            .expect("a duplicate")
    }

    #[test]
    fn a_mapped_file_is_found_in_this_process_and_not_in_another_program() {
        let _children = crate::testing::with_children();
        let own = mapped_at(mapped_at as *const () as usize).expect("this program");
        assert!(has_mapped(std::process::id(), own));
        let mut child = std::process::Command::new("sleep")
            .arg("100")
            .spawn()
            .expect("sleep");
        assert!(!has_mapped(child.id(), own));
        child.kill().expect("killed");
        child.wait().expect("collected");
        assert_eq!(mapped_at(0), None);
        let anonymous = Box::new(1_u8);
        assert_eq!(mapped_at(&raw const *anonymous as usize), None);
        assert!(!has_mapped(u32::MAX, own), "no such process");
    }

    #[test]
    fn lines_that_are_none_are_passed_over() {
        assert!(mapping(b"55d0-55e0 r-xp 00001000 fe:01 1234 /a b").is_some());
        for line in [
            "",
            "55d0",
            "55d0-x r-xp 0 fe:01 1",
            "1-2 r-xp 0 fe01 1",
            "1-2 r-xp 0 a:b x",
        ] {
            assert!(mapping(line.as_bytes()).is_none(), "{line}");
        }
    }
}
