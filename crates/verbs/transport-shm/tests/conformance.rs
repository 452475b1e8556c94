//! The conformance suite between two processes, by every way to the peer's memory.

mod common;

use common::Way;
use sluice_transport_shm::ShmTransport;
use sluice_verbs::Transport;
use sluice_verbs_testing::rows;

mod shared {
    sluice_verbs_testing::conformance!(|path, row| super::common::run_row(
        path,
        row,
        super::Way::Shared
    ));
}

mod kernel {
    sluice_verbs_testing::conformance!(|path, row| super::common::run_row(
        path,
        row,
        super::Way::Kernel
    ));
}

mod owner {
    sluice_verbs_testing::conformance!(|path, row| super::common::run_row(
        path,
        row,
        super::Way::Owner
    ));
}

#[test]
fn no_row_is_left_out() {
    let directory = std::env::temp_dir().join(format!("slv-{}-caps", std::process::id()));
    let caps = ShmTransport::at(&directory).unwrap().caps();
    assert_eq!(rows::left_out(&caps), [""; 0]);
    let _ = std::fs::remove_dir_all(&directory);
}
