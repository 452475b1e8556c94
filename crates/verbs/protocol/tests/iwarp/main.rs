//! RDMA over TCP, end to end and against strangers. [`harness`] is also a fuzz target;
//! [`socket`] is a driver over the kernel's TCP, and that of the example `rping`.

mod cuts;
mod endings;
mod harness;
mod keepalive;
mod random;
mod socket;
mod sockets;
mod startup;
mod violations;
