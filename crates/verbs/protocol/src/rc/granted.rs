//! Where the peer has let us write.

use core::ops::Range;

use crate::request::{Operation, Request};

/// The last stretch of the peer's memory that WRITEs have reached.
///
/// A WRITE names all that it writes in its first packet, and a responder that refuses it does so
/// before a byte is written (IBTA 9.7.4.1.5). One whose packets are WRITEs of their own is refused only
/// where it leaves the region, behind packets that have been written. So that is done only where a whole
/// WRITE has been before. Should the peer change its region since, it may see a part of a WRITE.
#[derive(Clone, Debug, Default)]
pub(super) struct Granted {
    rkey: u32,
    addresses: Range<u64>,
}

impl Granted {
    /// The peer has carried this out.
    pub fn done(&mut self, request: &Request) {
        let Some((rkey, addresses)) = place(request) else {
            return;
        };
        let joined = rkey == self.rkey
            && addresses.start <= self.addresses.end
            && self.addresses.start <= addresses.end;
        if joined {
            self.addresses.start = self.addresses.start.min(addresses.start);
            self.addresses.end = self.addresses.end.max(addresses.end);
        } else {
            *self = Self { rkey, addresses };
        }
    }

    /// Whether all that this writes has been written before.
    pub fn covers(&self, request: &Request) -> bool {
        place(request).is_some_and(|(rkey, addresses)| {
            rkey == self.rkey
                && self.addresses.start <= addresses.start
                && addresses.end <= self.addresses.end
        })
    }
}

/// What a WRITE writes. None: it wraps around, or is something else, or nothing.
fn place(request: &Request) -> Option<(u32, Range<u64>)> {
    let (Operation::Write(remote) | Operation::WriteImmediate(remote, _)) = request.operation
    else {
        return None;
    };
    let end = remote.address.checked_add(u64::from(request.length))?;
    (end > remote.address).then_some((remote.rkey, remote.address..end))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Remote;

    fn write(rkey: u32, addresses: Range<u64>) -> Request {
        Request {
            seq: 1,
            operation: Operation::Write(Remote {
                address: addresses.start,
                rkey,
            }),
            length: (addresses.end - addresses.start) as u32,
            solicited: false,
            srq: None,
        }
    }

    #[test]
    fn only_where_writes_have_been() {
        let mut granted = Granted::default();
        assert!(!granted.covers(&write(7, 100..200)));
        granted.done(&write(7, 100..200));
        assert!(granted.covers(&write(7, 100..200)) && granted.covers(&write(7, 150..160)));
        for outside in [99..200, 100..201, 0..50, 200..201] {
            assert!(!granted.covers(&write(7, outside.clone())), "{outside:?}");
        }
        assert!(!granted.covers(&write(8, 100..200)), "another region");
        // What joins is one stretch, what does not begins anew.
        granted.done(&write(7, 200..300));
        granted.done(&write(7, 50..100));
        assert!(granted.covers(&write(7, 50..300)));
        granted.done(&write(7, 400..500));
        assert!(!granted.covers(&write(7, 50..300)) && granted.covers(&write(7, 400..500)));
        granted.done(&write(8, 450..600));
        assert!(!granted.covers(&write(7, 400..500)) && granted.covers(&write(8, 450..600)));
    }

    #[test]
    fn nothing_is_granted_by_anything_else() {
        let mut granted = Granted::default();
        let read = Request {
            operation: Operation::Read(Remote {
                address: 0,
                rkey: 0,
            }),
            ..write(0, 0..100)
        };
        granted.done(&read);
        assert!(!granted.covers(&read) && !granted.covers(&write(0, 0..1)));
        // Without bytes, and around the end of all addresses.
        granted.done(&write(0, 0..100));
        assert!(!granted.covers(&write(0, 5..5)));
        let around = Request {
            length: 100,
            ..write(0, u64::MAX - 10..u64::MAX)
        };
        granted.done(&around);
        assert!(!granted.covers(&around) && granted.covers(&write(0, 0..100)));
    }
}
