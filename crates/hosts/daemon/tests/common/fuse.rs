//! A file system that answers nothing of what a close or a page of its file needs: what every user
//! can have, by his own mount, who wants others to wait.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const PAGE_BYTES: usize = 4096;
const FILE_BYTES: u64 = 16 * PAGE_BYTES as u64;

/// `enum fuse_opcode` of `include/uapi/linux/fuse.h`, those that are answered.
mod opcode {
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const RELEASE: u32 = 18;
    pub const FLUSH: u32 = 25;
    pub const INIT: u32 = 26;
    pub const INTERRUPT: u32 = 36;
}
const FUSE_WRITEBACK_CACHE: u32 = 1 << 16;
/// Without it, who opens the file waits for pages that somebody reads.
const FOPEN_KEEP_CACHE: u32 = 1 << 1;

/// Where the process that is a file system mounts it.
const DIRECTORY: &str = "SLUICE_TEST_FUSE_AT";

/// A mounted file system, which ends with this.
///
/// It is another process: one that waits for its own answer would wait for ever, and `kill` does not
/// end who waits.
pub struct Fuse {
    server: Child,
    /// Its mount namespace is the server's, where everybody else gets by this name.
    file: PathBuf,
    directory: PathBuf,
}

impl Fuse {
    /// Mounts it where nobody else sees it; `test` is the test that calls [`serve`]. Errors: no
    /// `/dev/fuse`, or no right to mount.
    pub fn mount(test: &str) -> io::Result<Fuse> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("sluice-fuse-{}-{count}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        // What is left of a process of this number that was killed.
        let _ = fs::remove_dir(&directory);
        fs::create_dir(&directory)?;
        let mut server = Command::new(std::env::current_exe()?)
            .args(["--exact", test])
            .env(DIRECTORY, &directory)
            .stdout(Stdio::null())
            .spawn()?;
        let deadline = Instant::now() + Duration::from_secs(60);
        let file = loop {
            if let Some(file) = find(server.id(), &directory) {
                break file;
            }
            if server.try_wait()?.is_some() || Instant::now() > deadline {
                let _ = server.kill();
                fs::remove_dir(&directory)?;
                return Err(io::Error::other("nothing is mounted"));
            }
            thread::sleep(Duration::from_millis(2));
        };
        Ok(Fuse {
            server,
            file,
            directory,
        })
    }

    /// A file whose every close waits for as long as this lives.
    pub fn open(&self) -> File {
        let file = File::options().read(true).write(true).open(&self.file);
        file.unwrap()
    }

    /// A file whose last close waits even where it was never received.
    pub fn open_unwritten(&self) -> File {
        let file = self.open();
        file.write_all_at(&[1; PAGE_BYTES], 0).unwrap();
        file
    }

    /// A page that nobody can read as long as this lives.
    pub fn page(&self) -> &'static [u8] {
        let file = self.open();
        // SAFETY: a new shared mapping of one page, which is never unmapped. Nothing reads it but
        // system calls.
        let memory = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                PAGE_BYTES,
                libc::PROT_READ,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                PAGE_BYTES as i64,
            )
        };
        assert_ne!(memory, libc::MAP_FAILED);
        // Its close would wait.
        std::mem::forget(file);
        // SAFETY: the mapping above, which stays.
        unsafe { std::slice::from_raw_parts(memory.cast(), PAGE_BYTES) }
    }
}

impl Drop for Fuse {
    fn drop(&mut self) {
        // With the last descriptor of the device everybody gets an error.
        let _ = self.server.kill();
        let _ = self.server.wait();
        let _ = fs::remove_dir(&self.directory);
    }
}

/// The file, by the thread of the server that has mounted it.
fn find(server: u32, directory: &Path) -> Option<PathBuf> {
    let threads = fs::read_dir(format!("/proc/{server}/task")).ok()?;
    let inside = directory.strip_prefix("/").ok()?.join("file");
    let roots = threads.flatten().map(|thread| thread.path().join("root"));
    roots
        .map(|root| root.join(&inside))
        .find(|file| file.exists())
}

