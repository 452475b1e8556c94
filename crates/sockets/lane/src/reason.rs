//! Why a connection, or a direction of one, is on TCP.

/// The reasons that `sluice status` shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Reason {
    /// None: it is on a lane, or will be when its turn comes.
    None = 0,
    /// Fewer turnarounds so far than `SLUICE_MIN_OPS`.
    FewOperations = 1,
    /// The other end was not announced (yet).
    NoPeer = 2,
    /// No daemon answered.
    NoDaemon = 3,
    /// The descriptor was given to another process or to a program that Sluice cannot follow.
    Shared = 4,
    /// A socket option that only the kernel can honour (kernel TLS, SO_RCVLOWAT, ...).
    SocketOption = 5,
    /// Urgent data was used.
    Urgent = 6,
    /// A call that only the kernel can do (splice, stdio on the socket, ...).
    KernelCall = 7,
    /// Watched by more epoll instances than there are slots.
    TooManyWatchers = 8,
    /// The program is confined by seccomp.
    Confined = 9,
    /// The socket was inherited from a program that was not followed.
    UnknownOrigin = 10,
    /// The peer wrote garbage into shared memory.
    Broken = 11,
    /// The memory for a lane could not be had.
    NoMemory = 12,
    /// Excluded by the user's policy.
    Policy = 13,
    /// Shut down for writing, or the peer has.
    HalfClosed = 14,
    /// Calls do not block, and nobody saw the program wait for the connection.
    UnseenWaits = 15,
    /// The kernel uses the socket for an io_uring, or may: nobody sees what is submitted there.
    IoUring = 16,
    /// The program has as many files open as it may, so what a lane consists of did not come through.
    NoDescriptors = 17,
    /// The program has code that calls the C library past the hooks, and may use any socket by it.
    PastHooks = 18,
}

/// All of them, in the order of their numbers.
pub const ALL: [Reason; 19] = [
    Reason::None,
    Reason::FewOperations,
    Reason::NoPeer,
    Reason::NoDaemon,
    Reason::Shared,
    Reason::SocketOption,
    Reason::Urgent,
    Reason::KernelCall,
    Reason::TooManyWatchers,
    Reason::Confined,
    Reason::UnknownOrigin,
    Reason::Broken,
    Reason::NoMemory,
    Reason::Policy,
    Reason::HalfClosed,
    Reason::UnseenWaits,
    Reason::IoUring,
    Reason::NoDescriptors,
    Reason::PastHooks,
];

impl Reason {
    /// The reason with this number, if there is one.
    pub fn from_code(code: u16) -> Option<Self> {
        ALL.get(usize::from(code)).copied()
    }

    /// What the user reads.
    pub fn text(self) -> &'static str {
        match self {
            Self::None => "",
            Self::FewOperations => "too little traffic yet",
            Self::NoPeer => "other end not under sluice",
            Self::NoDaemon => "no daemon",
            Self::Shared => "descriptor shared with another program",
            Self::SocketOption => "socket option needs the kernel",
            Self::Urgent => "urgent data",
            Self::KernelCall => "call that only the kernel can do",
            Self::TooManyWatchers => "too many epoll instances",
            Self::Confined => "program confined by seccomp",
            Self::UnknownOrigin => "inherited from an unfollowed program",
            Self::Broken => "peer broke the shared memory",
            Self::NoMemory => "no memory for a lane",
            Self::Policy => "excluded by policy",
            Self::HalfClosed => "half closed",
            Self::UnseenWaits => "program waits by calls that sluice does not see",
            Self::IoUring => "used through io_uring",
            Self::NoDescriptors => "program at its limit of open files",
            Self::PastHooks => "program has code that calls past sluice",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_name_themselves() {
        for (code, reason) in ALL.iter().enumerate() {
            assert_eq!(*reason as usize, code);
            assert_eq!(Reason::from_code(code as u16), Some(*reason));
        }
        assert_eq!(Reason::from_code(ALL.len() as u16), None);
    }
}
