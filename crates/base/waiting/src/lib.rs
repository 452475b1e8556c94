//! How long to look for what is to come before one sleeps, for all who do: readers and writers of lanes, `poll`,
//! `epoll`, the threads of verbs transports, `sluiced`. Its numbers are in one table ([`limits`], docs/waiting.md).
//!
//! There is no I/O in here, no clock, no thread and no memory that anybody shares: the time, what a look has found, how
//! long a yield took and what is known of the machine are arguments. So the tests have a clock that they
//! move themselves (`tests/model.rs`), and compare what the policy costs with what the best fixed choice would have.
//!
//! | module | what |
//! |---|---|
//! | [`limits`] | every number, with its reason, and between which values the model holds |
//! | [`polling`] | one wait: looks, yields, an end |
//! | [`gaps`] | what is known of a waiter's last waits, and whether the next one polls |
//! | [`window`] | the same for a thread that is woken for each packet, whose window grows and shrinks |
//! | [`oversubscription`] | whether others want the processor, by what yields took; for how long nobody polls after that |
//! | [`kernel`] | when one who waits for rings and the kernel asks the kernel |
//! | [`machine`] | the processors and the processor time that there are |
#![no_std]
#![forbid(unsafe_code)]

pub mod gaps;
pub mod kernel;
pub mod limits;
pub mod machine;
pub mod oversubscription;
pub mod polling;
pub mod window;

#[cfg(test)]
extern crate std;
