//! An ivshmem server of tests, which says what the test has it say, and memory to give out.

use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use sluice_shmem::mapping::{Access, Mapping};
use sluice_sys::memfd::{self, SEAL_GROW, SEAL_SHRINK};
use sluice_sys::unix::{self, Fd};
use sluice_window::Kind;
use sluice_window::region::Region;

const BYTES: usize = 4 << 20;
/// With it comes the memory.
pub const MEMORY: i64 = -1;

/// Goes with all its connections when it is dropped.
pub struct Fake {
    path: PathBuf,
    listener: UnixListener,
    stream: Option<UnixStream>,
}

/// A path at which nobody listens yet.
pub fn path() -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("sluice-served-{}-{count}", std::process::id()))
}

/// A window of four hosts in memory that nobody can make shorter.
pub fn memory() -> Fd {
    let memory = memfd::create(c"sluice-test").expect("memory");
    memfd::set_len(memory.raw(), BYTES as u64).expect("a size");
    memfd::add_seals(memory.raw(), SEAL_SHRINK | SEAL_GROW).expect("seals");
    let mapping = Mapping::shared(memory.raw(), BYTES, Access::ReadWrite).expect("a mapping");
    Region::format(mapping, 4, Kind::Coherent, true).expect("a window");
    memory
}

/// Another descriptor of the same file.
pub fn same(memory: &Fd) -> Fd {
    unix::duplicate(memory.raw()).expect("a descriptor")
}

impl Fake {
    pub fn at(path: &Path) -> Fake {
        let listener = UnixListener::bind(path).expect("a socket");
        listener.set_nonblocking(true).expect("a socket");
        Fake {
            path: path.to_owned(),
            listener,
            stream: None,
        }
    }

    /// Whether somebody has connected, who is taken then.
    pub fn is_asked(&mut self) -> bool {
        let Ok((stream, _)) = self.listener.accept() else {
            return false;
        };
        self.stream = Some(stream);
        true
    }

    /// Hangs up.
    pub fn hang_up(&mut self) {
        self.stream = None;
    }

    pub fn stream(&self) -> &UnixStream {
        self.stream.as_ref().expect("a connection")
    }

    pub fn say(&self, number: i64, fds: &[RawFd]) {
        let said = unix::send_with_fds(self.stream().as_raw_fd(), &number.to_le_bytes(), fds);
        assert_eq!(said, Ok(8));
    }

    /// Gives its memory to the one that has connected.
    pub fn serve(&mut self, memory: &Fd) {
        assert!(self.is_asked() || self.stream.is_some());
        self.say(0, &[]);
        self.say(3, &[]);
        self.say(MEMORY, &[memory.raw()]);
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}
