//! How long things may take, in the units of IBTA's messages.

use std::time::Duration;

/// IBTA's times (12.7 and others): 4.096 µs times two to the power of 5 bits.
pub fn ibta_time(exponent: u8) -> Duration {
    Duration::from_nanos(4096 << exponent.min(31))
}

/// `CMA_CM_RESPONSE_TIMEOUT`: how long either side may take to answer, 4.3 s.
pub const RESPONSE_TIMEOUT: u8 = 20;
/// `CMA_MAX_CM_RETRIES`.
pub const CM_RETRIES: u8 = 15;
/// `CMA_CM_MRA_SETTING`: how long a program may think about a request, 69 s.
pub const REQUEST_SERVICE_TIMEOUT: u8 = 24;
/// About a reply, 4.3 s, then it comes again. Linux says 69 s here too; but the RTU is sent once,
/// and if it gets lost, the peer waits for as long.
pub const REPLY_SERVICE_TIMEOUT: u8 = 20;
