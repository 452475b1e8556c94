//! What has happened, for whoever looks: counts since the beginning.

use core::ops::AddAssign;

macro_rules! counters {
    ($($(#[$meta:meta])* $name:ident),+ $(,)?) => {
        /// Events of one queue pair.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counters { $($(#[$meta])* pub $name: u64),+ }

        impl Counters {
            /// Name and count of each.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name)),+].into_iter()
            }
        }

        impl AddAssign<&Counters> for Counters {
            fn add_assign(&mut self, other: &Counters) {
                $(self.$name += other.$name;)+
            }
        }
    };
}

counters! {
    /// Packets of requests handed out, repeated ones too.
    request_packets,
    /// Of these, sent before.
    repeated_packets,
    /// Packets with responses handed out: acknowledgements, READ data.
    response_packets,
    /// Local ACK timeouts (IBTA 9.7.6.1.3).
    timeouts,
    /// Requests repeated on suspicion, before the timeout.
    probes,
    /// NAKs for missing packets that were acted on (IBTA 9.7.5.2.2).
    sequence_naks,
    /// A later response showed that an earlier one was lost (IBTA 9.7.5.1.4).
    implied_naks,
    /// Receiver-not-ready NAKs that were acted on.
    rnr_naks,
    /// Responses to what had been answered.
    stale_responses,
    /// Responses to what was not sent: a broken or hostile peer.
    future_responses,
    /// Responses that do not fit the request.
    bad_responses,
    /// READ data that came before earlier data of the same READ and was kept.
    early_responses,
    /// Requests that had been carried out (IBTA 9.7.5.1.2).
    duplicate_requests,
    /// Duplicates that fit nothing we remember.
    bad_duplicates,
    /// Requests after a missing one, dropped.
    out_of_sequence,
    /// Requests after a missing one that were kept until their turn came.
    early_packets,
    /// Reports of these sent to a peer that is Sluice.
    reports_sent,
    /// Such reports of the peer's that were acted on.
    reports,
    /// NAKs sent for missing packets.
    sequence_naks_sent,
    /// Receiver-not-ready NAKs sent.
    rnr_naks_sent,
    /// Requests refused.
    refused,
    /// Requests after one that was refused.
    after_refusal,
    /// UC and UD: messages given up, for loss or for want of a receive.
    messages_dropped,
    /// Packets of a service or an opcode that has no place here.
    misdirected,
    /// Datagrams with another Q_Key than ours (IBTA 10.2.5).
    bad_qkeys,
    /// Packets that routers had marked.
    marked_packets,
    /// Congestion notifications sent.
    notifications_sent,
    /// Congestion notifications received.
    notifications,
}
