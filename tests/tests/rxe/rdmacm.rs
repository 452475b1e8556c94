//! Programs that find each other by librdmacm, with one end here and one in the guest: their
//! messages are those of Linux's connection manager.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::time::Duration;

use libtest_mimic::Trial;
use sluice_tests::guest::stranger::{self, Stranger};
use sluice_tests::hosts::ports::Protocol;
use sluice_tests::job::Job;
use sluice_tests::suite::{Verdict, trial};
use sluice_tests::verbs::cm::{self, End, PortSpace, named};
use sluice_tests::verbs::sluice_verbs;
use tempfile::TempDir;

use crate::stranger::{LIMIT, Meeting, Server};

/// Rows of the other suites, and what makes their programs do less: of two options the last counts.
const ROWS: &[(&str, &[&str])] = &[
    ("rping/plain", &["-C", "100"]),
    ("rping/own-queue-pairs", &["-C", "20"]),
    ("ucmatose/plain", &[]),
    ("ucmatose/ten", &["-C", "20"]),
    ("udaddy/plain", &[]),
    ("udaddy/ten", &["-C", "20"]),
    ("rdma_client/plain", &[]),
    ("rdma_xclient/plain", &[]),
    ("cmtime/plain", &["-c", "20"]),
    ("rstream/verify", &["-C", "10", "-I", "3"]),
    ("riostream/verify", &["-C", "10", "-I", "3"]),
    ("ib_send_lat/cm", &["-n", "50"]),
    ("ib_send_bw/cm", &["-n", "20"]),
    ("ib_write_lat/cm", &["-n", "50"]),
    ("ib_write_bw/cm", &["-n", "20"]),
    ("ib_read_lat/cm", &["-n", "50"]),
    ("ib_read_bw/cm", &["-n", "20"]),
    ("ib_atomic_lat/cm", &["-n", "50"]),
    ("ib_atomic_bw/cm", &["-n", "50"]),
    ("ib_send_lat/cm-ud", &["-n", "50"]),
];

/// The group of [`cm::mckey`].
const GROUP: IpAddr = IpAddr::V4(Ipv4Addr::new(239, 1, 2, 4));

/// Who serves, over which device, with both versions of IP where a program has both.
pub fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for (number, (row, less)) in ROWS.iter().enumerate() {
        let row = named(row);
        for (turn, meeting) in all_meetings(number).into_iter().enumerate() {
            // Both versions for what is asked most, one by turns for the rest.
            let every = ["rping/plain", "ucmatose/plain"].contains(&row.name().as_str());
            let wanted = every || turn % 2 == 0;
            let meeting = match row.speaks(meeting.family) {
                true => meeting,
                false => Meeting {
                    family: 4,
                    ..meeting
                },
            };
            if wanted {
                let name = format!("{}/{}", row.name(), meeting.name());
                trials.push(trial(name, move || {
                    row.run(&mut Cable::lay(meeting)?, less)
                }));
            }
        }
    }
    // Linux joins no groups of IPv6 over RoCEv2 (`cma_iboe_join_multicast`: ENOTSUPP).
    for meeting in all_meetings(0).into_iter().filter(|m| m.family == 4) {
        trials.push(trial(
            format!("mckey/plain/{}", meeting.name()),
            move || {
                // rdma_rxe sends from a queue of work that goes with the queue pair: what has not left
                // when the program ends never does.
                let times = match meeting.server {
                    Server::Sluice => 10,
                    Server::Kernel => 1,
                };
                cm::mckey(&mut Cable::lay(meeting)?, GROUP, times)
            },
        ));
    }
    trials
}

/// Eight; of each two that differ in the version of IP alone, the first has it by turns.
fn all_meetings(number: usize) -> Vec<Meeting> {
    let mut meetings = Vec::new();
    for server in [Server::Sluice, Server::Kernel] {
        for (turn, device) in ["roce", "roce-udp"].into_iter().enumerate() {
            let first = match (number + turn) % 2 {
                0 => [4, 6],
                _ => [6, 4],
            };
            for family in first {
                meetings.push(Meeting {
                    server,
                    device,
                    family,
                    mtu: 1500,
                });
            }
        }
    }
    meetings
}

/// One end here, the other in the guest.
struct Cable {
    lab: stranger::Borrowed,
    dir: TempDir,
    meeting: Meeting,
    started: u32,
}

impl Cable {
    fn lay(meeting: Meeting) -> Verdict<Cable> {
        let lab = stranger::borrow()?;
        lab.set_mtu(meeting.mtu)?;
        let dir = tempfile::tempdir_in(lab.path())?;
        Ok(Cable {
            lab,
            dir,
            meeting,
            started: 0,
        })
    }

    /// Whether the end is this side.
    fn is_here(&self, end: End) -> bool {
        (self.meeting.server == Server::Sluice) == (end == End::Server)
    }
}

impl cm::Stage for Cable {
    fn start(&mut self, end: End, program: &str, arguments: &[&str]) -> Verdict<Job> {
        let lab: &Stranger = &self.lab;
        let command = if self.is_here(end) {
            let device = ["--device".to_owned(), self.meeting.device.to_owned()];
            let mut command = sluice_verbs(program, arguments, &device)?;
            lab.host.place(&mut command);
            command
        } else {
            let mut command = lab.guest.command(&lab.host, program);
            command.args(arguments);
            command
        };
        self.started += 1;
        Job::start(
            command,
            self.dir.path(),
            &format!("{}-{end:?}", self.started),
        )
    }

    fn address(&self, end: End) -> IpAddr {
        match self.is_here(end) {
            true => self.lab.host.address(self.meeting.family),
            false => self.lab.guest.address(self.meeting.family),
        }
    }

    fn free_port(&self) -> Verdict<u16> {
        match self.meeting.server {
            Server::Sluice => Ok(self.lab.host.free_port(Protocol::Tcp)?),
            // Nobody else listens in the guest.
            Server::Kernel => Ok(18701),
        }
    }

    fn await_listener(&mut self, server: &mut Job, space: PortSpace, port: u16) -> Verdict {
        let lab: &Stranger = &self.lab;
        match self.meeting.server {
            Server::Sluice => server.await_ready(LIMIT, "rdma_cm listener", || {
                cm::listens(lab.host.runtime(), space, port)
            }),
            Server::Kernel => lab
                .guest
                .await_rdma_listener(&lab.host, server, port, LIMIT),
        }
    }

    fn await_member(&mut self, receiver: &mut Job, group: IpAddr) -> Verdict {
        let lab: &Stranger = &self.lab;
        receiver.await_ready(LIMIT, "member of the group", || {
            let is_member = match self.meeting.server {
                Server::Sluice => lab.host.is_member(group).map_err(Into::into),
                Server::Kernel => lab.guest.is_member(&lab.host, group),
            };
            is_member.unwrap_or(false)
        })
    }

    fn await_datagrams(&mut self, server: &mut Job, port: u16) -> Verdict {
        let lab: &Stranger = &self.lab;
        let (udp, limit) = (Protocol::Udp, LIMIT);
        match self.meeting.server {
            Server::Sluice => lab.host.await_listener(server, udp, port, limit),
            Server::Kernel => lab
                .guest
                .await_listener(&lab.host, server, udp, port, limit),
        }
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn limit(&self) -> Duration {
        LIMIT
    }
}
