//! Medians, quartiles, and ratios of runs that belong together.

use serde::Serialize;

/// The ratios of runs of one variant to the TCP runs of the same repetitions.
///
/// A machine that is busy for a minute slows both runs of a pair, so that their ratio says more
/// than the ratio of two medians that were taken over the whole time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct PairedRatio {
    pub median: f64,
    pub lower_quartile: f64,
    pub upper_quartile: f64,
    pub min: f64,
    pub max: f64,
    pub pairs: usize,
}

impl PairedRatio {
    /// Summarises the ratios of single pairs; `None` if there are none.
    pub fn of(ratios: &[f64]) -> Option<Self> {
        Some(Self {
            median: quantile(ratios, 0.5)?,
            lower_quartile: quantile(ratios, 0.25)?,
            upper_quartile: quantile(ratios, 0.75)?,
            min: quantile(ratios, 0.0)?,
            max: quantile(ratios, 1.0)?,
            pairs: ratios.len(),
        })
    }
}

/// The middle of `values`; the mean of the two middle ones if their number is even.
pub fn median(values: &[f64]) -> Option<f64> {
    quantile(values, 0.5)
}

/// The value below which the share `share` (0 to 1) of `values` lies, interpolated between its
/// two neighbours.
fn quantile(values: &[f64], share: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let place = share * sorted.len().checked_sub(1)? as f64;
    let lower = *sorted.get(place.floor() as usize)?;
    let upper = *sorted.get(place.ceil() as usize)?;
    Some(lower + (upper - lower) * place.fract())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_is_the_middle_and_not_the_mean() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[9.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 100.0]), Some(3.0));
    }

    #[test]
    fn quartiles_hold_the_middle_half() {
        let ratio = PairedRatio::of(&[5.0, 1.0, 2.0, 4.0, 3.0]).expect("five ratios");
        assert_eq!((ratio.lower_quartile, ratio.upper_quartile), (2.0, 4.0));
        assert_eq!((ratio.min, ratio.max, ratio.pairs), (1.0, 5.0, 5));
        assert_eq!(PairedRatio::of(&[]), None);
    }
}
