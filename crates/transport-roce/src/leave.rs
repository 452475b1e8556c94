//! What is done when the process ends in the ordinary way: peers that wait for an answer to what
//! the program has seen come get it. Queue pairs that it did not destroy end without a word.

use sluice_sys::at_exit::AtExit;

use crate::node::Node;

impl AtExit for Node {
    fn leave(&self) {
        self.settle();
    }
}
