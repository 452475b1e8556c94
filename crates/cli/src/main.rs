//! The `sluice` command: runs programs over lanes, shows what happens, and why.

#![cfg_attr(not(test), no_main)]

mod args;
mod bench;
mod ca;
mod commands;
mod daemon;
#[cfg(feature = "device-plugin")]
mod device_plugin;
#[cfg(not(feature = "device-plugin"))]
#[path = "device_plugin/left_out.rs"]
mod device_plugin;
mod doctor;
mod document;
mod elf;
mod entry;
mod error;
mod exec;
mod gateway;
mod launch;
mod locate;
mod log;
mod man;
mod run;
mod service;
mod stats;
mod status;
mod terminal;
#[cfg(feature = "top")]
mod top;
#[cfg(not(feature = "top"))]
#[path = "top/left_out.rs"]
mod top;
mod trial;
mod units;
mod verbs;
mod window;
