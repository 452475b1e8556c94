//! What is done when the process ends in the ordinary way: peers that wait for an answer to what
//! the program has seen come get it. Queue pairs that it did not destroy end without a word.
//! What waits in its sockets for queue pairs of its neighbours is handed on to them.
//! The names of the process go, and with the last process of the network namespace their
//! directory; those of one that is killed are left to whoever comes next ([`sluice_rendezvous`]).

use sluice_sys::at_exit::AtExit;
use sluice_verbs::with_aftermath;

use crate::node::Node;

impl AtExit for Node {
    fn leave(&self) {
        with_aftermath(|after| {
            self.shards.send_all_due(after);
            self.shards.drain(after);
        });
        self.common().names.leave();
    }
}
