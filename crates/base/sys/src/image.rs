//! An ELF image that is mapped in this process (elf(5), and *System V ABI*, chapter 5): which functions it offers,
//! and which it has asked the dynamic linker for.
#![allow(unsafe_code)]

use core::ffi::CStr;

/// What the dynamic section of an image names; 0 for what it does not.
#[derive(Clone, Copy, Default)]
struct Dynamic {
    symbols: usize,
    strings: usize,
    hash: usize,
    gnu_hash: usize,
    /// Entries with an addend: where they are, and their bytes.
    relocations: [usize; 2],
    /// The same of those that calls go by.
    calls: [usize; 2],
    /// The kind of entry of `calls`, by its tag.
    calls_kind: usize,
}

/// One relocation, `Elf64_Rela`.
#[repr(C)]
struct Relocation {
    offset: u64,
    info: u64,
    addend: i64,
}

/// Relocations whose place gets the address of a symbol and nothing else: `GLOB_DAT`, `JUMP_SLOT` and the plain
/// address, of the architecture's ABI supplement.
#[cfg(target_arch = "x86_64")]
const ADDRESSES: [u32; 3] = [6, 7, 1];
#[cfg(target_arch = "aarch64")]
const ADDRESSES: [u32; 3] = [1025, 1026, 257];
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const ADDRESSES: [u32; 0] = [];

/// An image, mapped as its program headers say for as long as this lives.
#[derive(Clone, Copy)]
pub struct Image {
    /// What is to be added to the addresses in the file.
    bias: usize,
    dynamic: Dynamic,
}

impl Image {
    /// The image whose ELF header is at `base`. `None` if it has no dynamic section.
    ///
    /// # Safety
    /// A shared object is mapped there as its program headers say, and stays for as long as the image is used.
    pub unsafe fn at(base: usize) -> Option<Self> {
        // SAFETY: the caller's promise, for all that the headers point to.
        unsafe {
            let header = &*(base as *const libc::Elf64_Ehdr);
            let headers = (base + header.e_phoff as usize) as *const libc::Elf64_Phdr;
            let headers = core::slice::from_raw_parts(headers, usize::from(header.e_phnum));
            let loaded = headers.iter().find(|one| one.p_type == libc::PT_LOAD)?;
            let bias = (base + loaded.p_offset as usize).wrapping_sub(loaded.p_vaddr as usize);
            Self::with(bias, headers)
        }
    }

    /// The image with these program headers, as dl_iterate_phdr(3) tells of one.
    ///
    /// # Safety
    /// As of [`Image::at`].
    pub unsafe fn with(bias: usize, headers: &[libc::Elf64_Phdr]) -> Option<Self> {
        let section = headers.iter().find(|one| one.p_type == libc::PT_DYNAMIC)?;
        let address = bias.wrapping_add(section.p_vaddr as usize);
        // SAFETY: the caller's promise.
        let dynamic = unsafe { Dynamic::read(bias, address) };
        Some(Self { bias, dynamic })
    }

    /// The address of a function or variable that the image itself defines.
    pub fn symbol(&self, name: &CStr) -> Option<usize> {
        let table = self.dynamic;
        // SAFETY: the tables of a mapped image.
        unsafe {
            (0..table.count()?).find_map(|at| {
                let symbol = table.entry(at);
                let is_it = symbol.st_shndx != 0 && table.name(symbol) == name;
                is_it.then(|| self.bias.wrapping_add(symbol.st_value as usize))
            })
        }
    }

    /// Calls `each` with the name of each symbol of others that the image asks for by its address, and with the place
    /// where the dynamic linker puts the address.
    pub fn imports(&self, each: &mut dyn FnMut(&CStr, *mut usize)) {
        const WITH_ADDEND: usize = 7;
        let table = self.dynamic;
        if table.symbols == 0 || table.strings == 0 {
            return;
        }
        let calls = match table.calls_kind {
            WITH_ADDEND => table.calls,
            _ => [0, 0],
        };
        for [at, bytes] in [table.relocations, calls] {
            if at == 0 {
                continue;
            }
            // SAFETY: the tables of a mapped image.
            unsafe {
                let entries = bytes / size_of::<Relocation>();
                for entry in core::slice::from_raw_parts(at as *const Relocation, entries) {
                    let (kind, symbol) = (entry.info as u32, (entry.info >> 32) as usize);
                    if symbol == 0 || entry.addend != 0 || !ADDRESSES.contains(&kind) {
                        continue;
                    }
                    let symbol = table.entry(symbol);
                    if symbol.st_shndx == 0 {
                        let place = self.bias.wrapping_add(entry.offset as usize);
                        each(table.name(symbol), place as *mut usize);
                    }
                }
            }
        }
    }
}

