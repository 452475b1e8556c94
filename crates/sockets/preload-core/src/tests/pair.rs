//! A connection whose two ends are both in the process of the test, as the hooks see them, with a lane or without.
#![allow(unsafe_code)]

use super::machine::{Machine, Which};
use super::trap;
use crate::conn::{self, Conn};
use crate::{descriptors, fds, tracking};
use core::ptr::NonNull;
use sluice_lane::end::{Assignment, Role};
use sluice_lane::wait;
use sluice_shmem::chunk::Chunk;
use sluice_shmem::geometry::Geometry;
use sluice_shmem::parking::{PARKING_BYTES, ParkingTable};

/// Bytes of each direction's ring.
const RING_BYTES: u32 = 16 * 1024;

/// The two ends.
pub struct Pair {
    /// The end that connected, by its descriptor.
    pub a: i32,
    /// The one that was accepted.
    pub b: i32,
    chunk: Chunk,
    parking: [ParkingTable; 2],
}

fn memory(bytes: usize) -> NonNull<u8> {
    crate::memory::zeroed(bytes.next_multiple_of(4096)).unwrap()
}

impl Pair {
    /// A connection without a lane, that is tracked.
    pub fn new(machine: &mut Machine) -> Self {
        fds::init();
        let (a, b) = machine.sockets();
        let geometry = Geometry::new(2, RING_BYTES).unwrap();
        // SAFETY: zeroed memory of that size, page aligned, never unmapped.
        let chunk = unsafe { Chunk::from_raw(memory(geometry.chunk_bytes() as usize), geometry) };
        let parking = [(); 2].map(|()| {
            // SAFETY: zeroed memory of that size, page aligned, never unmapped.
            unsafe { ParkingTable::from_raw(memory(PARKING_BYTES)) }
        });
        Self {
            a,
            b,
            chunk,
            parking,
        }
    }

    /// Both ends are tracked from here on.
    pub fn track(&self) {
        tracking::track(self.a, Role::Connected);
        tracking::track(self.b, Role::Accepted);
    }

    /// Both ends get the lane. It is read by its rules once both have looked.
    pub fn attach(&self) {
        let _alone = super::ANNOUNCED.lock();
        for (side, fd) in [self.a, self.b].into_iter().enumerate() {
            let conn = conn::get(fd).unwrap();
            conn.end.mark_announced();
            assert!(conn.end.attach(conn.generation, &self.assignment(side)));
            crate::epoll::conn_attached(&conn);
        }
    }

    /// The lane as one side has it: 0 is the end that connected.
    pub fn assignment(&self, side: usize) -> Assignment {
        Assignment {
            chunk: self.chunk,
            lane: 0,
            side: side as u32,
            peer_parking: Some(self.parking[1 - side]),
            own_parking: self.parking[side],
            watchers: 0,
            remote: false,
            direct: false,
            patient: false,
        }
    }

    /// Both ends look at the lane, as poll does.
    pub fn look(&self) {
        for fd in [self.a, self.b] {
            let conn = conn::get(fd).unwrap();
            let _ = wait::ready(conn.end, conn.generation, fd);
        }
    }

    /// The ends, as operations take them.
    pub fn ends(&self) -> (Conn, Conn) {
        (conn::get(self.a).unwrap(), conn::get(self.b).unwrap())
    }

    /// Its ports are not kept for a minute (TIME_WAIT): there are thousands of connections.
    fn leave_no_port(&self) {
        for fd in [self.a, self.b] {
            if fds::is_known(fd) {
                let _ = sluice_sys::unix::reset_at_close(fd);
            }
        }
    }

    /// Closes both ends, as programs do.
    pub fn close(self) {
        for fd in [self.a, self.b] {
            if fds::is_known(fd) {
                descriptors::close(fd);
            }
        }
    }
}

/// Runs `body` with a new connection of a machine of its own, on each of both kernels. `prepare` is done to the machine
/// before. Nothing is run where no kernel can be played.
pub fn on_both(body: impl Fn(Which, &mut Machine, &Pair)) {
    for which in [Which::Fake, Which::Real] {
        on(which, |machine, pair| body(which, machine, pair));
    }
}

/// The same on one of them.
pub fn on<T>(which: Which, body: impl FnOnce(&mut Machine, &Pair) -> T) -> T {
    let mut machine = Machine::new(which);
    let pair = Pair::new(&mut machine);
    let result = body(&mut machine, &pair);
    machine.fault = None;
    if which == Which::Real {
        pair.leave_no_port();
    }
    within(&mut machine, || pair.close());
    result
}

/// Runs `body` with the system calls of the thread answered by `machine`.
pub fn within<T>(machine: &mut Machine, body: impl FnOnce() -> T) -> Option<T> {
    trap::with(machine, body)
}
