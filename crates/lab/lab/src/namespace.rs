//! A network namespace that nobody but this process and its children knows.
//!
//! It has no name in `/run/netns`: the kernel removes it, and every device in it, when the last
//! process that is in it or has it open has ended. A test run that is killed leaves nothing.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;
use std::thread;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, getpid, getppid, set_parent_process_death_signal};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

/// Of the thread that looks at it.
const OWN: &str = "/proc/thread-self/ns/net";

/// A network namespace, open.
#[derive(Clone, Debug)]
pub struct Namespace {
    descriptor: Arc<OwnedFd>,
}

impl Namespace {
    /// Makes one; all that is in it is a loopback device that is down.
    ///
    /// # Errors
    /// `EPERM` for other users than root.
    pub fn new() -> io::Result<Namespace> {
        let made = thread::spawn(|| {
            // SAFETY: this thread ends here. Nothing but its network namespace changes; it shares
            // no table of descriptors or mappings any less than before.
            unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }?;
            File::open(OWN)
        });
        let file = made.join().map_err(|_| io::Error::other("a panic"))??;
        Ok(Namespace {
            descriptor: Arc::new(file.into()),
        })
    }

    /// A path by which other programs can open it, as long as this process lives: `nsenter --net=`
    /// and `ip link … netns` take it.
    pub fn path(&self) -> String {
        format!(
            "/proc/{}/fd/{}",
            std::process::id(),
            self.descriptor.as_raw_fd()
        )
    }

    /// Calls the function on a thread inside. Sockets that it makes belong to the namespace for
    /// good, and programs that it starts run there; `/proc/sys/net` and `/proc/thread-self/net` are
    /// those of the namespace.
    ///
    /// A program started so is not ended with anybody. But unlike with [`Namespace::enter`], for
    /// which this process is copied, it has hardly a moment in which it holds what other threads
    /// have open: where a test must know that what it closed is closed, this is the way.
    pub fn inside<T: Send>(&self, body: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        thread::scope(|scope| {
            let thread = scope.spawn(|| {
                move_into_link_name_space(
                    self.descriptor.as_fd(),
                    Some(LinkNameSpaceType::Network),
                )?;
                body()
            });
            let ended = thread.join();
            ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Makes the command run inside, and end with the thread that starts it at the latest, also
    /// when that thread ends because the whole process is killed.
    pub fn enter(&self, command: &mut Command) {
        let descriptor = Arc::clone(&self.descriptor);
        let parent = getpid();
        let enter = move || -> io::Result<()> {
            end_with(parent)?;
            move_into_link_name_space(descriptor.as_fd(), Some(LinkNameSpaceType::Network))?;
            Ok(())
        };
        // SAFETY: between fork and exec the closure makes three system calls and neither allocates
        // nor takes a lock.
        unsafe { command.pre_exec(enter) };
    }
}

/// Asks to be killed when the parent's thread ends.
fn end_with(parent: Pid) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // It may have ended before it was asked for.
    if getppid() == Some(parent) {
        Ok(())
    } else {
        Err(Errno::SRCH.into())
    }
}
