//! Where an identifier stands.

/// The states of an identifier: those of the kernel's rdma_cm, joined with the states of
/// the communication identifier below it (IBTA 12.9.5) once there is a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Idle,
    Bound,
    AddrResolved,
    RouteResolved,
    Listening,
    /// Active side: REQ or SIDR_REQ is sent, or waits for room at the listener.
    RequestSent,
    /// Active side: REP came, RTU is not sent.
    ResponseReceived,
    /// Passive side: REQ or SIDR_REQ came.
    RequestReceived,
    /// Passive side: REP is sent.
    ReplySent,
    Established,
    /// DREQ is sent.
    Disconnecting,
    /// Disconnected; TIMEWAIT_EXIT is still to come.
    TimeWait,
    /// Nothing more will happen.
    Closed,
}
