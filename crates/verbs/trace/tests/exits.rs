//! The trace of a program two of whose threads end it at the same time.
#![allow(unsafe_code)]

use std::process::Command;
use std::thread;
use std::time::Duration;

use sluice_trace::{Direction, VARIABLE, of_process};

/// Set in the program that is traced: this test's, once more.
const TRACED: &str = "SLUICE_TEST_TRACED";
const FRAMES: usize = 20_000;
const FRAME_BYTES: usize = 256;

fn end() -> ! {
    // SAFETY: what it runs are functions that threads may be in at the same time, glibc's own and those
    // that wait for the trace.
    unsafe { libc::exit(0) }
}

fn traced() -> ! {
    let recorder = of_process().expect("a trace");
    for _ in 0..FRAMES {
        recorder.record_frame(Direction::Outbound, FRAME_BYTES, || vec![0; FRAME_BYTES]);
    }
    thread::spawn(|| end());
    // The other one is in it, or comes behind this one: either way.
    thread::sleep(Duration::from_micros(300));
    end()
}

#[test]
fn two_threads_that_end_a_program_leave_a_whole_trace() {
    if std::env::var_os(TRACED).is_some() {
        traced();
    }
    let file = std::env::temp_dir().join(format!("sluice-trace-exits-{}", std::process::id()));
    let status = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "two_threads_that_end_a_program_leave_a_whole_trace",
        ])
        .env(TRACED, "1")
        .env(VARIABLE, &file)
        .status()
        .unwrap();
    let bytes = std::fs::metadata(&file).map_or(0, |it| it.len());
    let _ = std::fs::remove_file(&file);
    assert!(status.success(), "{status}");
    assert!(bytes > (FRAMES * FRAME_BYTES) as u64, "{bytes} bytes");
}
