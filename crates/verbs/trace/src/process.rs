//! One trace for all devices of a process, which the environment asks for (decision 0009).
#![allow(unsafe_code)]

use std::io::Write as _;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use sluice_sys::process::block_signals;

use crate::Recorder;

/// Names the file; `sluice verbs --trace` sets it.
pub const VARIABLE: &str = "SLUICE_VERBS_TRACE_FILE";
/// How long the end of the program waits for the rest of the trace.
const PATIENCE: Duration = Duration::from_secs(10);

struct Trace {
    recorder: Arc<Recorder>,
    path: PathBuf,
}

static TRACE: OnceLock<Option<Trace>> = OnceLock::new();

/// The process's recorder, if somebody traces. The trace begins with the first call.
pub fn of_process() -> Option<&'static Arc<Recorder>> {
    let begin = || {
        let path = PathBuf::from(std::env::var_os(VARIABLE)?);
        begin(path)
            .map_err(|reason| say(&format!("there is no trace: {reason}")))
            .ok()
    };
    let trace = TRACE.get_or_init(begin).as_ref()?;
    Some(&trace.recorder)
}

fn begin(path: PathBuf) -> Result<Trace, String> {
    let (file, path, format) =
        crate::open(&path, std::process::id()).map_err(|error| error.to_string())?;
    let program = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
    let program = format!("{} (sluice verbs)", program.trim_end());
    let failed = |error| format!("cannot write {}: {error}", path.display());
    let (recorder, writer) = Recorder::new(file, format, &program).map_err(failed)?;
    std::thread::Builder::new()
        .name("sluice-trace".into())
        .spawn(move || {
            block_signals();
            writer.run();
        })
        .map_err(|error| format!("cannot start a thread: {error}"))?;
    // SAFETY: the functions use statics only, and may be called at any time after this.
    unsafe {
        libc::atexit(behind_exit);
        libc::atexit(at_exit);
        libc::pthread_atfork(None, None, Some(in_child));
    }
    Ok(Trace { recorder, path })
}

/// The writer is not in the child, and its lock may be held there by nobody.
extern "C" fn in_child() {
    if let Some(Some(trace)) = TRACE.get() {
        trace.recorder.turn_off();
    }
}

/// Behind [`at_exit`]: where two threads end the program, the one that finds nothing left to run would end
/// it while the other one waits there.
extern "C" fn behind_exit() {
    if let Some(Some(trace)) = TRACE.get()
        && !trace.recorder.is_off()
    {
        let _ = trace.recorder.close(PATIENCE);
    }
}

extern "C" fn at_exit() {
    let Some(Some(trace)) = TRACE.get() else {
        return;
    };
    if trace.recorder.is_off() {
        return;
    }
    let path = trace.path.display();
    match trace.recorder.close(PATIENCE) {
        None => say(&format!(
            "{path} is not complete: it cannot be written fast enough"
        )),
        Some(summary) => {
            if let Some(error) = &summary.error {
                say(&format!("cannot write {path}: {error}"));
            }
            if summary.dropped > 0 {
                say(&format!(
                    "{path} has {} packets and lacks {}, which came faster than they could be \
                     written",
                    summary.written, summary.dropped
                ));
            }
        }
    }
}

/// A program whose standard error is closed must not fail for that.
fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "sluice: trace: {text}");
}
