//! Several processes behind one address: whose numbers are whose, and packets for one another.

pub mod forward;
