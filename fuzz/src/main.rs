//! Runs targets with nothing but a stable compiler.
//!
//! ```text
//! fuzz replay                    every target over its seeds (seeds/TARGET/*)
//! fuzz run TARGET SECONDS        changed seeds and random bytes for that long
//! fuzz one TARGET FILE...        the inputs of these files
//! ```
//!
//! Exit status 0 if nothing was found. What is being run when a process dies is in the file
//! `last-TARGET` of the folder for temporary files.

use sluice_fuzz::{TARGETS, Target};
use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Longest input that is made, bytes.
const INPUT_BYTES_MAX: usize = 2048;
/// Inputs between two looks at the clock.
const BATCH: u32 = 64;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match words[..] {
        ["replay"] => replay(),
        ["run", name, seconds] => target(name).and_then(|target| {
            let seconds = seconds
                .parse()
                .map_err(|_| invalid("SECONDS is a number"))?;
            fuzz(target, Duration::from_secs(seconds))
        }),
        ["one", name, ref files @ ..] => target(name).and_then(|target| {
            files
                .iter()
                .try_for_each(|file| one(target, Path::new(file)))
        }),
        _ => Err(invalid(
            "fuzz replay | fuzz run TARGET SECONDS | fuzz one TARGET FILE...",
        )),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fuzz: {error}");
            ExitCode::FAILURE
        }
    }
}

fn invalid(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, text)
}

fn target(name: &str) -> io::Result<Target> {
    let names: Vec<&str> = TARGETS.iter().map(|(name, _)| *name).collect();
    TARGETS
        .into_iter()
        .find(|(known, _)| *known == name)
        .ok_or_else(|| invalid(&format!("no target {name}; there are {}", names.join(", "))))
}

fn seeds(name: &str) -> io::Result<Vec<PathBuf>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("seeds")
        .join(name);
    let mut files: Vec<PathBuf> = fs::read_dir(folder)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<io::Result<_>>()?;
    files.sort();
    Ok(files)
}

fn one((name, run): Target, file: &Path) -> io::Result<()> {
    let bytes = fs::read(file)
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", file.display())))?;
    println!("{name}: {} ({} bytes)", file.display(), bytes.len());
    run(&bytes);
    Ok(())
}

fn replay() -> io::Result<()> {
    for target in TARGETS {
        let files = seeds(target.0)?;
        if files.is_empty() {
            return Err(invalid(&format!("{} has no seeds", target.0)));
        }
        for file in &files {
            one(target, file)?;
        }
        println!("ok {} ({} seeds)", target.0, files.len());
    }
    Ok(())
}

/// xorshift64*.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() >> 16) as usize % bound.max(1)
    }
}

/// A seed with some changes, two seeds in one, or nothing but chance.
fn input(random: &mut Random, seeds: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = match random.below(8) {
        0 => Vec::new(),
        1 => {
            let mut both = seeds[random.below(seeds.len())].clone();
            let other = &seeds[random.below(seeds.len())];
            both.truncate(random.below(both.len() + 1));
            both.extend_from_slice(&other[random.below(other.len() + 1)..]);
            both
        }
        _ => seeds[random.below(seeds.len())].clone(),
    };
    if bytes.is_empty() {
        bytes = (0..random.below(256))
            .map(|_| random.next() as u8)
            .collect();
    }
    for _ in 0..random.below(6) {
        let at = random.below(bytes.len().max(1));
        match random.below(5) {
            0 if !bytes.is_empty() => bytes[at] ^= 1 << random.below(8),
            1 if !bytes.is_empty() => bytes[at] = random.next() as u8,
            2 => {
                let more: Vec<u8> = (0..random.below(24)).map(|_| random.next() as u8).collect();
                let at = at.min(bytes.len());
                bytes.splice(at..at, more);
            }
            3 if !bytes.is_empty() => {
                let end = (at + random.below(16)).min(bytes.len());
                bytes.drain(at..end);
            }
            _ if bytes.len() >= 4 => {
                let at = at.min(bytes.len() - 4);
                let value = [0, 1, u32::MAX, 1 << 31, 64, 4096][random.below(6)];
                bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
            }
            _ => {}
        }
    }
    bytes.truncate(INPUT_BYTES_MAX);
    bytes
}

fn fuzz((name, run): Target, time: Duration) -> io::Result<()> {
    let seeds: Vec<Vec<u8>> = seeds(name)?
        .iter()
        .map(fs::read)
        .collect::<io::Result<_>>()?;
    if seeds.is_empty() {
        return Err(invalid(&format!("{name} has no seeds")));
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let mut random = Random(now.map_or(1, |now| now.as_nanos() as u64) | 1);
    let last = std::env::temp_dir().join(format!("last-{name}"));
    let file = fs::File::create(&last)?;
    let start = Instant::now();
    let mut count = 0u64;
    while start.elapsed() < time {
        for _ in 0..BATCH {
            let bytes = input(&mut random, &seeds);
            file.set_len(bytes.len() as u64)?;
            file.write_all_at(&bytes, 0)?;
            run(&bytes);
            count += 1;
        }
    }
    fs::remove_file(&last)?;
    println!(
        "{name}: {count} inputs in {:?}, nothing found",
        start.elapsed()
    );
    Ok(())
}
