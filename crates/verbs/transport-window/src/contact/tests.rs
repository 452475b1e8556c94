#![allow(unsafe_code)]

use core::cell::Cell;

use sluice_window::link::HELLO;

use super::*;

const PAIR: Pair = Pair::new(0, 1);

/// A window in which the other host says another version, by another generation each time that it is looked at.
#[derive(Default)]
struct Restless(Cell<u64>);

impl View for Restless {
    fn load(&self, at: In) -> u64 {
        if at == PAIR.hello_in(0) {
            return HELLO ^ (9 << 48);
        }
        self.0.set(self.0.get() + 1);
        self.0.get()
    }

    unsafe fn copy_out(&self, _: In, _: *mut u8, _: usize) {}

    fn store(&self, _: Out, _: u64) {}

    unsafe fn copy_in(&self, _: Out, _: *const u8, _: usize) {}

    fn publish(&self, _: Out, _: u64) {}

    fn refresh(&self, _: In, _: u64) {}
}

/// F8: it kept the thread for as long as it went on.
#[test]
fn a_host_that_is_another_one_each_time_leaves_others_their_turn() {
    let view = Restless::default();
    let mut link = Link::new(PAIR, 5, &view);
    let mut came = 0;
    let gone = take_events(&mut link, &view, 0, |event| {
        came += 1;
        assert!(came <= EVENTS_PER_TURN, "it takes them without end");
        assert!(matches!(event, Event::OtherVersion(_)), "{event:?}");
        None
    });
    assert!(gone.is_none());
    assert_eq!(came, EVENTS_PER_TURN);
}
