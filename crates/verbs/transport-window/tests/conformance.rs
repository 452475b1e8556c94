//! The conformance suite, over a window in a file that two devices share.

mod common;

use common::Window;
use sluice_verbs::{Device, Transport};
use sluice_verbs_testing::{Row, Side, rows};
use sluice_window::Kind;

fn run(row: &Row, kind: Kind) {
    let window = Window::new(kind, 2);
    let (left, right) = (window.open(), window.open());
    assert_ne!(left.slot(), right.slot());
    row.in_threads(
        move |site| Side::new(Device::new("sluice0", left), site),
        move |site| Side::new(Device::new("sluice1", right), site),
    );
}

/// Both programs on one device: frames to itself.
fn run_alone(row: &Row) {
    let window = Window::new(Kind::Coherent, 2);
    let device = Device::new("sluice0", window.open());
    let other = device.clone();
    row.in_threads(
        move |site| Side::new(device, site),
        move |site| Side::new(other, site),
    );
}

mod coherent {
    sluice_verbs_testing::conformance!(|_, row| super::run(row, super::Kind::Coherent));
}

mod flush {
    sluice_verbs_testing::conformance!(|_, row| super::run(row, super::Kind::Flush));
}

mod alone {
    sluice_verbs_testing::conformance!(|_, row| super::run_alone(row));
}

#[test]
fn nothing_is_left_out() {
    let window = Window::new(Kind::Coherent, 2);
    assert_eq!(rows::left_out(&window.open().caps()), [""; 0]);
}
