//! How much is moved at a time, and when silence is looked into.

/// How much is moved at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The longest read, and so the most that waits in this process for one direction of a pair.
    pub buffer_bytes: usize,
    /// What one direction of a pair may move before others have their turn.
    pub share_bytes: usize,
    /// After how many seconds of silence a peer is asked whether it is still there, see
    /// [`keep_alive`](crate::socket::keep_alive).
    pub idle_s: u16,
    /// The same, once that peer has said that it sends no more. It may have closed its socket:
    /// then its kernel knows the connection for a time only (a minute, `tcp_fin_timeout` of
    /// tcp(7)), and goes without a word.
    pub half_closed_s: u16,
}

impl Default for Options {
    /// 64 KiB at a time, 256 KiB a turn; five minutes of silence, one behind a stream's end.
    fn default() -> Self {
        Self {
            buffer_bytes: 64 * 1024,
            share_bytes: 256 * 1024,
            idle_s: 300,
            half_closed_s: 60,
        }
    }
}
