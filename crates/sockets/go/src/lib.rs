//! Go's runtime in a program: recognised by the instructions that are to be changed.
//!
//! A program that Go's compiler has made enters the kernel for a program's sockets at one place,
//! `internal/runtime/syscall.Syscall6`, and starts threads, ends them and itself, and makes children at one each. These
//! are functions in assembly, so that their instructions are the same in every program of a version of Go, with or
//! without symbols. Each of them must be there once, byte for byte, or nothing is done.
//!
//! Nothing is allocated: the library looks while a program is being loaded.

mod calls;
mod stubs;

use core::fmt;

pub use calls::{NUMBERS, Taken, taken};

/// Older ones wait or make children by other instructions.
const MINOR_MIN: u64 = 23;
/// `internal/runtime/syscall.Syscall6` as a whole: moves from Go's registers to the kernel's, the call, Go's results.
const SYSCALL6: &[u8] =
    b"\x49\x89\xf2\x48\x89\xfa\x48\x89\xce\x48\x89\xdf\x0f\x05\x48\x3d\x01\xf0\xff\xff\x76\x15\
\x48\xf7\xd8\x48\x89\xc1\x48\xc7\xc0\xff\xff\xff\xff\x48\xc7\xc3\x00\x00\x00\x00\xc3\
\x48\x89\xd3\x48\xc7\xc1\x00\x00\x00\x00\xc3";
/// `runtime.settls` from its argument in rdi to arch_prctl(ARCH_SET_FS) and what it checks.
const SETTLS: &[u8] =
    b"\x48\x83\xc7\x08\x48\x89\xfe\x48\xc7\xc7\x02\x10\x00\x00\x48\xc7\xc0\x9e\x00\x00\x00\x0f\x05\
\x48\x3d\x01\xf0\xff\xff\x76\x0b";
/// `runtime.clone` from the number of its call: the parent's return, and the child's first instruction.
const CLONE: &[u8] = b"\xb8\x38\x00\x00\x00\x0f\x05\x48\x83\xf8\x00\x74\x05\x89\x44\x24\x30\xc3\
\x48\x89\xf4\x49\x83\xfd\x00";
/// `runtime.exitThread` as a whole.
const EXIT_THREAD: &[u8] =
    b"\x48\x8b\x44\x24\x08\xc7\x00\x00\x00\x00\x00\xbf\x00\x00\x00\x00\xb8\x3c\x00\x00\x00\
\x0f\x05\xcd\x03\xeb\xfe";
/// `runtime.exit`, and two of the bytes that fill up to the next function.
const EXIT: &[u8] = b"\x8b\x7c\x24\x08\xb8\xe7\x00\x00\x00\x0f\x05\xc3\xcc\xcc";
/// `syscall.rawVforkSyscall` up to the call and the return address that it keeps in r12.
const VFORK: &[u8] = b"\x48\x8b\x7c\x24\x10\x48\x8b\x74\x24\x18\x48\x8b\x54\x24\x20\x49\xc7\xc2\x00\x00\x00\x00\
\x49\xc7\xc0\x00\x00\x00\x00\x49\xc7\xc1\x00\x00\x00\x00\x48\x8b\x44\x24\x08\x41\x5c\x0f\x05\x41\x54";
/// What any version of it has: pop r12, syscall, push r12.
const VFORK_CORE: &[u8] = b"\x41\x5c\x0f\x05\x41\x54";

/// Bytes of a jump to any address: `jmp [rip]` and the address.
pub const JUMP_BYTES: usize = 14;
/// The child's first instruction in `runtime.clone`, behind the call's number.
const CLONE_CHILD: u64 = 18;
/// A piece of the program, code or data: its address, and its bytes.
pub type Piece<'a> = (u64, &'a [u8]);

/// Where Go's runtime enters the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Runtime<'a> {
    /// "go1.26.8".
    pub version: &'a str,
    pub syscall6: u64,
    pub exit: u64,
    /// None where nothing of the program makes children.
    pub vfork: Option<u64>,
}

/// What it does itself in a program without a C library: with one, threads are that one's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Threads {
    pub settls: u64,
    pub clone: u64,
    pub exit_thread: u64,
}

/// Why a program is left as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unknown<'a> {
    /// No Go program, or a version that is not known: the word says what was looked for.
    NotGo(&'static str),
    /// Go's version.
    Version(&'a str),
    /// What was looked for in the instructions, and how often it is there.
    Instructions(&'static str, usize),
}

impl fmt::Display for Unknown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotGo(what) => write!(f, "it is no Go program: it has no {what}"),
            Self::Version(version) => write!(f, "it is of {version}, which is not known"),
            Self::Instructions(what, times) => {
                write!(f, "its runtime's {what} is there {times} times")
            }
        }
    }
}

