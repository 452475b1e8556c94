//! The emulated machine: a process that ends with the test run at the latest.

use std::io::{self, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

/// How much of what the machine said is kept.
const CONSOLE_BYTES_MAX: usize = 64 << 10;

/// A machine that falls over before there was anything of ours in it is started as often as this.
const BOOTS_MAX: u32 = 3;

/// What the guest's first process says when it has the host's file system (`tests/guest/agent.c`).
const BOOTED: &str = "guest agent: here";

/// What a kernel says that ran into a breakpoint of which nobody knows. It writes them over its own
/// code when it patches that, and QEMU's processors may run what they translated just before the
/// breakpoint was gone again: seen once in some thousand boots. A test to which that happens
/// after the boot is run again (`crate::rerun::never`).
const STALE_BREAKPOINT: &str = "int3: 0000 [#1]";

/// A running machine. Dropping it switches it off.
pub struct Machine {
    shared: Arc<Shared>,
    listener: Option<JoinHandle<()>>,
}

struct Shared {
    process: Mutex<Process>,
    console: Mutex<Console>,
}

/// The last of what a machine said, and whether it ever said [`BOOTED`].
#[derive(Default)]
struct Console {
    bytes: Vec<u8>,
    booted: bool,
}

struct Process {
    child: Child,
    /// Nobody starts another one.
    last: bool,
}

impl Machine {
    /// Starts the program, whose output is the machine's console.
    ///
    /// The command asks the kernel to end it with the thread that starts it, as
    /// [`crate::hosts::Host::command`] does. That must be a thread that lives as long as the
    /// machine, not that of the test which needs it first.
    pub fn start(mut command: Command) -> io::Result<Machine> {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let (tell, told) = mpsc::channel();
        let listener = thread::Builder::new()
            .name("guest-console".into())
            .spawn(move || match command.spawn() {
                Ok(child) => {
                    let shared = Arc::new(Shared {
                        process: Mutex::new(Process { child, last: false }),
                        console: Mutex::default(),
                    });
                    // The test that wanted it may be gone; then the child is dropped and ends with
                    // this thread.
                    if tell.send(Ok(Arc::clone(&shared))).is_ok() {
                        attend(&shared, &mut command);
                    }
                }
                Err(error) => {
                    let _ = tell.send(Err(error));
                }
            })?;
        let shared = told.recv().map_err(io::Error::other)??;
        Ok(Machine {
            shared,
            listener: Some(listener),
        })
    }

    /// The process.
    pub fn id(&self) -> u32 {
        lock(&self.shared.process).child.id()
    }

    /// How the machine ended, if it did.
    pub fn poll(&mut self) -> io::Result<Option<ExitStatus>> {
        let mut process = lock(&self.shared.process);
        if process.last {
            process.child.try_wait()
        } else {
            Ok(None)
        }
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
        String::from_utf8_lossy(&lock(&self.shared.console).bytes).into_owned()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let mut process = lock(&self.shared.process);
        process.last = true;
        // Errors say that it has ended already.
        let _ = process.child.kill();
        let _ = process.child.wait();
    }
}

/// Listens to the machine, and starts it again if it fell over on its way up.
fn attend(shared: &Arc<Shared>, command: &mut Command) {
    let mut complaints = Vec::new();
    for boot in 1.. {
        let (stdout, stderr) = {
            let child = &mut lock(&shared.process).child;
            (child.stdout.take(), child.stderr.take())
        };
        let heard = Arc::clone(shared);
        complaints.push(thread::spawn(move || listen(stderr, &heard.console)));
        listen(stdout, &shared.console);
        let mut process = lock(&shared.process);
        if process.last || boot == BOOTS_MAX || !fell_over(&lock(&shared.console)) {
            process.last = true;
            break;
        }
        let _ = process.child.wait();
        match command.spawn() {
            Ok(child) => process.child = child,
            Err(_) => {
                process.last = true;
                break;
            }
        }
        let mut console = lock(&shared.console);
        eprint!("{}", String::from_utf8_lossy(&console.bytes));
        eprintln!("the guest's kernel ran into a stale breakpoint while it booted: started again");
        console.bytes.clear();
    }
    for listener in complaints {
        let _ = listener.join();
    }
}

/// Whether the emulator, and nothing of ours, ended the kernel.
fn fell_over(console: &Console) -> bool {
    !console.booted && has(&console.bytes, STALE_BREAKPOINT)
}

fn has(bytes: &[u8], text: &str) -> bool {
    bytes
        .windows(text.len())
        .any(|part| part == text.as_bytes())
}

/// Keeps what comes, until its writers are gone.
fn listen(source: Option<impl Read>, console: &Mutex<Console>) {
    let mut bytes = [0; 4096];
    let Some(mut source) = source else { return };
    while let Ok(count @ 1..) = source.read(&mut bytes) {
        let mut console = lock(console);
        console.bytes.extend(bytes.iter().take(count));
        console.booted = console.booted || has(&console.bytes, BOOTED);
        let surplus = console.bytes.len().saturating_sub(CONSOLE_BYTES_MAX);
        console.bytes.drain(..surplus);
    }
}

fn lock<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    /// A machine that is a shell script, and what it said in the end. The script's `$1` is a file
    /// with a line for each boot.
    fn boots(script: &str) -> (String, usize) {
        let place = tempfile::tempdir().unwrap();
        let boots = place.path().join("boots");
        let mut command = Command::new("sh");
        command.args(["-c", &format!("echo >>\"$1\"\n{script}"), "sh"]);
        command.arg(&boots);
        let mut machine = Machine::start(command).unwrap();
        let started = Instant::now();
        while machine.poll().unwrap().is_none() {
            assert!(started.elapsed() < Duration::from_secs(60));
            thread::sleep(Duration::from_millis(2));
        }
        let count = std::fs::read_to_string(&boots).unwrap().lines().count();
        (machine.last_words(), count)
    }

    const FALLS: &str = "echo '[    1.8] Oops: int3: 0000 [#1] PREEMPT SMP'";

    #[test]
    fn a_kernel_that_fell_over_on_its_way_up_is_started_again() {
        let script = format!("[ $(wc -l <\"$1\") = 2 ] || {{ {FALLS}; exit; }}\necho well");
        assert_eq!(boots(&script), ("well\n".into(), 2));
    }

    #[test]
    fn not_for_ever_and_the_last_words_stay() {
        let (said, boots) = boots(FALLS);
        assert_eq!(boots, BOOTS_MAX as usize);
        assert!(said.contains(STALE_BREAKPOINT));
    }

    #[test]
    fn one_that_had_our_programs_in_it_is_not_nor_one_that_ended_otherwise() {
        let ours = format!("echo '{BOOTED}'; {FALLS}");
        assert_eq!(boots(&ours).1, 1);
        // Also where so much was said since that nobody keeps what it said first.
        let long = format!("echo '{BOOTED}'; head -c 200000 /dev/zero | tr '\\0' x; {FALLS}");
        assert_eq!(boots(&long).1, 1);
        assert_eq!(boots("echo 'Oops: 0002 [#1]'").1, 1);
    }

    #[test]
    fn one_that_is_dropped_stays_switched_off() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("boots");
        let mut command = Command::new("sh");
        command.args([
            "-c",
            &format!("echo >>\"$1\"; {FALLS}; exec sleep 60"),
            "sh",
        ]);
        command.arg(&file);
        let machine = Machine::start(command).unwrap();
        let started = Instant::now();
        while !machine.console().contains(STALE_BREAKPOINT) {
            assert!(started.elapsed() < Duration::from_secs(60));
            thread::sleep(Duration::from_millis(2));
        }
        let shared = Arc::clone(&machine.shared);
        drop(machine);
        // The listener lets go of it when it has seen the end.
        while Arc::strong_count(&shared) > 1 {
            assert!(started.elapsed() < Duration::from_secs(60));
            thread::sleep(Duration::from_millis(2));
        }
        assert_eq!(std::fs::read_to_string(&file).unwrap().lines().count(), 1);
    }
}
