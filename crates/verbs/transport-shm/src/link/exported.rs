//! What has been passed to the peer of a link.

use std::sync::Mutex;

use sluice_sys::unix;

use crate::arena;
use crate::hello::Message;
use sluice_verbs::locks::lock;

/// Which regions of ours the peer of a link has.
#[derive(Debug, Default)]
pub struct Exported(Mutex<Vec<u32>>);

impl Exported {
    /// Passes a region of ours if that was not done before. False: it could not be passed now.
    pub fn pass(&self, socket: i32, id: u32) -> bool {
        let mut exported = lock(&self.0);
        if exported.contains(&id) {
            return true;
        }
        let Some((fd, bytes)) = arena::region(id) else {
            return false;
        };
        let message = Message::Region {
            id,
            bytes: bytes as u64,
        };
        let done = unix::send_with_fds(socket, &message.encode(), &[fd]).is_ok();
        if done {
            exported.push(id);
        }
        done
    }
}
