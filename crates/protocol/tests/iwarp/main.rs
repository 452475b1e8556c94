//! RDMA over TCP, end to end and against strangers. [`harness`] is also a fuzz target.

mod cuts;
mod harness;
mod random;
mod startup;
mod violations;
