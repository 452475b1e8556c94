//! The headers of a static program (elf(5)), as far as the kernel's own loader looks at them.

use std::fmt;
use std::ops::Range;

/// Bytes of a page, to which segments are mapped.
pub const PAGE_BYTES: u64 = 4096;
/// The kernel maps nothing below it for programs without rights (vm.mmap_min_addr).
const LOWEST: u64 = 65_536;
/// The end of the addresses of programs that are linked to fixed ones. The C library's program, its libraries and the
/// stack lie far above.
const HIGHEST: u64 = 1 << 40;
/// Real programs have about six.
const HEADERS_MAX: usize = 64;
/// Bytes of the file's header, and of each program header.
const FILE_HEADER_BYTES: usize = 64;
const HEADER_BYTES: usize = 56;

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;
const PT_TLS: u32 = 7;
const PF_X: u32 = 1;
const PF_W: u32 = 2;
const PF_R: u32 = 4;

/// Why a program is left as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refused {
    /// Not an ELF file of this machine that the kernel maps to the addresses that it names.
    NotFixed,
    /// It has a dynamic linker, or was linked with a C library.
    NotAlone,
    /// Its headers contradict each other or the file.
    Headers(&'static str),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFixed => f.write_str("it is no program of fixed addresses for x86-64"),
            Self::NotAlone => f.write_str("it is linked with other libraries than Go's"),
            Self::Headers(what) => write!(f, "its headers are wrong: {what}"),
        }
    }
}

impl std::error::Error for Refused {}

/// A piece of the file that is mapped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// Where it begins in memory.
    pub address: u64,
    /// Where it begins in the file; the same within a page.
    pub offset: u64,
    /// Bytes of it that are in the file.
    pub file_bytes: u64,
    /// Bytes of it in memory, not fewer: the rest is zero.
    pub memory_bytes: u64,
    pub is_readable: bool,
    pub is_writable: bool,
    pub is_executable: bool,
}

impl Segment {
    /// The pages that it takes.
    pub fn pages(&self) -> Range<u64> {
        let end = self.address + self.memory_bytes;
        self.address / PAGE_BYTES * PAGE_BYTES..end.next_multiple_of(PAGE_BYTES)
    }

    /// Its bytes in the file. [`Image::read`] has made sure that they are there.
    pub fn file_range(&self) -> Range<usize> {
        self.offset as usize..(self.offset + self.file_bytes) as usize
    }

    fn holds(&self, address: u64) -> bool {
        (self.address..self.address + self.file_bytes).contains(&address)
    }
}

/// A program that is mapped to fixed addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// Ascending, none of which shares a page with the next one.
    pub segments: Vec<Segment>,
    /// The first instruction.
    pub entry: u64,
    /// Where the program headers are in memory, and how many there are (`AT_PHDR`, `AT_PHNUM`).
    pub headers: (u64, u64),
}

/// Little-endian numbers at a place; `None` past the end.
pub(crate) fn number<const BYTES: usize>(bytes: &[u8], at: usize) -> Option<u64> {
    let found = bytes.get(at..at.checked_add(BYTES)?)?;
    let mut wide = [0_u8; 8];
    wide.get_mut(..BYTES)?.copy_from_slice(found);
    Some(u64::from_le_bytes(wide))
}

