//! What each kind of `sluice bench` runs, and by which floors it judges that.

use super::model::WorkloadReport;
use super::network::{self, twins};
use super::verdict::{self, Verdict};
use super::workloads::{self, Workload, fabric, iwarp, roce, rxe, verbs, windows};

/// Workloads that are run, judged and reported together.
pub struct Suite {
    /// What the JSON file says.
    pub name: &'static str,
    pub title: &'static str,
    /// What the page says of CPU costs, if there are any: a sentence and a space.
    pub about_costs: &'static str,
    /// What the floors are, behind "The floors, ".
    pub floors: &'static str,
    /// The folder of the report, unless another is named.
    pub folder: &'static str,
    pub workloads: &'static [Workload],
    /// Why none of them can be run here.
    pub obstacle: Option<fn() -> Option<String>>,
    pub verdicts: fn(&[WorkloadReport]) -> Vec<Verdict>,
}

/// What a plain `sluice bench` runs.
pub static SOCKETS: Suite = Suite {
    name: "sockets",
    title: "sluice bench",
    about_costs: "CPU costs are user and system time of server, client and sluiced together. ",
    floors: "as ratios to kernel TCP in this run unless a unit is given",
    folder: "sluice-bench",
    workloads: &workloads::ALL,
    obstacle: None,
    verdicts: verdict::verdicts,
};

/// What `sluice bench verbs` runs.
pub static VERBS: Suite = Suite {
    name: "verbs",
    title: "sluice bench verbs",
    about_costs: "",
    floors: "all of them within one host",
    folder: "sluice-bench-verbs",
    workloads: &verbs::ALL,
    obstacle: None,
    verdicts: verdict::verbs::within_host,
};

/// What `sluice bench roce` runs.
pub static ROCE: Suite = Suite {
    name: "roce",
    title: "sluice bench roce",
    about_costs: "CPU costs are user and system time of both programs and of the kernel's threads \
                  that carry frames. ",
    floors: "between two network namespaces joined by a veth pair",
    folder: "sluice-bench-roce",
    workloads: &roce::ALL,
    obstacle: Some(network::obstacle),
    verdicts: verdict::verbs::between_hosts,
};

/// What `sluice bench iwarp` runs.
pub static IWARP: Suite = Suite {
    name: "iwarp",
    title: "sluice bench iwarp",
    about_costs: "CPU costs are user and system time of both programs and of the kernel's threads \
                  that carry frames. ",
    floors: "between two network namespaces joined by a veth pair, as ratios to kernel TCP there",
    folder: "sluice-bench-iwarp",
    workloads: &iwarp::ALL,
    obstacle: Some(network::obstacle),
    verdicts: verdict::verbs::over_tcp,
};

/// What `sluice bench fabric` runs.
pub static FABRIC: Suite = Suite {
    name: "fabric",
    title: "sluice bench fabric",
    about_costs: "CPU costs are user and system time of both programs, both sluiced and the \
                  kernel's threads that carry frames. ",
    floors: "between two network namespaces joined by a veth pair, as ratios to kernel TCP there",
    folder: "sluice-bench-fabric",
    workloads: &fabric::ALL,
    obstacle: Some(network::obstacle),
    verdicts: verdict::fabric::across_hosts,
};

/// What `sluice bench windows` runs.
pub static WINDOWS: Suite = Suite {
    name: "windows",
    title: "sluice bench windows",
    about_costs: "CPU costs are user and system time of both programs, both sluiced and the \
                  kernel's threads that carry frames. ",
    floors: "between two network namespaces joined by a veth pair and by memory that both share, as \
             ratios to kernel TCP there unless a unit is given; the same floors hold for delayed memory \
             where none is named for it",
    folder: "sluice-bench-windows",
    workloads: &windows::ALL,
    obstacle: Some(network::obstacle),
    verdicts: verdict::windows::shared_memory,
};

/// What `sluice bench rxe` runs.
pub static RXE: Suite = Suite {
    name: "rxe",
    title: "sluice bench rxe",
    about_costs: "",
    floors: "each better than the kernel's own RoCEv2 in this run",
    folder: "sluice-bench-rxe",
    workloads: &rxe::ALL,
    obstacle: Some(twins::obstacle),
    verdicts: verdict::verbs::against_kernel,
};

impl std::fmt::Debug for Suite {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

impl serde::Serialize for Suite {
    fn serialize<S: serde::Serializer>(
        &self,
        serializer: S,
    ) -> std::result::Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name)
    }
}
