//! What the kernel says of its own types (`Documentation/bpf/btf.rst`), as far as needed to name
//! one of its functions.

use std::fs;

use crate::errno::Errno;

/// Where the kernel has it (CONFIG_DEBUG_INFO_BTF).
const PATH: &str = "/sys/kernel/btf/vmlinux";
const MAGIC: u16 = 0xeb9f;
/// Bytes in front of what depends on the kind of a type.
const TYPE_BYTES: usize = 12;

// Kinds, with the numbers of `include/uapi/linux/btf.h`.
const INTEGER: u32 = 1;
const ARRAY: u32 = 3;
const STRUCT: u32 = 4;
const UNION: u32 = 5;
const ENUM: u32 = 6;
const FUNCTION: u32 = 12;
const PROTOTYPE: u32 = 13;
const VARIABLE: u32 = 14;
const SECTION: u32 = 15;
const DECLARATION_TAG: u32 = 17;
const ENUM_64: u32 = 19;
/// Later kinds have lengths that nobody knows yet.
const KIND_MAX: u32 = 19;

/// The types of the running kernel.
#[derive(Debug)]
pub struct Btf {
    bytes: Vec<u8>,
    types: (usize, usize),
    strings: usize,
}

struct Type {
    id: u32,
    name: u32,
    kind: u32,
    /// Offset of what depends on the kind.
    at: usize,
    /// How many members, values or parameters.
    count: usize,
}

impl Btf {
    /// Reads it: some megabytes. `ENOENT`: the kernel was built without.
    pub fn of_kernel() -> Result<Self, Errno> {
        let bytes =
            fs::read(PATH).map_err(|error| Errno(error.raw_os_error().unwrap_or(libc::EIO)))?;
        Self::parse(bytes).ok_or(Errno::PROTO)
    }

    fn parse(bytes: Vec<u8>) -> Option<Self> {
        let magic = bytes.first_chunk::<2>()?;
        if u16::from_ne_bytes(*magic) != MAGIC {
            return None;
        }
        let header = word(&bytes, 4)? as usize;
        let types = header.checked_add(word(&bytes, 8)? as usize)?;
        let end = types.checked_add(word(&bytes, 12)? as usize)?;
        let strings = header.checked_add(word(&bytes, 16)? as usize)?;
        Some(Self {
            bytes,
            types: (types, end),
            strings,
        })
    }

    /// The number by which programs are attached to a function. `ENOENT`: there is none.
    pub fn function(&self, name: &str) -> Result<u32, Errno> {
        self.find(FUNCTION, name)
            .map(|found| found.id)
            .ok_or(Errno(libc::ENOENT))
    }

    /// Where a member is in a structure, in bits. `ENOENT`: there is no such member.
    pub fn member_bits(&self, structure: &str, member: &str) -> Result<u32, Errno> {
        const MEMBER_BYTES: usize = 12;
        let found = self.find(STRUCT, structure);
        found
            .and_then(|found| {
                (0..found.count)
                    .map(|index| found.at + index * MEMBER_BYTES)
                    .find(|at| self.is_named(word(&self.bytes, *at), member))
            })
            // The upper byte is the length of bit fields.
            .and_then(|at| Some(word(&self.bytes, at + 8)? & 0xff_ffff))
            .ok_or(Errno(libc::ENOENT))
    }

    fn is_named(&self, name: Option<u32>, wanted: &str) -> bool {
        name.and_then(|name| self.bytes.get(self.strings.checked_add(name as usize)?..))
            .and_then(|text| text.strip_prefix(wanted.as_bytes()))
            .is_some_and(|rest| rest.first() == Some(&0))
    }

    fn find(&self, kind: u32, name: &str) -> Option<Type> {
        let (mut at, end) = self.types;
        // Number 0 is void, which is not in the list.
        let mut id = 1;
        while at < end {
            let found = Type {
                id,
                name: word(&self.bytes, at)?,
                kind: word(&self.bytes, at + 4)? >> 24 & 0x1f,
                at: at + TYPE_BYTES,
                count: (word(&self.bytes, at + 4)? & 0xffff) as usize,
            };
            if found.kind == kind && self.is_named(Some(found.name), name) {
                return Some(found);
            }
            at = found.at.checked_add(found.rest()?)?;
            id += 1;
        }
        None
    }
}

impl Type {
    /// Bytes of what depends on the kind. None: it is not known.
    fn rest(&self) -> Option<usize> {
        let bytes = match self.kind {
            INTEGER | VARIABLE | DECLARATION_TAG => 4,
            ARRAY => 12,
            STRUCT | UNION | SECTION | ENUM_64 => 12 * self.count,
            ENUM | PROTOTYPE => 8 * self.count,
            kind if kind <= KIND_MAX => 0,
            _ => return None,
        };
        Some(bytes)
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..)?.first_chunk::<4>()?;
    Some(u32::from_ne_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An integer, a structure with two members, and a function.
    fn small() -> Vec<u8> {
        let strings = b"\0int\0pair\0first\0second\0run\0";
        let name = |text: &str| {
            let all = String::from_utf8_lossy(strings);
            all.find(&format!("\0{text}\0")).unwrap() as u32 + 1
        };
        let kind = |kind: u32, count: u32| kind << 24 | count;
        let types = [
            &[name("int"), kind(INTEGER, 0), 4, 32][..],
            &[name("pair"), kind(STRUCT, 2), 8],
            &[name("first"), 1, 0, name("second"), 1, 32],
            &[name("run"), kind(FUNCTION, 0), 1],
        ]
        .concat();
        let types: Vec<u8> = types.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let mut bytes = MAGIC.to_ne_bytes().to_vec();
        bytes.extend([1, 0]);
        for word in [24, 0, types.len(), types.len(), strings.len()] {
            bytes.extend((word as u32).to_ne_bytes());
        }
        bytes.extend(types);
        bytes.extend(strings);
        bytes
    }

    #[test]
    fn names_are_found() {
        let btf = Btf::parse(small()).unwrap();
        assert_eq!(btf.function("run"), Ok(3));
        assert_eq!(btf.function("ru"), Err(Errno(libc::ENOENT)));
        assert_eq!(btf.function("pair"), Err(Errno(libc::ENOENT)));
        assert_eq!(btf.member_bits("pair", "second"), Ok(32));
        assert_eq!(btf.member_bits("pair", "third"), Err(Errno(libc::ENOENT)));
    }

    #[test]
    fn a_part_of_it_is_no_harm() {
        let whole = small();
        for len in 0..whole.len() {
            if let Some(btf) = Btf::parse(whole[..len].to_vec()) {
                let _ = btf.function("run");
                let _ = btf.member_bits("pair", "second");
            }
        }
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] = 0xff;
            if let Some(btf) = Btf::parse(damaged) {
                let _ = btf.function("none");
                let _ = btf.member_bits("pair", "none");
            }
        }
    }
}
