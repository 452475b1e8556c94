//! The monotonic clock, as the kernel has it: libraries that show a program another time (libfaketime) replace the
//! C library's `clock_gettime`, and their clock may stand still.
#![allow(unsafe_code)]

use core::ffi::CStr;
use core::mem::transmute;
use core::sync::atomic::{AtomicUsize, Ordering};

use crate::raw::{int, syscall2};

/// `clock_gettime` of the vDSO.
type ClockGettime = unsafe extern "C" fn(libc::clockid_t, *mut libc::timespec) -> libc::c_int;

#[cfg(target_arch = "x86_64")]
const SYMBOL: &CStr = c"__vdso_clock_gettime";
#[cfg(not(target_arch = "x86_64"))]
const SYMBOL: &CStr = c"__kernel_clock_gettime";

/// Not looked for yet.
const UNKNOWN: usize = 0;
/// There is none.
const NONE: usize = 1;
static FUNCTION: AtomicUsize = AtomicUsize::new(UNKNOWN);

/// Nanoseconds on `CLOCK_MONOTONIC`, by the vDSO (vdso(7)), or by the system call where there is none.
#[inline]
pub fn now_ns() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    match FUNCTION.load(Ordering::Relaxed) {
        UNKNOWN | NONE => ask_slowly(&mut time),
        address => {
            // SAFETY: the vDSO's function, which stays mapped, writes one timespec; this clock always exists.
            unsafe {
                transmute::<usize, ClockGettime>(address)(libc::CLOCK_MONOTONIC, &raw mut time)
            };
        }
    }
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cold]
fn ask_slowly(time: &mut libc::timespec) {
    if FUNCTION.load(Ordering::Relaxed) == UNKNOWN {
        FUNCTION.store(find().unwrap_or(NONE), Ordering::Relaxed);
    }
    // SAFETY: the kernel writes one timespec.
    unsafe {
        syscall2(
            libc::SYS_clock_gettime,
            int(libc::CLOCK_MONOTONIC),
            &raw mut *time as usize,
        )
    };
}

/// The address of the function in this process.
fn find() -> Option<usize> {
    // SAFETY: the call takes a number.
    let base = unsafe { libc::getauxval(libc::AT_SYSINFO_EHDR) } as usize;
    if base == 0 {
        return None;
    }
    // SAFETY: the kernel has mapped a whole ELF image there, for the life of the process.
    unsafe { symbol(base, SYMBOL) }
}

/// The address of a symbol of the ELF image at `base`, whose dynamic section has not been relocated in place.
///
/// # Safety
/// A shared object is mapped there as its program headers say.
unsafe fn symbol(base: usize, name: &CStr) -> Option<usize> {
    // SAFETY: the caller's promise, for all that the dynamic section points to.
    unsafe {
        let (bias, table) = dynamic(base)?;
        (0..table.count()?).find_map(|at| {
            let symbol = &*(table.symbols as *const libc::Elf64_Sym).add(at);
            let called = CStr::from_ptr((table.strings + symbol.st_name as usize) as *const _);
            let is_it = symbol.st_shndx != 0 && called == name;
            is_it.then(|| bias.wrapping_add(symbol.st_value as usize))
        })
    }
}

/// What is to be added to the image's addresses, and its dynamic section.
///
/// # Safety
/// As [`symbol`].
unsafe fn dynamic(base: usize) -> Option<(usize, Dynamic)> {
    // SAFETY: the caller's promise, for all that the headers point to.
    unsafe {
        let header = &*(base as *const libc::Elf64_Ehdr);
        let headers = (base + header.e_phoff as usize) as *const libc::Elf64_Phdr;
        let headers = core::slice::from_raw_parts(headers, usize::from(header.e_phnum));
        let loaded = headers.iter().find(|one| one.p_type == libc::PT_LOAD)?;
        let bias = (base + loaded.p_offset as usize).wrapping_sub(loaded.p_vaddr as usize);
        let section = headers.iter().find(|one| one.p_type == libc::PT_DYNAMIC)?;
        let address = bias.wrapping_add(section.p_vaddr as usize);
        Some((bias, Dynamic::read(bias, address)))
    }
}

/// What the dynamic section names (elf(5)); 0 for what it does not.
#[derive(Clone, Copy, Default)]
struct Dynamic {
    symbols: usize,
    strings: usize,
    hash: usize,
    gnu_hash: usize,
}

