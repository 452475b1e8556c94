//! What the kernel says of its own types (`Documentation/bpf/btf.rst`), as far as needed to name
//! one of its functions, and to find a member of one of its structures.

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
const TYPEDEF: u32 = 8;
const VOLATILE: u32 = 9;
const CONST: u32 = 10;
const FUNCTION: u32 = 12;
const PROTOTYPE: u32 = 13;
const VARIABLE: u32 = 14;
const SECTION: u32 = 15;
const DECLARATION_TAG: u32 = 17;
const ENUM_64: u32 = 19;
/// Later kinds have lengths that nobody knows yet.
const KIND_MAX: u32 = 19;
/// Of a structure's member: its name, its type, and where it is.
const MEMBER_BYTES: usize = 12;
/// Types that are one in another, such as anonymous unions in a structure: no kernel has more.
const DEPTH_MAX: usize = 16;

/// The types of the running kernel.
#[derive(Debug)]
pub struct Btf {
    bytes: Vec<u8>,
    strings: usize,
    /// Where each type begins, by its number less one: number 0 is void, which is not in the list. Up to the first
    /// that is of a later kind.
    types: Vec<usize>,
}

struct Type {
    name: u32,
    kind: u32,
    /// Members have the length of a bit field beside their place.
    has_fields: bool,
    /// What it is made of, or its size.
    of: u32,
    /// Offset of what depends on the kind.
    at: usize,
    /// How many members, values or parameters.
    count: usize,
}

/// Where a member is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Bits from the start of the outermost structure.
    pub bits: u32,
    /// Of a bit field, how long it is, in bits.
    pub field_bits: Option<u32>,
    /// The number of its type.
    kind: u32,
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
        let mut at = header.checked_add(word(&bytes, 8)? as usize)?;
        let end = at.checked_add(word(&bytes, 12)? as usize)?;
        let strings = header.checked_add(word(&bytes, 16)? as usize)?;
        let mut types = Vec::new();
        while at < end
            && let Some(rest) = Type::read(&bytes, at).and_then(|found| found.rest())
        {
            types.push(at);
            at = at.checked_add(TYPE_BYTES)?.checked_add(rest)?;
        }
        Some(Self {
            bytes,
            strings,
            types,
        })
    }

    /// The number by which programs are attached to a function. `ENOENT`: there is none.
    pub fn function(&self, name: &str) -> Result<u32, Errno> {
        self.find(FUNCTION, name).ok_or(Errno(libc::ENOENT))
    }

    /// Where a member is in a structure: the name of the structure, then those of members, each in the one before. Members
    /// of anonymous structures and unions are their holder's. `ENOENT`: there is no such member.
    pub fn member(&self, path: &[&str]) -> Result<Place, Errno> {
        self.follow(path).ok_or(Errno(libc::ENOENT))
    }

    fn follow(&self, path: &[&str]) -> Option<Place> {
        let (structure, members) = path.split_first()?;
        let mut place = Place {
            bits: 0,
            field_bits: None,
            kind: self.find(STRUCT, structure)?,
        };
        for member in members {
            let found = self.member_of(place.kind, member, DEPTH_MAX)?;
            let bits = place.bits.checked_add(found.bits)?;
            place = Place { bits, ..found };
        }
        Some(place)
    }

    fn member_of(&self, kind: u32, name: &str, depth: usize) -> Option<Place> {
        let depth = depth.checked_sub(1)?;
        let found = self.by_number(kind)?;
        match found.kind {
            TYPEDEF | VOLATILE | CONST => return self.member_of(found.of, name, depth),
            STRUCT | UNION => {}
            _ => return None,
        }
        (0..found.count).find_map(|index| {
            let at = found.at + index * MEMBER_BYTES;
            let place = word(&self.bytes, at + 8)?;
            let member = Place {
                bits: if found.has_fields {
                    place & 0xff_ffff
                } else {
                    place
                },
                field_bits: (found.has_fields && place >> 24 > 0).then_some(place >> 24),
                kind: word(&self.bytes, at + 4)?,
            };
            match word(&self.bytes, at)? {
                0 => {
                    let inner = self.member_of(member.kind, name, depth)?;
                    let bits = member.bits.checked_add(inner.bits)?;
                    Some(Place { bits, ..inner })
                }
                own => self.is_named(own, name).then_some(member),
            }
        })
    }

    fn is_named(&self, name: u32, wanted: &str) -> bool {
        self.strings
            .checked_add(name as usize)
            .and_then(|at| self.bytes.get(at..))
            .and_then(|text| text.strip_prefix(wanted.as_bytes()))
            .is_some_and(|rest| rest.first() == Some(&0))
    }

    fn by_number(&self, number: u32) -> Option<Type> {
        let index = (number as usize).checked_sub(1)?;
        Type::read(&self.bytes, *self.types.get(index)?)
    }

    /// The number of a type.
    fn find(&self, kind: u32, name: &str) -> Option<u32> {
        let is_it = |at: &usize| {
            let found = Type::read(&self.bytes, *at);
            found.is_some_and(|found| found.kind == kind && self.is_named(found.name, name))
        };
        let index = self.types.iter().position(is_it)?;
        u32::try_from(index + 1).ok()
    }
}

