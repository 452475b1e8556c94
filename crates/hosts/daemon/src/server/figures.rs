//! Figures for Prometheus.

use std::io;
use std::net::SocketAddr;

use rustix::event::epoll;

use super::{METRICS, Server};
use crate::fabric::Fabric;
use crate::metrics::collect;
use crate::metrics::exporter::Exporter;

impl Server {
    /// Lets whoever can reach this address have figures, over HTTP. Where it listens: the kernel
    /// chooses a port for 0.
    ///
    /// # Errors
    /// The address cannot be listened at.
    pub fn serve_metrics(&mut self, address: SocketAddr) -> io::Result<SocketAddr> {
        let exporter = Exporter::start(address)?;
        let data = epoll::EventData::new_u64(METRICS);
        epoll::add(&self.poll, exporter.wanted(), data, epoll::EventFlags::IN)?;
        let address = exporter.address();
        tracing::info!(%address, "figures for Prometheus are at http://{address}/metrics");
        self.exporter = Some(exporter);
        Ok(address)
    }

    pub(super) fn give_figures(&mut self) {
        let Some(exporter) = self.exporter.take() else {
            return;
        };
        exporter.answer(|| {
            let mut seen = std::mem::take(&mut self.seen);
            let figures = seen.figures(&self.figures_of_now());
            self.seen = seen;
            figures
        });
        self.exporter = Some(exporter);
    }

    fn figures_of_now(&self) -> collect::Sources<'_> {
        let sources = self.sources(|_| true);
        let listing = sources.listing();
        collect::Sources {
            started: self.started_at,
            programs: sources.shown.len(),
            lanes: &self.lanes,
            ends_announced: self.matcher.len(),
            counters: &self.counters,
            tables: listing.tables,
            processes: listing.processes,
            fabric: self.fabric.as_ref().map(Fabric::report),
        }
    }
}