impl Dynamic {
    const CALLS_BYTES: u64 = 2;
    const HASH: u64 = 4;
    const STRINGS: u64 = 5;
    const SYMBOLS: u64 = 6;
    const RELOCATIONS: u64 = 7;
    const RELOCATIONS_BYTES: u64 = 8;
    const CALLS_KIND: u64 = 20;
    const CALLS: u64 = 23;
    const GNU_HASH: u64 = 0x6fff_fef5;

    /// # Safety
    /// A dynamic section is at `address`, of an image that is mapped with this bias.
    unsafe fn read(bias: usize, address: usize) -> Self {
        // The C library's linker has added the bias in place already, but not to what cannot be written (the vDSO).
        let absolute = |value: u64| match value as usize {
            value if value < bias => bias.wrapping_add(value),
            value => value,
        };
        let mut out = Self::default();
        let mut at = address as *const [u64; 2];
        // SAFETY: the section ends with an entry of zeroes.
        while let [tag @ 1..=u64::MAX, value] = unsafe { *at } {
            match tag {
                Self::STRINGS => out.strings = absolute(value),
                Self::SYMBOLS => out.symbols = absolute(value),
                Self::HASH => out.hash = absolute(value),
                Self::GNU_HASH => out.gnu_hash = absolute(value),
                Self::RELOCATIONS => out.relocations[0] = absolute(value),
                Self::RELOCATIONS_BYTES => out.relocations[1] = value as usize,
                Self::CALLS => out.calls[0] = absolute(value),
                Self::CALLS_BYTES => out.calls[1] = value as usize,
                Self::CALLS_KIND => out.calls_kind = value as usize,
                _ => {}
            }
            // SAFETY: this was not the last one.
            at = unsafe { at.add(1) };
        }
        out
    }

    /// # Safety
    /// The tables are mapped, and there are so many symbols.
    unsafe fn entry(&self, at: usize) -> &libc::Elf64_Sym {
        // SAFETY: the caller's promise.
        unsafe { &*(self.symbols as *const libc::Elf64_Sym).add(at) }
    }

    /// # Safety
    /// The tables are mapped, and the symbol is of this one.
    unsafe fn name(&self, symbol: &libc::Elf64_Sym) -> &CStr {
        // SAFETY: the caller's promise; names are strings.
        unsafe { CStr::from_ptr((self.strings + symbol.st_name as usize) as *const _) }
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
            if last < first {
                // Nothing is offered; what is asked for comes before the first one.
                return Some(first as usize);
            }
            let mut last = last;
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
        let table = unsafe { Image::at(base) }
            .expect("a dynamic section")
            .dynamic;
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

    unsafe extern "C" fn collect(
        info: *mut libc::dl_phdr_info,
        _bytes: usize,
        images: *mut libc::c_void,
    ) -> i32 {
        // SAFETY: the linker tells of an image; `images` is the test's list.
        unsafe {
            let headers =
                core::slice::from_raw_parts((*info).dlpi_phdr, usize::from((*info).dlpi_phnum));
            let images = &mut *images.cast::<Vec<Image>>();
            images.extend(Image::with((*info).dlpi_addr as usize, headers));
        }
        0
    }

    #[test]
    fn what_the_program_asks_for_is_what_the_c_library_offers() {
        let mut images = Vec::<Image>::new();
        // SAFETY: the list lives until the call returns.
        unsafe { libc::dl_iterate_phdr(Some(collect), (&raw mut images).cast()) };
        let c_library = images
            .iter()
            .find_map(|image| image.symbol(c"gnu_get_libc_version"))
            .expect("the C library");
        let mut found = 0;
        images[0].imports(&mut |name, place| {
            if name == c"gnu_get_libc_version" {
                // SAFETY: a place that the dynamic linker has filled.
                assert_eq!(unsafe { *place }, c_library);
                found += 1;
            }
        });
        // Called, so that the program asks for it.
        // SAFETY: the function takes nothing.
        assert!(!unsafe { libc::gnu_get_libc_version() }.is_null());
        assert!(found > 0);
    }
}
