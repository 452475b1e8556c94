//! Only one of the two programs under `sluice run`: connections stay on TCP and must not suffer.

use super::beside::Beside;
use super::{Cell, Options, Workload, redis};
use crate::model::{PointSpec, Variant};

pub(super) const WORKLOAD: Workload = Workload {
    name: "one-end",
    title: "Only one end under sluice run",
    about: "The redis workload with only the server or only the client accelerated. No lane can \
            form; what remains is the cost of the library. Three times the \
            repetitions, because differences of a few percent matter here; each run is compared \
            with the plain one of the same repetition, and the ratio is the median of these.",
    programs: &["redis-server", "redis-benchmark"],
    compared_with: &[],
    obstacle: None,
    cells,
};

const CLIENTS: [u32; 2] = [10, 50];

fn cells(options: &Options) -> Vec<Cell> {
    // The variants of this workload are not on the command line: they are what it is about.
    let mut variants = vec![Variant::Tcp];
    if options.variants.contains(&Variant::Sluice) {
        variants.extend([Variant::ServerOnly, Variant::ClientOnly]);
    }
    let cell = |clients: u32| {
        let tests = vec!["set".to_owned(), "get".to_owned()];
        Cell {
            title: format!("one end, {clients} clients"),
            variants: variants.clone(),
            repetitions: options.repetitions * 3,
            points: redis::points(&tests, clients)
                .into_iter()
                // Three rows are no curve.
                .map(|point| PointSpec {
                    x: None,
                    paired: true,
                    baseline: Variant::Tcp,
                    ..point
                })
                .collect(),
            run: Box::new(move |session, variant| {
                redis::measure(session, variant, clients, &tests, &Beside::nothing())
            }),
        }
    };
    CLIENTS.into_iter().map(cell).collect()
}
