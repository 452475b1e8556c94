//! Programs between two hosts, the server on the right one, as several suites run them.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use rustix::process::Signal;

use crate::apps::{self, BUILDS};
use crate::fleet::{Fleet, LIMIT};
use crate::hosts::ports::Protocol;
use crate::hosts::{Pair, Side};
use crate::job::Job;
use crate::programs::redis::Redis;
use crate::stream;
use crate::suite::Verdict;

/// redis and its clients, both under Sluice.
pub fn redis(two: &Fleet<Pair>) -> Verdict {
    let redis = Redis::find()?;
    let port = two.host(Side::Right).free_port(Protocol::Tcp)?;
    let at = SocketAddr::new(two.address(Side::Right), port);
    let command = two.program(Side::Right, true, &redis.server);
    let server = redis.serve(command, at, two.dir(), LIMIT)?;
    let client = |program: &Path| two.program(Side::Left, true, program);
    redis.exercise(client, at, two.address(Side::Left), two.dir(), LIMIT)?;
    let _ = server.stop(LIMIT)?;
    Ok(())
}

/// Connections that come and go at random, every byte checked (`tests/apps/churn.c`).
pub struct Churn {
    client: Job,
    server: Job,
}

impl Churn {
    pub fn start(
        two: &Fleet<Pair>,
        connections: u32,
        seconds: u32,
        may_be_cut: bool,
    ) -> Verdict<Churn> {
        const SEED: u32 = 1;
        let source = apps::apps_dir().join("churn.c");
        let binary = apps::compile(&source, BUILDS[0], two.dir())?;
        let mut command = two.program(Side::Right, true, &binary);
        command.arg("server");
        let mut server = two.start_program(command, "churn-server")?;
        let port = stream::await_port(&mut server, LIMIT)?;
        let mut command = two.program(Side::Left, true, &binary);
        command.arg("client");
        command.args([u32::from(port), connections, seconds, SEED].map(|word| word.to_string()));
        if may_be_cut {
            command.arg("cuts");
        }
        let client = two.start_program(command, "churn-client")?;
        Ok(Churn { client, server })
    }

    /// Waits for the client's opinion; the server goes on until it is killed.
    pub fn end(self, two: &Fleet<Pair>, limit: Duration) -> Verdict {
        let outcome = self.client.finish(limit)?.success();
        self.server.signal(Signal::KILL)?;
        let _ = self.server.finish(LIMIT)?;
        outcome.map_err(|problem| problem.with(|| two.describe()))?;
        Ok(())
    }
}
