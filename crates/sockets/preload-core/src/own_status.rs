//! What `/proc/self/status` says of this process (proc_pid_status(5)).
#![allow(unsafe_code)]

use sluice_sys::raw;
use sluice_sys::unix::Fd;

/// The number of a field (`name`, with its colon), if there is one.
pub fn field(name: &'static [u8]) -> Option<u32> {
    // SAFETY: the path is a static string.
    let opened = raw::check(unsafe {
        raw::syscall4(
            libc::SYS_openat,
            libc::AT_FDCWD as usize,
            c"/proc/self/status".as_ptr() as usize,
            (libc::O_RDONLY | libc::O_CLOEXEC) as usize,
            0,
        )
    });
    let file = Fd::own(opened.ok()? as i32);
    let mut search = FieldSearch::new(name);
    let mut block = [0_u8; 512];
    loop {
        // SAFETY: the kernel writes at most as many bytes as the block has.
        let got = raw::check(unsafe {
            raw::syscall3(
                libc::SYS_read,
                raw::int(file.raw()),
                block.as_mut_ptr() as usize,
                block.len(),
            )
        });
        let got = got.ok()?;
        // The list of groups before the field may be long, so blocks may cut it anywhere.
        let finished = block.iter().take(got).any(|byte| search.is_end(*byte));
        if finished || got == 0 {
            return search.value;
        }
    }
}

/// Finds the number of one field in lines of the form `Name:\t7`.
struct FieldSearch {
    name: &'static [u8],
    /// How much of the name the line has had; `None`: it is another line.
    matched: Option<usize>,
    value: Option<u32>,
}

impl FieldSearch {
    fn new(name: &'static [u8]) -> FieldSearch {
        FieldSearch {
            name,
            matched: Some(0),
            value: None,
        }
    }

    /// Takes the next byte; whether it ends the field's line.
    fn is_end(&mut self, byte: u8) -> bool {
        match self.matched {
            Some(all) if all == self.name.len() => match byte {
                b'\n' => return true,
                b'0'..=b'9' => {
                    let sum = self.value.unwrap_or(0).saturating_mul(10);
                    self.value = Some(sum.saturating_add(u32::from(byte - b'0')));
                }
                _ => {}
            },
            _ if byte == b'\n' => self.matched = Some(0),
            Some(some) if self.name[some] == byte => self.matched = Some(some + 1),
            _ => self.matched = None,
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_field_is_found_wherever_blocks_end() {
        let text = b"Groups:\t1 2 3\nSeccomp:\t2\nSeccomp_filters:\t12\nSpeculation:\t7\n";
        let mut search = FieldSearch::new(b"Seccomp_filters:");
        assert!(text.iter().any(|byte| search.is_end(*byte)));
        assert_eq!(search.value, Some(12));
        let mut absent = FieldSearch::new(b"Seccomp_filters:");
        assert!(!b"Seccomp:\t2\nX\n".iter().any(|byte| absent.is_end(*byte)));
        assert_eq!(absent.value, None);
    }

    #[test]
    fn the_size_of_the_descriptor_table_is_a_power_of_two() {
        let size = field(b"FDSize:").expect("a size");
        assert!(size >= 64 && size.is_power_of_two(), "{size}");
    }
}
