//! What is done when the process ends in the ordinary way: peers that wait for an answer to what
//! the program has seen come get it. Queue pairs that it did not destroy end without a word.
//! What waits in its sockets for queue pairs of its neighbours is handed on to them.
//! The names of the process go, and with the last process of the network namespace their
//! directory; those of one that is killed are left to whoever comes next ([`sluice_rendezvous`]).

use sluice_sys::at_exit::AtExit;
use sluice_verbs::settled;

use crate::node::Node;

impl AtExit for Node {
    fn leave(&self) {
        settled(|after| {
            self.lanes.settle(after);
            self.lanes.drain(after);
        });
        self.common().names.leave();
    }
}
