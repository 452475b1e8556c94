//! Peers that speak MPA and lie: each is told why, or reset, and only it. The protocol's own tests have
//! each code of each refusal (`violations`); here are sockets, threads and memory.

mod bursts;
mod cuts;
mod floods;
mod lies;
mod listeners;
mod peer;
mod sleepers;
mod startups;
