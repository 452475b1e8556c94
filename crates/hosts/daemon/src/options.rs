//! What sluiced was started with, for `sluice up` behind one that runs.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::Serialize;

/// By the names of the flags, `-` as `_`. What was not given has its default or is absent.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Options {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_exit: Option<u64>,
    pub ring_bytes: u32,
    pub max_lanes: u32,
    pub user_share: u32,
    pub allow_all_users: bool,
    pub one_namespace: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config: Option<PathBuf>,
    /// Of the flag or else of the configuration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metrics: Option<SocketAddr>,
    pub log: String,
    pub log_format: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_file: Option<PathBuf>,
}
