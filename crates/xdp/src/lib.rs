//! RoCEv2 packets past the kernel's stack: AF_XDP sockets, and the XDP program that steers to them.

#![warn(missing_docs)]
