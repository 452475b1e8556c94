//! Counting.

/// What has happened, for whoever looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames given out.
    pub frames_sent: u64,
    /// Frames that came whole.
    pub frames_received: u64,
    /// Payload that went from the stream to its place, bytes.
    pub bytes_direct: u64,
    /// Payload that went there by a buffer, bytes.
    pub bytes_copied: u64,
    /// Messages that had to wait for a receive.
    pub stalls: u64,
}

impl core::ops::AddAssign<&Self> for Counters {
    fn add_assign(&mut self, other: &Self) {
        self.frames_sent += other.frames_sent;
        self.frames_received += other.frames_received;
        self.bytes_direct += other.bytes_direct;
        self.bytes_copied += other.bytes_copied;
        self.stalls += other.stalls;
    }
}