/// Is the file system if this process was started for it, and does nothing otherwise.
pub fn serve() {
    let Some(directory) = std::env::var_os(DIRECTORY) else {
        return;
    };
    let checked = |ret: i32| {
        assert_eq!(ret, 0, "{}", io::Error::last_os_error());
    };
    // SAFETY: takes numbers.
    checked(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) });
    // SAFETY: takes flags, no pointer.
    checked(unsafe { libc::unshare(libc::CLONE_FS | libc::CLONE_NEWNS) });
    let none = std::ptr::null();
    let private = libc::MS_REC | libc::MS_PRIVATE;
    // SAFETY: reads the string.
    checked(unsafe { libc::mount(none, c"/".as_ptr(), none, private, none.cast()) });
    let device = File::options().read(true).write(true).open("/dev/fuse");
    let device = device.expect("/dev/fuse");
    let options = format!(
        "fd={},rootmode=40000,user_id=0,group_id=0,allow_other",
        device.as_raw_fd()
    );
    let options = CString::new(options).expect("no zero");
    let target = CString::new(directory.as_encoded_bytes()).expect("no zero");
    let kind = c"fuse".as_ptr();
    // SAFETY: reads the strings.
    checked(unsafe { libc::mount(kind, target.as_ptr(), kind, 0, options.as_ptr().cast()) });
    answer(device);
}

/// Answers the kernel until the file system is gone.
fn answer(mut device: File) {
    let mut request = vec![0; 1 << 20];
    while let Ok(length) = device.read(&mut request) {
        let word = |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().unwrap());
        assert!(length >= 40, "a request is shorter than its header");
        let (code, unique, node) = (word(4), &request[8..16], word(16));
        let (error, body) = match code {
            // These never.
            opcode::READ | opcode::WRITE | opcode::FLUSH => continue,
            opcode::FORGET | opcode::INTERRUPT => continue,
            opcode::INIT => {
                let mut body = vec![0; 64];
                // Version 7.31, and what the kernel offers of its cache.
                body[0..4].copy_from_slice(&7_u32.to_ne_bytes());
                body[4..8].copy_from_slice(&31_u32.to_ne_bytes());
                body[12..16].copy_from_slice(&FUSE_WRITEBACK_CACHE.to_ne_bytes());
                body[20..24].copy_from_slice(&(PAGE_BYTES as u32).to_ne_bytes());
                (0, body)
            }
            opcode::LOOKUP => {
                let mut body = vec![0; 40];
                body[0] = 2;
                // Good for an hour.
                body[16..20].copy_from_slice(&3600_u32.to_ne_bytes());
                body[24..28].copy_from_slice(&3600_u32.to_ne_bytes());
                body.extend(attributes(2));
                (0, body)
            }
            opcode::GETATTR => {
                let mut body = vec![0; 16];
                body[0..4].copy_from_slice(&3600_u32.to_ne_bytes());
                body.extend(attributes(node));
                (0, body)
            }
            opcode::OPEN => {
                let mut body = vec![0; 16];
                body[8..12].copy_from_slice(&FOPEN_KEEP_CACHE.to_ne_bytes());
                (0, body)
            }
            opcode::RELEASE => (0, Vec::new()),
            _ => (-libc::ENOSYS, Vec::new()),
        };
        let mut out = Vec::new();
        out.extend((16 + body.len() as u32).to_ne_bytes());
        out.extend(error.to_ne_bytes());
        out.extend(unique);
        out.extend(body);
        // Refused where nobody waits any more.
        let _ = device.write(&out);
    }
}

/// `struct fuse_attr`: the directory is node 1, its file node 2.
fn attributes(node: u32) -> Vec<u8> {
    let is_file = node == 2;
    let mut out = vec![0; 88];
    out[0..4].copy_from_slice(&node.to_ne_bytes());
    let bytes = if is_file { FILE_BYTES } else { 0 };
    out[8..16].copy_from_slice(&bytes.to_ne_bytes());
    let mode: u32 = if is_file { 0o100_666 } else { 0o040_755 };
    out[60..64].copy_from_slice(&mode.to_ne_bytes());
    out[64..68].copy_from_slice(&1_u32.to_ne_bytes());
    out
}
