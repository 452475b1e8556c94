//! Figures as a person reads them, in tables, plots and floors alike.

/// Three or four significant digits, thousands apart.
pub fn number(value: f64) -> String {
    let decimals = match value.abs() {
        v if v >= 100.0 || v == 0.0 => 0,
        v if v >= 10.0 => 1,
        v if v >= 1.0 => 2,
        _ => 3,
    };
    let plain = format!("{value:.decimals$}");
    let (whole, fraction) = match plain.find('.') {
        Some(point) => plain.split_at(point),
        None => (plain.as_str(), ""),
    };
    let mut grouped = String::new();
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index).is_multiple_of(3) && !grouped.ends_with('-') {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped + fraction
}

/// What stands for a figure that is missing.
pub fn dash() -> String {
    "–".to_owned()
}

/// A ratio that may be missing.
pub fn ratio(ratio: Option<f64>) -> String {
    ratio.map_or_else(dash, |ratio| {
        if ratio >= 10.0 {
            format!("{ratio:.1}×")
        } else {
            format!("{ratio:.2}×")
        }
    })
}

/// `1 client`, `2 clients`.
pub fn counted(number: u32, noun: &str) -> String {
    let ending = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{ending}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_their_significant_digits() {
        assert_eq!(number(70_422.54), "70,423");
        assert_eq!(number(1_234_567.0), "1,234,567");
        assert_eq!(number(123.4), "123");
        assert_eq!(number(16.53), "16.5");
        assert_eq!(number(0.0625), "0.062");
        assert_eq!(number(0.0), "0");
        assert_eq!(number(-123.0), "-123");
    }
}
