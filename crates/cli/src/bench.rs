//! `sluice bench`: becomes the program that measures, which an installation may lack.

use std::ffi::OsString;

use crate::error::{EXIT_OWN_FAILURE, Failure, reason};
use crate::exec::Image;
use crate::launch::{Environment, set_variable};
use crate::locate;

/// The file name of the program.
const PROGRAM: &str = "sluice-bench";
/// Tells it which `sluice` to measure: this one, wherever it is itself.
const SLUICE_VARIABLE: &str = "SLUICE_BIN";

/// Becomes the program, with the same arguments. Returns only if that failed.
pub fn become_program(arguments: Vec<OsString>) -> Failure {
    let program = match locate::find(PROGRAM) {
        Ok(program) => program,
        Err(missing) => {
            return missing
                .because("the benchmark is a program of its own, which packages may leave out")
                .with_status(EXIT_OWN_FAILURE);
        }
    };
    let cannot = |error: &std::io::Error| {
        Failure::new(
            format!("cannot run {}: {}", program.display(), reason(error)),
            "check its permissions",
        )
        .with_status(EXIT_OWN_FAILURE)
    };
    let own = match std::env::current_exe() {
        Ok(own) => own,
        Err(error) => return cannot(&error),
    };
    let mut environment: Environment = std::env::vars_os().collect();
    set_variable(&mut environment, SLUICE_VARIABLE, own.into());
    let mut command = vec![program.clone().into()];
    command.extend(arguments);
    match Image::new(&command, &environment) {
        Ok(image) => cannot(&image.exec()),
        Err(error) => cannot(&error),
    }
}
