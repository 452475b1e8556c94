//! `sluice window serve` is started anew and gives out other memory: both daemons join it, and connections in the memory
//! before go on.

use rustix::process::Signal;
use serde_json::Value;
use sluice_tests::fleet::LIMIT;
use sluice_tests::hosts::{SIDES, Side};
use sluice_tests::stream::{self, Ends, Transfer};
use sluice_tests::suite::{Verdict, ensure};

use crate::stage::{CONNECTIONS, RECORDS, Stage};

/// Lanes in the memories of a window that are retired, the last one first.
fn retired(window: &Value) -> Vec<u64> {
    let all = window["retired"].as_array().into_iter().flatten();
    all.map(|memory| memory["lanes"].as_u64().unwrap_or(u64::MAX))
        .collect()
}

/// Twice: once the daemons go on, and once the one of this side is started anew behind it.
pub fn served(side: Side) -> Verdict {
    let mut stage = Stage::new(&["root"])?;
    let transfer = |records| Transfer {
        server: "thread",
        connections: CONNECTIONS,
        records,
    };
    let few = |stage: &Stage| stage.flow(transfer(RECORDS))?.check_complete(LIMIT);
    let Ends { client, server, .. } = stage.flow(transfer(0))?;
    let old = CONNECTIONS as u64;
    for side in SIDES {
        stage.await_lanes(side, old)?;
    }
    // Without a server both are in its memory, and lanes lie there.
    stage.kill_server()?;
    stage.await_state("without a server", |it| it["state"] == "no server")?;
    few(&stage)?;
    stage.await_state("as before", |it| it["lanes"] == old)?;
    // The next one has other memory.
    stage.serve_anew()?;
    stage.await_state("served", |it| it["state"] == "served")?;
    stage.await_window()?;
    few(&stage)?;
    stage.await_state("in both memories", |it| {
        it["lanes"] == 0 && it["lent_bytes"] == 0 && retired(it) == [old]
    })?;
    // The daemon of one host knows nothing of the memory before.
    stage.two.end(side, Signal::KILL)?;
    stage.two.start(side)?;
    stage.await_window()?;
    few(&stage)?;
    // The next server comes before anybody sees that the last one has gone.
    stage.kill_server()?;
    stage.serve_anew()?;
    stage.await_state("served", |it| it["state"] == "served")?;
    stage.await_window()?;
    few(&stage)?;
    // Nothing of the old connections is lost, and they were in use all the time.
    let _ = client.signal(Signal::KILL);
    let _ = client.finish(LIMIT)?;
    stream::check_cut(&server.finish(LIMIT)?.success()?, CONNECTIONS)?;
    stage.require_direct()?;
    stage.await_state("in one memory", |it| retired(it).is_empty())?;
    for side in SIDES {
        let log = stage.two.log(side);
        ensure(!log.contains("is in a window's memory"), || {
            format!("{side:?} says that it is in other memory\n{log}")
        })?;
    }
    stage.await_all_back()
}
