//! Figures for Prometheus: what there is to say ([`collect`]), how it is written ([`text`]), and who
//! hands it out ([`exporter`]).

pub mod collect;
pub mod exporter;
mod request;
pub mod text;

/// What a figure does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows, until sluiced is started again.
    Counter,
    /// Goes up and down.
    Gauge,
}

/// One figure, for each of its labels.
#[derive(Clone, Debug, PartialEq)]
pub struct Family {
    /// With its unit, if it has one, and without `_total`.
    pub name: &'static str,
    pub help: &'static str,
    pub kind: Kind,
    /// A base unit (`bytes`, `seconds`), which is the end of the name, too; empty for counts.
    pub unit: &'static str,
    pub samples: Vec<Sample>,
}

/// One value.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    pub labels: Vec<(&'static str, String)>,
    pub value: f64,
}

impl Family {
    /// Something that is counted.
    pub fn counter(name: &'static str, help: &'static str) -> Self {
        Self::new(name, help, Kind::Counter)
    }

    /// Something that is measured.
    pub fn gauge(name: &'static str, help: &'static str) -> Self {
        Self::new(name, help, Kind::Gauge)
    }

    fn new(name: &'static str, help: &'static str, kind: Kind) -> Self {
        let unit = ["bytes", "seconds"]
            .into_iter()
            .find(|unit| name.ends_with(unit));
        Self {
            name,
            help,
            kind,
            unit: unit.unwrap_or(""),
            samples: Vec::new(),
        }
    }

    /// With this value, which has no labels.
    #[must_use]
    pub fn value(self, value: f64) -> Self {
        self.with(Vec::new(), value)
    }

    /// With a count for each of these values of a label.
    #[must_use]
    pub fn by<const N: usize>(self, label: &'static str, counts: [(&str, u64); N]) -> Self {
        counts.into_iter().fold(self, |family, (value, count)| {
            family.with(vec![(label, value.to_owned())], count as f64)
        })
    }

    /// With one more value.
    #[must_use]
    pub fn with(mut self, labels: Vec<(&'static str, String)>, value: f64) -> Self {
        self.samples.push(Sample { labels, value });
        self
    }
}
