//! The sleep of a verbs engine thread: nothing that a peer has published stays unseen while the
//! thread sleeps and the peer does not ring.

use super::check;
use super::records::Wire;
use crate::loom_area::Area;
use crate::sync::Ordering;
use crate::verbs::directory::{Directory, ENGINE_ASLEEP, ENGINE_AWAKE, Rung};
use crate::verbs::record::{Header, Reader, Writer};
use loom::sync::{Condvar, Mutex};
use loom::thread;
use std::sync::Arc;

/// An eventfd.
#[derive(Default)]
struct Bell {
    rung: Mutex<bool>,
    changed: Condvar,
}

impl Bell {
    fn ring(&self) {
        *self.rung.lock().unwrap() = true;
        self.changed.notify_all();
    }

    fn wait_and_drain(&self) {
        let mut rung = self.rung.lock().unwrap();
        while !*rung {
            rung = self.changed.wait(rung).unwrap();
        }
        *rung = false;
    }
}

/// A requester's process with one link to a responder's.
struct World {
    directory_area: Box<Area>,
    requests: Wire,
    writer: Mutex<Option<Writer>>,
    rung: Rung,
    bell: Bell,
}

impl World {
    fn new() -> Arc<Self> {
        let world = Arc::new(Self {
            directory_area: Area::new([], [64]),
            requests: Wire::new(),
            writer: Mutex::new(None),
            rung: Rung::default(),
            bell: Bell::default(),
        });
        *world.writer.lock().unwrap() = Some(Writer::new(world.requests.ring()));
        world
    }

    fn directory(&self) -> Directory {
        // SAFETY: the area lives as long as the world, which every user holds.
        unsafe { Directory::from_raw(self.directory_area.base()) }
    }
}

type MustRing = fn(&Directory, &Rung) -> bool;
type SetState = fn(&Directory, u32);

/// Publishes a request and rings if that is necessary, as a posting thread does.
fn request(world: &World, must_ring: MustRing) {
    let header = Header {
        kind: 1,
        ..Header::default()
    };
    {
        let mut writer = world.writer.lock().unwrap();
        // SAFETY: there is no part.
        unsafe {
            writer
                .as_mut()
                .unwrap()
                .push(&header, 0, std::iter::empty())
        }
        .unwrap();
    }
    if must_ring(&world.directory(), &world.rung) {
        world.bell.ring();
    }
}

/// The engine thread, until it has carried out `count` requests.
fn engine(world: &World, count: u32, set_state: SetState) {
    let directory = world.directory();
    let mut reader = Reader::new(world.requests.ring());
    let mut done = 0;
    let mut number = 0;
    let mut state = |state| {
        set_state(&directory, number << 2 | state);
        number += 1;
    };
    let mut look = || {
        let before = done;
        while world.requests.take(&mut reader).is_some() {
            done += 1;
        }
        (done > before, done == count)
    };
    loop {
        state(ENGINE_AWAKE);
        if look().1 {
            return;
        }
        state(ENGINE_ASLEEP);
        match look() {
            (_, true) => return,
            (true, false) => continue,
            (false, false) => world.bell.wait_and_drain(),
        }
    }
}

fn model(threads: u32, must_ring: MustRing, set_state: SetState) -> impl Fn() {
    move || {
        let world = World::new();
        let posters: Vec<_> = (0..threads)
            .map(|_| {
                let world = world.clone();
                thread::spawn(move || request(&world, must_ring))
            })
            .collect();
        engine(&world, threads, set_state);
        for poster in posters {
            poster.join().unwrap();
        }
    }
}

#[test]
fn a_verbs_engine_does_not_sleep_through_a_request() {
    check(
        3,
        model(1, Directory::must_ring, Directory::set_engine_state),
    );
}

#[test]
fn a_verbs_engine_hears_of_two_threads_that_share_a_bell() {
    check(
        2,
        model(2, Directory::must_ring, Directory::set_engine_state),
    );
}

/// One thread posts again and again: the second request may meet the sleep that the first one
/// rang for, or the next one.
#[test]
fn a_verbs_engine_is_rung_again_for_its_next_sleep() {
    check(3, || {
        let world = World::new();
        let poster = world.clone();
        let poster = thread::spawn(move || {
            request(&poster, Directory::must_ring);
            request(&poster, Directory::must_ring);
        });
        engine(&world, 2, Directory::set_engine_state);
        poster.join().unwrap();
    });
}

// Broken variants.

/// A swap orders only itself: the look at the ring may come before it. This is what
/// [`Directory::set_engine_state`] did, on x86-64 without harm.
#[test]
#[should_panic(expected = "deadlock")]
fn broken_verbs_engine_without_a_fence_behind_its_announcement() {
    fn set_state(directory: &Directory, state: u32) {
        directory.word32(64).swap(state, Ordering::SeqCst);
    }
    check(3, model(1, Directory::must_ring, set_state));
}

#[test]
#[should_panic(expected = "deadlock")]
fn broken_verbs_requester_without_a_fence_before_its_look_at_the_engine() {
    fn must_ring(directory: &Directory, rung: &Rung) -> bool {
        let state = directory.engine_state();
        state & 3 == ENGINE_ASLEEP && rung.swap(state) != state
    }
    check(3, model(1, must_ring, Directory::set_engine_state));
}

/// Sleeps that look the same: the requester does not ring for the second.
#[test]
#[should_panic(expected = "deadlock")]
fn broken_verbs_engine_whose_sleeps_have_no_number() {
    fn set_state(directory: &Directory, state: u32) {
        directory.set_engine_state(state & 3);
    }
    check(3, || {
        let world = World::new();
        let poster = world.clone();
        let poster = thread::spawn(move || {
            request(&poster, Directory::must_ring);
            request(&poster, Directory::must_ring);
        });
        engine(&world, 2, set_state);
        poster.join().unwrap();
    });
}