impl<'a> Runtime<'a> {
    /// Looks for Go's runtime in a program's code and its writable data, which begins with what is known of the
    /// build.
    ///
    /// # Errors
    /// [`Unknown`], where it is another program, or of a version whose instructions are others.
    pub fn find(code: &[Piece], data: &[Piece<'a>]) -> Result<Self, Unknown<'a>> {
        let version = version(data)?;
        let vfork = match (places(code, VFORK), places(code, VFORK_CORE)) {
            ((0, _), (0, _)) => None,
            ((1, place), (1, _)) => Some(place),
            (_, (cores, _)) => return Err(Unknown::Instructions("rawVforkSyscall", cores)),
        };
        Ok(Self {
            version,
            syscall6: once(code, SYSCALL6, "Syscall6")?,
            exit: once(code, EXIT, "exit")?,
            vfork,
        })
    }

    /// Where `rawVforkSyscall` goes on behind its call, with the result in rax.
    pub fn vfork_rest(&self) -> u64 {
        self.vfork.map_or(0, |place| place + VFORK.len() as u64)
    }
}

impl Threads {
    /// Looks for how threads are made in a program without a C library.
    ///
    /// # Errors
    /// [`Unknown::Instructions`].
    pub fn find(code: &[Piece]) -> Result<Self, Unknown<'static>> {
        Ok(Self {
            settls: once(code, SETTLS, "settls")?,
            clone: once(code, CLONE, "clone")?,
            exit_thread: once(code, EXIT_THREAD, "exitThread")?,
        })
    }

    /// Where a thread's life begins in `runtime.clone`: with its stack in rsi, m in r13, g in r9 and what to call in
    /// r12.
    pub fn clone_child(&self) -> u64 {
        self.clone + CLONE_CHILD
    }

    /// Two changes, each at an address, by which the thread pointer stays what the C library has made it. The caller of
    /// `settls` stores a value below the thread pointer and looks for it in the first thread's m, to see whether the
    /// call has worked: that value is put there, and the call has succeeded.
    pub fn keep_thread_pointer(&self) -> [(u64, &'static [u8]); 2] {
        let call = SETTLS.windows(2).position(|two| two == b"\x0f\x05");
        let call = call.expect("the constant has it") as u64;
        [
            // mov qword ptr [rdi], 0x123
            (self.settls, b"\x48\xc7\x07\x23\x01\x00\x00"),
            // xor eax, eax, where the system call was.
            (self.settls + call, b"\x31\xc0"),
        ]
    }
}

/// A jump to any address, to be written over the beginning of a function.
pub fn jump(target: u64) -> [u8; JUMP_BYTES] {
    let mut bytes = *b"\xff\x25\x00\x00\x00\x00........";
    bytes[6..].copy_from_slice(&target.to_le_bytes());
    bytes
}

fn once(code: &[Piece], what: &[u8], name: &'static str) -> Result<u64, Unknown<'static>> {
    match places(code, what) {
        (1, place) => Ok(place),
        (times, _) => Err(Unknown::Instructions(name, times)),
    }
}

/// How often `what` is in the code, and the first address.
fn places(code: &[Piece], what: &[u8]) -> (usize, u64) {
    let (mut times, mut first) = (0, 0);
    for (address, bytes) in code {
        for at in occurrences(bytes, what) {
            if times == 0 {
                first = address + at as u64;
            }
            times += 1;
        }
    }
    (times, first)
}

/// At which bytes `what` begins; not much more than the first two, as more than one is as bad as many. Large programs have
/// a hundred megabytes: what it begins with is looked for first.
fn occurrences<'a>(bytes: &'a [u8], what: &'a [u8]) -> impl Iterator<Item = usize> + 'a {
    const ENOUGH: usize = 3;
    let mut at = 0;
    let next = move || {
        let first = what.first()?;
        loop {
            at += bytes.get(at..)?.iter().position(|byte| byte == first)?;
            at += 1;
            if bytes[at - 1..].starts_with(what) {
                return Some(at - 1);
            }
        }
    };
    core::iter::from_fn(next).take(ENOUGH)
}

/// Go's version, from what `go version FILE` reads: a block at the beginning of the writable data (debug/buildinfo).
fn version<'a>(data: &[Piece<'a>]) -> Result<&'a str, Unknown<'a>> {
    const MAGIC: &[u8] = b"\xff Go buildinf:";
    const SEARCHED_BYTES: usize = 1 << 20;
    const ALIGNED_TO: usize = 16;
    /// Strings follow at byte 32, each with its length before it (Go 1.18 and newer).
    const STRINGS_INLINE: u8 = 2;
    const STRINGS_AT: usize = 32;
    /// "go1.26.8-something X:experiments".
    const VERSION_BYTES_MAX: usize = 100;
    let refused = Unknown::NotGo("build information");
    let block = data.iter().find_map(|(_, data)| {
        let searched = &data[..data.len().min(SEARCHED_BYTES)];
        let mut aligned = (0..searched.len()).step_by(ALIGNED_TO);
        let at = aligned.find(|at| searched[*at..].starts_with(MAGIC))?;
        data.get(at..)
    });
    let block = block.ok_or(refused)?;
    if block
        .get(15)
        .is_none_or(|flags| flags & STRINGS_INLINE == 0)
    {
        return Err(Unknown::NotGo("version that can be read"));
    }
    // The length is a varint; a version is so short that it is one byte.
    let length = usize::from(*block.get(STRINGS_AT).ok_or(refused)?);
    let text = block.get(STRINGS_AT + 1..STRINGS_AT + 1 + length);
    let text = text.filter(|_| length <= VERSION_BYTES_MAX);
    let version = text
        .and_then(|text| core::str::from_utf8(text).ok())
        .ok_or(refused)?;
    let minor = version.strip_prefix("go1.").map(|rest| {
        let end = rest.find(|it: char| !it.is_ascii_digit());
        rest[..end.unwrap_or(rest.len())].parse().unwrap_or(0)
    });
    match minor {
        Some(MINOR_MIN..) => Ok(version),
        _ => Err(Unknown::Version(version)),
    }
}

#[cfg(test)]
mod tests;
