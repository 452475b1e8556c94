//! A deterministic simulator: hosts with queue pairs, and a network that does to their frames
//! whatever it was told to. Everything follows from one seed.
//!
//! [`ledger`] is the memory behind one end of a connection. It knows what the peer was asked to
//! do, and fails the test at once when something is done twice, out of order, with other bytes or
//! outside a region. [`program`] makes what is asked. [`network`] loses, delays, copies, damages
//! and marks frames. [`world`] lets time pass.

// Each test uses a part of it.
#![allow(dead_code)]

pub mod ledger;
pub mod network;
pub mod program;
pub mod random;
pub mod world;