impl Image {
    /// Reads the headers of a whole file.
    ///
    /// # Errors
    /// [`Refused`], where the program is not of this kind or does not fit together.
    pub fn read(file: &[u8]) -> Result<Self, Refused> {
        const ELF_64_LITTLE: &[u8] = b"\x7fELF\x02\x01\x01";
        const ET_EXEC: u64 = 2;
        const EM_X86_64: u64 = 62;
        let cut = Refused::Headers("the file is cut off");
        if !file.starts_with(ELF_64_LITTLE)
            || number::<2>(file, 16) != Some(ET_EXEC)
            || number::<2>(file, 18) != Some(EM_X86_64)
        {
            return Err(Refused::NotFixed);
        }
        let field = |at| number::<8>(file, at).ok_or(cut.clone());
        let small = |at| number::<2>(file, at).ok_or(cut.clone());
        let (entry, table, count) = (field(24)?, field(32)?, small(56)? as usize);
        if small(54)? as usize != HEADER_BYTES || count > HEADERS_MAX {
            return Err(Refused::Headers("the program headers are of another kind"));
        }
        let start = usize::try_from(table).map_err(|_| cut.clone())?;
        let bytes = count * HEADER_BYTES;
        let end = start.checked_add(bytes).ok_or(cut.clone())?;
        let headers = file.get(start..end).ok_or(cut.clone())?;
        if start < FILE_HEADER_BYTES {
            return Err(Refused::Headers("they lie in the file's header"));
        }
        let mut segments = Vec::new();
        for header in headers.chunks_exact(HEADER_BYTES) {
            match number::<4>(header, 0).unwrap_or_default() as u32 {
                PT_LOAD => segments.extend(segment(header, file.len() as u64)?),
                PT_INTERP | PT_DYNAMIC | PT_TLS => return Err(Refused::NotAlone),
                _ => {}
            }
        }
        if segments.is_empty() {
            return Err(Refused::Headers("nothing is to be mapped"));
        }
        let follow = |pair: &[Segment]| pair[0].pages().end <= pair[1].pages().start;
        if !segments.windows(2).all(follow) {
            return Err(Refused::Headers("segments overlap"));
        }
        let is_code = |segment: &&Segment| segment.is_executable && segment.holds(entry);
        if segments.iter().find(is_code).is_none() {
            return Err(Refused::Headers("it begins outside of its code"));
        }
        let mapped = segments.iter().find(|segment| {
            segment.offset <= table && table + bytes as u64 <= segment.offset + segment.file_bytes
        });
        let mapped = mapped.ok_or(Refused::Headers("they are not mapped"))?;
        let headers = (mapped.address + (table - mapped.offset), count as u64);
        Ok(Self {
            segments,
            entry,
            headers,
        })
    }

    /// All pages, from the first segment's to the last one's.
    pub fn pages(&self) -> Range<u64> {
        let first = self.segments.first().map_or(0, |it| it.pages().start);
        let last = self.segments.last().map_or(0, |it| it.pages().end);
        first..last
    }
}

