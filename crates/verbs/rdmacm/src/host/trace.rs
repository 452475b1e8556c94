//! What connection managers of one host say to each other, as a trace shows it
//! (`sluice verbs --trace`): the management datagrams that a wire would have carried.
//!
//! The messages of [`crate::message`] belong to a socket and name no connection, so the
//! names and transaction numbers here are made of the two addresses, by which both ends have the
//! same. What a datagram has besides, timeouts and path, is what Linux's rdma_cm says.

use std::hash::{DefaultHasher, Hash, Hasher};

use sluice_verbs::transport::ManagementTrace;
use sluice_verbs::types::Gid;
use sluice_wire::cm::{self, Drep, Dreq, Rej, RejOf, RejectReason, Rtu};
use sluice_wire::{Qpn, mad};

use crate::connector::{Conversation, From};
use crate::fabric::format::{self, Names};
use crate::message::{self, ConnParams, Message};
use crate::state::State;

/// The peer has sent a request, for which there is no conversation yet.
pub fn requested(trace: &dyn ManagementTrace, message: &Message) {
    let (requester, listener, tos) = match message {
        Message::Request(request) => (request.source, request.destination, request.tos),
        Message::SidrRequest(request) => (request.source, request.destination, 0),
        _ => return,
    };
    let conversation = Conversation {
        requester,
        listener,
        is_active: false,
        // A request says no more than it has itself.
        port_space: 0,
        state: State::RequestReceived,
        local: ConnParams::default(),
        remote: ConnParams::default(),
        tos,
    };
    record(trace, &conversation, message, From::Peer);
}

/// Puts a message into the trace, if somebody traces.
pub fn record(
    trace: &dyn ManagementTrace,
    conversation: &Conversation,
    message: &Message,
    from: From,
) {
    if !trace.is_on() {
        return;
    }
    let Some(mad) = conversation.datagram(message, from) else {
        return;
    };
    let ends = (&conversation.requester, &conversation.listener);
    let (own, peer) = match conversation.is_active {
        true => ends,
        false => (ends.1, ends.0),
    };
    let gids = [Gid(own.gid()), Gid(peer.gid())];
    trace.record(from == From::Us, gids, conversation.tos, &mad);
}

impl Conversation {
    /// A side's name for the connection; never 0.
    fn name(&self, is_active: bool) -> u32 {
        let mut hasher = DefaultHasher::new();
        (self.requester, self.listener, is_active).hash(&mut hasher);
        (hasher.finish() as u32).max(1)
    }

    /// The datagram; None for what a wire does not carry.
    fn datagram(&self, message: &Message, from: From) -> Option<[u8; mad::BYTES]> {
        let by_active = (from == From::Us) == self.is_active;
        let (local_comm_id, remote_comm_id) = (self.name(by_active), self.name(!by_active));
        // The requester's, for all that follows from its request (IBTA 12.9.8).
        let transaction = u64::from(self.name(true));
        // Ends are said in transactions of their own.
        let ending = 1 << 32 | u64::from(local_comm_id);
        let names = Names {
            local_comm_id,
            remote_comm_id,
            ca_guid: 0,
        };
        let header;
        let (message, transaction) = match message {
            Message::Request(request) => {
                header = format::with_header(&self.requester, &self.listener, &request.private)?;
                let gids = [self.requester.gid(), self.listener.gid()];
                let req = format::req_fields(names, gids, request, &header)?;
                (cm::Message::Req(req), transaction)
            }
            // Which type of queue pair was asked for is not known any more.
            Message::Reply { params, private } => (
                cm::Message::Rep(format::rep_fields(names, 0, params, private)),
                transaction,
            ),
            Message::ReadyToUse => (
                cm::Message::Rtu(Rtu {
                    local_comm_id,
                    remote_comm_id,
                    private_data: &[],
                }),
                transaction,
            ),
            // Between the managers of one host only.
            Message::Reject {
                reason: message::REJ_NOT_MY_ADDRESS,
                ..
            } => return None,
            Message::Reject { reason, private } => (
                cm::Message::Rej(Rej {
                    local_comm_id,
                    remote_comm_id,
                    of: self.rejected(by_active),
                    reason: RejectReason::from_code(*reason),
                    info: &[],
                    private_data: private.as_slice(),
                }),
                transaction,
            ),
            Message::DisconnectRequest => {
                let receiver = match from {
                    From::Us => self.remote.qp_num,
                    From::Peer => self.local.qp_num,
                };
                (
                    cm::Message::Dreq(Dreq {
                        local_comm_id,
                        remote_comm_id,
                        remote_qpn: Qpn::new(receiver),
                        private_data: &[],
                    }),
                    ending,
                )
            }
            Message::DisconnectReply => (
                cm::Message::Drep(Drep {
                    local_comm_id,
                    remote_comm_id,
                    private_data: &[],
                }),
                1 << 32 | u64::from(remote_comm_id),
            ),
            Message::SidrRequest(request) => {
                header = format::with_header(&self.requester, &self.listener, &request.private)?;
                let req = format::sidr_req_fields(local_comm_id, request, &header);
                (cm::Message::SidrReq(req), transaction)
            }
            Message::SidrReply(reply) => {
                let service_id = format::service_id(self.port_space, self.listener.port);
                let rep = format::sidr_rep_fields(remote_comm_id, service_id, reply);
                (cm::Message::SidrRep(rep), transaction)
            }
        };
        message.emit(transaction).ok()
    }

