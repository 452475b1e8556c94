//! What `crates/verbs/ibverbs/src/rdmacm` gives its messages.

use sluice_sys::errno::Errno;

fn errno_of(error: &std::io::Error) -> Errno {
    Errno(error.raw_os_error().unwrap_or(libc::EIO))
}

#[path = "../../../crates/verbs/ibverbs/src/rdmacm/address.rs"]
pub mod address;
#[path = "../../../crates/verbs/ibverbs/src/rdmacm/message.rs"]
pub mod message;