impl Dynamic {
    const STRINGS: u64 = 5;
    const SYMBOLS: u64 = 6;
    const HASH: u64 = 4;
    const GNU_HASH: u64 = 0x6fff_fef5;

    /// # Safety
    /// A dynamic section is at `address`, of an image that is mapped with this bias.
    unsafe fn read(bias: usize, address: usize) -> Self {
        let mut out = Self::default();
        let mut at = address as *const [u64; 2];
        // SAFETY: the section ends with an entry of zeroes.
        while let [tag @ 1..=u64::MAX, value] = unsafe { *at } {
            let place = match tag {
                Self::STRINGS => Some(&mut out.strings),
                Self::SYMBOLS => Some(&mut out.symbols),
                Self::HASH => Some(&mut out.hash),
                Self::GNU_HASH => Some(&mut out.gnu_hash),
                _ => None,
            };
            if let Some(place) = place {
                *place = bias.wrapping_add(value as usize);
            }
            // SAFETY: this was not the last one.
            at = unsafe { at.add(1) };
        }
        out
    }

    /// How many symbols there are.
    ///
    /// # Safety
    /// The tables are mapped.
    unsafe fn count(&self) -> Option<usize> {
        if self.symbols == 0 || self.strings == 0 {
            return None;
        }
        // SAFETY: both tables are of 32-bit words, as the ABI has them; chains end with an odd word.
        unsafe {
            if self.hash != 0 {
                return Some(*(self.hash as *const u32).add(1) as usize);
            }
            if self.gnu_hash == 0 {
                return None;
            }
            let words = self.gnu_hash as *const u32;
            let (buckets, first, bloom) = (*words, *words.add(1), *words.add(2));
            // Words of 64 bits come between the four of the header and the buckets.
            let bucket = words.add(4 + 2 * bloom as usize);
            let chain = bucket.add(buckets as usize);
            let last = (0..buckets as usize).map(|at| *bucket.add(at)).max()?;
            let mut last = last.max(first);
            while *chain.add((last - first) as usize) & 1 == 0 {
                last += 1;
            }
            Some(last as usize + 1)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_goes_on_between_two_looks_at_the_c_librarys_clock() {
        let theirs = || {
            let mut time = libc::timespec {
                tv_sec: 0,
                tv_nsec: 0,
            };
            // SAFETY: the call writes one timespec.
            unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
            time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
        };
        for _ in 0..1000 {
            let (before, now, after) = (theirs(), now_ns(), theirs());
            assert!(before <= now && now <= after, "{before} {now} {after}");
        }
    }

    /// Where the kernel gives a vDSO, each table of hashes leads to the function.
    #[test]
    fn the_function_of_the_vdso_is_found() {
        // SAFETY: the call takes a number.
        if unsafe { libc::getauxval(libc::AT_SYSINFO_EHDR) } == 0 {
            println!("SKIP the_function_of_the_vdso_is_found: the kernel gives no vDSO");
            return;
        }
        let found = find().expect("the function");
        now_ns();
        assert_eq!(FUNCTION.load(Ordering::Relaxed), found);
    }

    /// A kernel's vDSO has one of the two tables, or both.
    #[test]
    fn both_tables_of_hashes_count_the_same_symbols() {
        // SAFETY: the call takes a number.
        let base = unsafe { libc::getauxval(libc::AT_SYSINFO_EHDR) } as usize;
        if base == 0 {
            println!("SKIP both_tables_of_hashes_count_the_same_symbols: the kernel gives no vDSO");
            return;
        }
        // SAFETY: the kernel has mapped a whole ELF image there.
        let table = unsafe { dynamic(base) }.expect("a dynamic section").1;
        let by = |hash, gnu_hash| {
            let one = Dynamic {
                hash,
                gnu_hash,
                ..table
            };
            // SAFETY: tables of that image, or none.
            unsafe { one.count() }
        };
        let counts = [by(table.hash, 0), by(0, table.gnu_hash)];
        let known: Vec<usize> = counts.into_iter().flatten().collect();
        assert!(
            known.iter().all(|count| *count > 1 && *count == known[0]),
            "{counts:?}"
        );
        assert!(!known.is_empty() && by(0, 0).is_none());
    }
}