    /// Which message a REJ answers, by who sends it and what this side has sent and got.
    fn rejected(&self, by_active: bool) -> RejOf {
        match self.state {
            State::RequestSent | State::RequestReceived => RejOf::Req,
            State::ResponseReceived | State::ReplySent if by_active => RejOf::Rep,
            _ => RejOf::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use sluice_wire::Mtu;
    use sluice_wire::cm::IpService;
    use sluice_wire::mad::Mad;

    use super::*;
    use crate::address::Address;
    use crate::message::PrivateData;

    fn connection(is_active: bool, state: State) -> Conversation {
        let address = |last, port| Address::new(IpAddr::from([192, 0, 2, last]), port);
        let params = |qp_num| ConnParams {
            qp_num,
            psn: qp_num + 1,
            ..ConnParams::default()
        };
        let (active, passive) = (params(10), params(20));
        let (local, remote) = if is_active {
            (active, passive)
        } else {
            (passive, active)
        };
        Conversation {
            requester: address(1, 40_000),
            listener: address(2, 7471),
            is_active,
            port_space: 0x106,
            state,
            local,
            remote,
            tos: 0,
        }
    }

    /// The datagram of a message as each of the two sides has it in its trace.
    fn both(message: &Message, by_active: bool, states: [State; 2]) -> Vec<[u8; mad::BYTES]> {
        let sides = [(true, states[0]), (false, states[1])];
        let each = sides.into_iter().map(|(is_active, state)| {
            let from = if is_active == by_active {
                From::Us
            } else {
                From::Peer
            };
            let found = connection(is_active, state).datagram(message, from);
            found.expect("it has a datagram")
        });
        each.collect()
    }

    fn private(bytes: &[u8]) -> PrivateData {
        PrivateData::new(bytes, 196).unwrap()
    }

    fn request() -> Message {
        let connection = connection(true, State::RequestSent);
        Message::Request(message::Request {
            port_space: 0x106,
            qp_type: 2,
            mtu: 3,
            tos: 0x20,
            source: connection.requester,
            destination: connection.listener,
            params: connection.local,
            private: private(b"hello"),
        })
    }

    #[test]
    fn both_sides_trace_the_same_conversation() {
        use State::*;
        let cases: Vec<(Message, bool, [State; 2])> = vec![
            (request(), true, [RequestSent, RequestReceived]),
            (
                Message::Reply {
                    params: connection(false, ReplySent).local,
                    private: private(b"welcome"),
                },
                false,
                [RequestSent, RequestReceived],
            ),
            (Message::ReadyToUse, true, [ResponseReceived, ReplySent]),
            (
                Message::Reject {
                    reason: 28,
                    private: private(b"no"),
                },
                false,
                [RequestSent, RequestReceived],
            ),
            (
                Message::Reject {
                    reason: 28,
                    private: private(b"no"),
                },
                true,
                [ResponseReceived, ReplySent],
            ),
            (Message::DisconnectRequest, true, [Established, Established]),
            (
                Message::DisconnectReply,
                false,
                [Disconnecting, Established],
            ),
            (lookup_answer(), false, [RequestSent, RequestReceived]),
        ];
        for (message, by_active, states) in cases {
            let datagrams = both(&message, by_active, states);
            assert_eq!(datagrams[0], datagrams[1], "{message:?}");
        }
    }

    fn lookup_answer() -> Message {
        Message::SidrReply(message::SidrReply {
            status: 0,
            qp_num: 77,
            qkey: 5,
            gid: [0; 16],
            private: private(b"me"),
        })
    }

    fn parsed(bytes: &[u8; mad::BYTES]) -> (cm::Message<'_>, u64) {
        cm::Message::parse(&Mad::parse(bytes).unwrap()).unwrap()
    }

    #[test]
    fn messages_have_what_was_said() {
        let passive = connection(false, State::RequestReceived);
        let bytes = passive.datagram(&request(), From::Peer).unwrap();
        let (cm::Message::Req(req), transaction) = parsed(&bytes) else {
            panic!("no REQ");
        };
        assert_eq!(req.service_id, 0x0106_0000 | 7471);
        assert_eq!((req.local_qpn.get(), req.starting_psn.get()), (10, 11));
        assert_eq!(req.path_mtu, Mtu::Bytes1024);
        let (ip, rest) = IpService::parse(req.private_data).unwrap();
        assert_eq!((ip.source_port, ip.source), (40_000, passive.requester.ip));
        assert_eq!(ip.destination, passive.listener.ip);
        assert_eq!(&rest[..5], b"hello");
        let reply = Message::Reply {
            params: passive.local,
            private: private(b"welcome"),
        };
        let bytes = passive.datagram(&reply, From::Us).unwrap();
        let (cm::Message::Rep(rep), answered) = parsed(&bytes) else {
            panic!("no REP");
        };
        assert_eq!(answered, transaction);
        assert_eq!(rep.remote_comm_id, req.local_comm_id);
        assert_ne!(rep.local_comm_id, req.local_comm_id);
        assert_eq!((rep.local_qpn.get(), rep.starting_psn.get()), (20, 21));
        assert_eq!(&rep.private_data[..7], b"welcome");
        let bytes = passive
            .datagram(&Message::DisconnectRequest, From::Us)
            .unwrap();
        let (cm::Message::Dreq(dreq), _) = parsed(&bytes) else {
            panic!("no DREQ");
        };
        assert_eq!(dreq.remote_qpn.get(), 10);
    }

    #[test]
    fn refusals_name_what_they_refuse() {
        let reject = Message::Reject {
            reason: 28,
            private: private(b"full"),
        };
        for (is_active, state, of) in [
            (false, State::RequestReceived, RejOf::Req),
            (true, State::ResponseReceived, RejOf::Rep),
            (false, State::ReplySent, RejOf::Other),
        ] {
            let bytes = connection(is_active, state).datagram(&reject, From::Us);
            let bytes = bytes.unwrap();
            let (cm::Message::Rej(rej), _) = parsed(&bytes) else {
                panic!("no REJ");
            };
            assert_eq!((rej.of, rej.reason.code()), (of, 28), "{state:?}");
            assert_eq!(&rej.private_data[..4], b"full");
        }
    }

    #[test]
    fn what_only_one_host_says_is_not_traced() {
        let passed_on = Message::Reject {
            reason: message::REJ_NOT_MY_ADDRESS,
            private: PrivateData::default(),
        };
        let passive = connection(false, State::RequestReceived);
        assert!(passive.datagram(&passed_on, From::Us).is_none());
    }
}
