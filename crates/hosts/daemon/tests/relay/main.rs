//! Relays of captured connections, with tests in the place of sluiced, programs and peers.

mod far;
mod near;
mod scene;
