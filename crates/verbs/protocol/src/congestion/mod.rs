//! Congestion control: DCQCN (Zhu et al., "Congestion Control for Large-Scale RDMA Deployments",
//! SIGCOMM 2015), with notification packets as in IBTA annex A17.9.
//!
//! Routers mark packets ([`sluice_wire::Ecn::Congestion`]). Who receives marked packets notifies
//! their sender, at most once in [`NOTIFICATION_INTERVAL`] ([`Notifier`]). The sender slows down
//! ([`Rate`]) and spreads its packets over time ([`Pacer`]).

mod pacer;
mod rate;

use core::time::Duration;

use sluice_wire::{Ecn, Qpn, cnp};

pub use pacer::Pacer;
pub use rate::{Rate, RateConfig};

use crate::time::{Instant, nanos};
use crate::transmit::{Payload, Transmit};

/// The least time between two notifications of one connection: N of the paper, §5.2, which found
/// that shorter ones do not help, and ConnectX cannot make more.
pub const NOTIFICATION_INTERVAL: Duration = Duration::from_micros(50);

/// The notification point.
#[derive(Clone, Debug, Default)]
pub struct Notifier {
    last: Option<Instant>,
    due: bool,
}

impl Notifier {
    /// A packet came whose IP header says this.
    pub fn received(&mut self, now: Instant, ecn: Ecn) {
        let quiet = self
            .last
            .is_none_or(|last| now.nanos_since(last) >= nanos(NOTIFICATION_INTERVAL));
        if ecn == Ecn::Congestion && quiet {
            self.last = Some(now);
            self.due = true;
        }
    }

    /// A notification is to be sent.
    pub const fn is_due(&self) -> bool {
        self.due
    }

    /// That notification.
    pub fn transmit(&mut self, destination: Qpn, pkey: u16) -> Option<Transmit> {
        core::mem::take(&mut self.due).then(|| Transmit {
            headers: cnp::headers(destination, pkey),
            payload: Payload::Notification,
            ecn: Ecn::NotCapable,
        })
    }
}

/// What a connection has of all this.
#[derive(Clone, Debug)]
pub(crate) struct Congestion {
    pub notifier: Notifier,
    rate: Option<Rate>,
    pacer: Pacer,
}

impl Congestion {
    /// None: as fast as it goes, whatever the network says.
    pub fn new(config: Option<RateConfig>) -> Self {
        Self {
            notifier: Notifier::default(),
            rate: config.map(Rate::new),
            pacer: Pacer::default(),
        }
    }

    /// The peer says that packets of ours were marked.
    pub fn notified(&mut self, now: Instant) {
        if let Some(rate) = &mut self.rate {
            rate.notified(now);
        }
    }

    /// Data may be sent now.
    pub fn may_send(&self, now: Instant) -> bool {
        self.pacer.ready_at() <= now
    }

    /// When it may be.
    pub fn ready_at(&self) -> Instant {
        self.pacer.ready_at()
    }

    /// Data was sent.
    pub fn sent(&mut self, now: Instant, bytes: u32) {
        if let Some(rate) = &mut self.rate {
            rate.sent(now, bytes);
            if let Some(limit) = rate.limit() {
                self.pacer.sent(now, bytes, limit);
            }
        }
    }

    /// Bytes per second; None without a limit.
    pub fn limit(&self) -> Option<u64> {
        self.rate.as_ref().and_then(Rate::limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches: a notification for each marked packet, or for packets that were not marked.
    #[test]
    fn marks_are_notified_once_in_a_while() {
        let mut notifier = Notifier::default();
        let mut sent = 0;
        for micros in 0..1000 {
            notifier.received(Instant::from_nanos(micros * 1000), Ecn::Congestion);
            notifier.received(Instant::from_nanos(micros * 1000), Ecn::Capable0);
            sent += u32::from(notifier.transmit(Qpn::new(3), 0xffff).is_some());
        }
        assert_eq!(sent, 20);
        let mut notifier = Notifier::default();
        notifier.received(Instant::default(), Ecn::Capable0);
        assert!(!notifier.is_due());
    }
}
