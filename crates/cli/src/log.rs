//! What commands that stay say on standard error.

use std::io;

use crate::args::LogLevel;

/// Events from this level on become lines.
pub fn start(level: LogLevel) {
    // What a library says of every frame is of no use to who runs this.
    let Ok(filter) = tracing_subscriber::EnvFilter::try_new(format!("{},h2=off", level.name()))
    else {
        return;
    };
    let log = tracing_subscriber::fmt().with_env_filter(filter);
    // A line that cannot be written is lost, and not the end: its failure would be said by a macro
    // that panics.
    let log = log.log_internal_errors(false);
    log.with_ansi(false).with_writer(io::stderr).init();
}