impl Type {
    fn read(bytes: &[u8], at: usize) -> Option<Self> {
        let about = word(bytes, at + 4)?;
        Some(Self {
            name: word(bytes, at)?,
            kind: about >> 24 & 0x1f,
            has_fields: about >> 31 != 0,
            of: word(bytes, at + 8)?,
            at: at + TYPE_BYTES,
            count: (about & 0xffff) as usize,
        })
    }

    /// Bytes of what depends on the kind. None: it is not known.
    fn rest(&self) -> Option<usize> {
        let bytes = match self.kind {
            INTEGER | VARIABLE | DECLARATION_TAG => 4,
            ARRAY => 12,
            STRUCT | UNION => MEMBER_BYTES * self.count,
            SECTION | ENUM_64 => 12 * self.count,
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

    /// An integer, structures one in another, and a function.
    fn small() -> Vec<u8> {
        let strings = b"\0int\0pair\0first\0second\0run\0holder\0inner\0named\0bit\0";
        let name = |text: &str| {
            let all = String::from_utf8_lossy(strings);
            all.find(&format!("\0{text}\0")).unwrap() as u32 + 1
        };
        let kind = |kind: u32, count: u32| kind << 24 | count;
        let has_fields = 1 << 31;
        let types = [
            &[name("int"), kind(INTEGER, 0), 4, 32][..],
            &[name("pair"), kind(STRUCT, 2), 8],
            &[name("first"), 1, 0, name("second"), 1, 32],
            &[name("run"), kind(FUNCTION, 0), 1],
            // 4: another name for the pair; 5: an anonymous union with it; 6: a structure with both.
            &[name("named"), kind(TYPEDEF, 0), 2],
            &[0, kind(UNION, 1), 8],
            &[name("inner"), 4, 0],
            &[name("holder"), kind(STRUCT, 3) | has_fields, 24],
            &[name("first"), 1, 0],
            &[name("bit"), 1, 3 << 24 | 33],
            &[0, 5, 64],
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

    fn place(btf: &Btf, path: &[&str]) -> Option<(u32, Option<u32>)> {
        let found = btf.member(path).ok();
        found.map(|place| (place.bits, place.field_bits))
    }

    #[test]
    fn names_are_found() {
        let btf = Btf::parse(small()).unwrap();
        assert_eq!(btf.function("run"), Ok(3));
        assert_eq!(btf.function("ru"), Err(Errno(libc::ENOENT)));
        assert_eq!(btf.function("pair"), Err(Errno(libc::ENOENT)));
        for (path, expected) in [
            (&["pair", "second"][..], Some((32, None))),
            (&["pair", "third"], None),
            (&["int", "first"], None),
            (&["holder", "bit"], Some((33, Some(3)))),
            (&["holder", "inner"], Some((64, None))),
            (&["holder", "inner", "second"], Some((96, None))),
            (&["holder", "first", "second"], None),
        ] {
            assert_eq!(place(&btf, path), expected, "{path:?}");
        }
    }

    #[test]
    fn a_part_of_it_is_no_harm() {
        let whole = small();
        let look = |bytes: Vec<u8>| {
            if let Some(btf) = Btf::parse(bytes) {
                let _ = btf.function("none");
                let _ = btf.member(&["holder", "inner", "second"]);
            }
        };
        for len in 0..whole.len() {
            look(whole[..len].to_vec());
        }
        for at in 0..whole.len() {
            // Among them types that are made of themselves.
            for byte in 0..=u8::MAX {
                let mut damaged = whole.clone();
                damaged[at] = byte;
                look(damaged);
            }
        }
    }
}
