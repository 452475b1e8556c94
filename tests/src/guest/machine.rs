//! The emulated machine: a process that ends with the test run at the latest.

use std::io::{self, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

/// How much of what the machine said is kept.
const CONSOLE_BYTES_MAX: usize = 64 << 10;

/// A running machine. Dropping it switches it off.
pub struct Machine {
    child: Child,
    console: Arc<Mutex<Vec<u8>>>,
    listener: Option<JoinHandle<()>>,
}

impl Machine {
    /// Starts the program, whose output is the machine's console.
    ///
    /// The command asks the kernel to end it with the thread that starts it, as
    /// [`crate::hosts::Host::command`] does. That must be a thread that lives as long as the
    /// machine, not that of the test which needs it first.
    pub fn start(mut command: Command) -> io::Result<Machine> {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let console = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&console);
        let (tell, told) = mpsc::channel();
        let listener = thread::Builder::new()
            .name("guest-console".into())
            .spawn(move || match command.spawn() {
                Ok(mut child) => {
                    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
                    // The test that wanted it may be gone; then the child is dropped and ends with
                    // this thread.
                    if tell.send(Ok(child)).is_err() {
                        return;
                    }
                    let errors = Arc::clone(&heard);
                    let complaints = thread::spawn(move || listen(stderr, &errors));
                    listen(stdout, &heard);
                    let _ = complaints.join();
                }
                Err(error) => {
                    let _ = tell.send(Err(error));
                }
            })?;
        let child = told.recv().map_err(io::Error::other)??;
        Ok(Machine {
            child,
            console,
            listener: Some(listener),
        })
    }

    /// The process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// How the machine ended, if it did.
    pub fn poll(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }

    /// What it said to its very end; for a machine that has ended.
    pub fn last_words(&mut self) -> String {
        if let Some(listener) = self.listener.take() {
            let _ = listener.join();
        }
        self.console()
    }

    /// The last of what kernel and first process said.
    pub fn console(&self) -> String {
        String::from_utf8_lossy(&lock(&self.console)).into_owned()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // Errors say that it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Keeps what comes, until its writers are gone.
fn listen(source: Option<impl Read>, console: &Mutex<Vec<u8>>) {
    let mut bytes = [0; 4096];
    let Some(mut source) = source else { return };
    while let Ok(count @ 1..) = source.read(&mut bytes) {
        let mut console = lock(console);
        console.extend(bytes.iter().take(count));
        let surplus = console.len().saturating_sub(CONSOLE_BYTES_MAX);
        console.drain(..surplus);
    }
}

fn lock(console: &Mutex<Vec<u8>>) -> MutexGuard<'_, Vec<u8>> {
    console.lock().unwrap_or_else(PoisonError::into_inner)
}
