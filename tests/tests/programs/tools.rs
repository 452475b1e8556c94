//! What the tests of real programs share.

use std::fs;
use std::hash::{DefaultHasher, Hasher};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use sluice_tests::job::{Job, Outcome, find_program};
use sluice_tests::lab::{Lab, Mode};
use sluice_tests::net::{await_listener, free_port};
use sluice_tests::suite::{Verdict, ensure, skip};

/// Bound of one program's run; none of them is near it when all is well, but a program that takes
/// turns with another one is many times slower on processors that others keep busy.
pub const LIMIT: Duration = Duration::from_secs(180);

/// A test's lab with the little rituals of starting servers and clients.
pub struct Stage {
    pub lab: Lab,
    serial: u32,
}

impl Stage {
    pub fn new() -> Verdict<Stage> {
        Ok(Stage {
            lab: Lab::new()?,
            serial: 0,
        })
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.lab.path().join(name)
    }

    /// Starts a server and waits until it listens on the port.
    pub fn serve(&mut self, mode: Mode, program: &str, args: &[&str], port: u16) -> Verdict<Job> {
        let mut job = self.start(mode, program, args)?;
        await_listener(&mut job, port, LIMIT)?;
        Ok(job)
    }

    pub fn start(&mut self, mode: Mode, program: &str, args: &[&str]) -> Verdict<Job> {
        let path = require(program)?;
        self.serial += 1;
        let label = format!("{}-{}", self.serial, program.replace('/', "_"));
        let mut command = self.lab.command(mode, path);
        command.args(args).current_dir(self.lab.path());
        Job::start(command, self.lab.path(), &label)
    }

    /// Runs a program to its end and requires status 0.
    pub fn run(&mut self, mode: Mode, program: &str, args: &[&str]) -> Verdict<Outcome> {
        self.start(mode, program, args)?.finish(LIMIT)?.success()
    }

    /// Runs `sh -c` with the script.
    pub fn shell(&mut self, mode: Mode, script: &str) -> Verdict<Outcome> {
        self.run(mode, "sh", &["-c", script])
    }
}

/// The program's path; a missing one skips the test.
pub fn require(program: &str) -> Verdict<PathBuf> {
    if program.contains('/') {
        return Ok(PathBuf::from(program));
    }
    match find_program(program) {
        Some(path) => Ok(path),
        None => skip(format!(
            "{program} is not installed; run scripts/setup test"
        )),
    }
}

pub fn port() -> Verdict<u16> {
    Ok(free_port()?)
}

/// Text for messages and configuration files; the lab's paths are ASCII.
pub fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

pub fn write(path: &Path, content: impl AsRef<[u8]>) -> Verdict {
    Ok(fs::write(path, content)?)
}

/// Writes a file of bytes that do not repeat and are the same every time.
pub fn make_file(path: &Path, bytes: usize) -> Verdict {
    let mut file = io::BufWriter::new(fs::File::create(path)?);
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for _ in 0..bytes / 8 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        file.write_all(&state.to_le_bytes())?;
    }
    file.write_all(&vec![b'.'; bytes % 8])?;
    Ok(file.flush()?)
}

pub fn digest(path: &Path) -> Verdict<u64> {
    let mut file = fs::File::open(path)?;
    let mut hasher = DefaultHasher::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hasher.finish()),
            count => hasher.write(&buffer[..count]),
        }
    }
}

pub fn same_file(left: &Path, right: &Path) -> Verdict {
    let (left_bytes, right_bytes) = (fs::metadata(left)?.len(), fs::metadata(right)?.len());
    ensure(
        left_bytes == right_bytes && digest(left)? == digest(right)?,
        || {
            format!(
                "{} ({left_bytes} bytes) and {} ({right_bytes} bytes) differ",
                left.display(),
                right.display()
            )
        },
    )
}
