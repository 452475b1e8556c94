//! `rerun-failed LOGS COMMIT`: runs the tests again that failed in this run of `scripts/test`, whose logs are in the
//! folder LOGS, and says which of them are unsteady. Writes how many these are to `LOGS/unsteady.count`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use sluice_tests::rerun;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [logs, commit] = arguments.as_slice() else {
        eprintln!("usage: rerun-failed LOGS COMMIT");
        return ExitCode::from(2);
    };
    let logs = PathBuf::from(logs);
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let counted = rerun::run(&logs, root, commit)
        .and_then(|count| std::fs::write(logs.join("unsteady.count"), format!("{count}\n")));
    match counted {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rerun-failed: cannot run the failed tests again: {error}");
            ExitCode::FAILURE
        }
    }
}
