//! The command line of `sluice enable` and `sluice disable`.

use std::path::PathBuf;

use clap::Args;

/// Lets services run under Sluice from their next start on.
///
/// Writes a drop-in for each unit, by which systemd starts the service's commands with 'sluice run'. A service
/// that is confined is given what it takes to reach the daemon. Running ones are not restarted.
#[derive(Debug, Args)]
pub struct EnableArgs {
    /// Services: nginx, redis-server.service, or all instances of a template: worker@.service
    #[arg(value_name = "UNIT", required_unless_present = "refresh")]
    pub units: Vec<String>,

    /// Write anew what has been enabled and whose units run something else by now
    #[arg(long, conflicts_with = "units")]
    pub refresh: bool,

    /// Only print what would be written
    #[arg(long)]
    pub dry_run: bool,

    /// The root of another system: an image, say. Its systemd is not told
    #[arg(long, value_name = "DIR")]
    pub root: Option<PathBuf>,
}

/// Takes back what 'sluice enable' has done.
///
/// Running services go on as they are until they are restarted.
#[derive(Debug, Args)]
pub struct DisableArgs {
    /// Services, as they were enabled
    #[arg(value_name = "UNIT", required_unless_present = "all")]
    pub units: Vec<String>,

    /// All that are enabled
    #[arg(long, conflicts_with = "units")]
    pub all: bool,

    /// Only print what would be removed
    #[arg(long)]
    pub dry_run: bool,

    /// The root of another system. Its systemd is not told
    #[arg(long, value_name = "DIR")]
    pub root: Option<PathBuf>,
}