/// One `PT_LOAD`; none where it takes no memory.
fn segment(header: &[u8], file_bytes: u64) -> Result<Option<Segment>, Refused> {
    let field = |at| number::<8>(header, at).unwrap_or_default();
    let flags = number::<4>(header, 4).unwrap_or_default() as u32;
    let segment = Segment {
        offset: field(8),
        address: field(16),
        file_bytes: field(32),
        memory_bytes: field(40),
        is_readable: flags & PF_R != 0,
        is_writable: flags & PF_W != 0,
        is_executable: flags & PF_X != 0,
    };
    if segment.memory_bytes == 0 {
        return Ok(None);
    }
    let in_file = segment.offset.checked_add(segment.file_bytes);
    let in_memory = segment.address.checked_add(segment.memory_bytes);
    if in_file.is_none_or(|end| end > file_bytes) {
        return Err(Refused::Headers("the file is cut off"));
    }
    if segment.address < LOWEST || in_memory.is_none_or(|end| end > HIGHEST) {
        return Err(Refused::Headers("an address is out of range"));
    }
    if segment.file_bytes > segment.memory_bytes
        || segment.address % PAGE_BYTES != segment.offset % PAGE_BYTES
    {
        return Err(Refused::Headers("a segment cannot be mapped"));
    }
    if segment.is_writable && segment.is_executable {
        return Err(Refused::Headers("code is writable"));
    }
    Ok(Some(segment))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub const CODE: u64 = 0x40_1000;

    /// A program of a page of headers, `code` in a segment and `data` in another.
    pub fn program(code: &[u8], data: &[u8]) -> Vec<u8> {
        let mut file = vec![0_u8; 4096];
        file[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        file[16..18].copy_from_slice(&2_u16.to_le_bytes());
        file[18..20].copy_from_slice(&62_u16.to_le_bytes());
        file[24..32].copy_from_slice(&CODE.to_le_bytes());
        file[32..40].copy_from_slice(&64_u64.to_le_bytes());
        file[54..56].copy_from_slice(&56_u16.to_le_bytes());
        file[56..58].copy_from_slice(&2_u16.to_le_bytes());
        let code_end = 4096 + code.len();
        let data_at = code_end.next_multiple_of(4096);
        for (index, (flags, offset, bytes, memory)) in [
            (5_u32, 0, code_end, code_end),
            (6, data_at, data.len(), data.len() + 100),
        ]
        .into_iter()
        .enumerate()
        {
            let at = 64 + index * 56;
            file[at..at + 4].copy_from_slice(&PT_LOAD.to_le_bytes());
            file[at + 4..at + 8].copy_from_slice(&flags.to_le_bytes());
            file[at + 8..at + 16].copy_from_slice(&(offset as u64).to_le_bytes());
            let address = 0x40_0000 + offset as u64;
            file[at + 16..at + 24].copy_from_slice(&address.to_le_bytes());
            file[at + 32..at + 40].copy_from_slice(&(bytes as u64).to_le_bytes());
            file[at + 40..at + 48].copy_from_slice(&(memory as u64).to_le_bytes());
        }
        file.extend_from_slice(code);
        file.resize(data_at, 0);
        file.extend_from_slice(data);
        file
    }

    #[test]
    fn a_programs_segments_are_read() {
        let image = Image::read(&program(&[0xc3; 10], b"data")).unwrap();
        assert_eq!(image.entry, CODE);
        assert_eq!(image.headers, (0x40_0040, 2));
        assert_eq!(image.pages(), 0x40_0000..0x40_3000);
        assert_eq!(image.segments[1].file_range(), 0x2000..0x2004);
        assert!(image.segments[1].is_writable && !image.segments[1].is_executable);
    }

    /// A file that lies is refused, whatever it says: no number of it is added, shifted or looked up unchecked.
    #[test]
    fn no_byte_of_the_headers_can_harm() {
        let file = program(&[0xc3; 10], b"data");
        for at in 0..64 + 2 * 56 {
            for value in [0, 1, 0x7f, 0x80, 0xff] {
                let mut changed = file.clone();
                changed[at] = value;
                if let Ok(image) = Image::read(&changed) {
                    check(&image, &changed);
                }
            }
            for wide in [u64::MAX, 1 << 63, 1 << 40, 0] {
                let mut changed = file.clone();
                let end = (at + 8).min(changed.len());
                changed[at..end].copy_from_slice(&wide.to_le_bytes()[..end - at]);
                if let Ok(image) = Image::read(&changed) {
                    check(&image, &changed);
                }
            }
        }
        for length in 0..file.len() {
            if let Ok(image) = Image::read(&file[..length]) {
                check(&image, &file[..length]);
            }
        }
    }

    fn check(image: &Image, file: &[u8]) {
        for segment in &image.segments {
            assert!(file.get(segment.file_range()).is_some());
            assert!(segment.pages().start >= LOWEST && segment.pages().end <= HIGHEST);
        }
        assert!(image.pages().contains(&image.entry));
        assert!(image.pages().contains(&image.headers.0));
    }

    #[test]
    fn what_has_a_linker_or_overlaps_is_refused() {
        let file = program(&[0xc3; 10], b"data");
        for kind in [PT_INTERP, PT_DYNAMIC, PT_TLS] {
            let mut changed = file.clone();
            changed[64 + 56..64 + 60].copy_from_slice(&kind.to_le_bytes());
            assert_eq!(Image::read(&changed), Err(Refused::NotAlone));
        }
        let mut changed = file.clone();
        let second = 64 + 56 + 16;
        changed[second..second + 8].copy_from_slice(&0x40_0000_u64.to_le_bytes());
        assert_eq!(
            Image::read(&changed),
            Err(Refused::Headers("segments overlap"))
        );
        let mut changed = file;
        changed[64 + 4] |= PF_W as u8;
        assert_eq!(
            Image::read(&changed),
            Err(Refused::Headers("code is writable"))
        );
    }
}
