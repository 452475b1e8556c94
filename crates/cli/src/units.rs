//! Numbers as a person reads them.

/// Bytes in at most five columns: `0`, `999`, `1.0K`, `12M`, `3.4G`. A K is 1,024.
pub fn bytes(count: u64) -> String {
    scaled(count, 1024, &["", "K", "M", "G", "T", "P", "E"])
}

/// A count in at most five columns: `999`, `1.0k`, `12M`. A k is 1,000.
pub fn count(count: u64) -> String {
    scaled(count, 1000, &["", "k", "M", "G", "T", "P", "E"])
}

fn scaled(value: u64, base: u64, units: &[&str]) -> String {
    let mut unit = 0;
    let mut divisor = 1_u64;
    while unit + 1 < units.len() && value / divisor >= base {
        divisor *= base;
        unit += 1;
    }
    if unit == 0 {
        return value.to_string();
    }
    let tenths = u128::from(value) * 10 / u128::from(divisor);
    if tenths < 100 {
        format!("{}.{}{}", tenths / 10, tenths % 10, units[unit])
    } else {
        format!("{}{}", tenths / 10, units[unit])
    }
}

/// A time span in two parts at most: `45s`, `3m05s`, `2h10m`, `4d3h`.
pub fn seconds(total: u64) -> String {
    let (minutes, hours, days) = (total / 60, total / 3600, total / 86_400);
    match total {
        0..60 => format!("{total}s"),
        60..3600 => format!("{minutes}m{:02}s", total % 60),
        3600..86_400 => format!("{hours}h{:02}m", minutes % 60),
        _ => format!("{days}d{}h", hours % 24),
    }
}

/// `1 connection`, `2 connections`, `2 processes`.
pub fn plural(number: u64, noun: &str) -> String {
    let ending = match noun {
        _ if number == 1 => "",
        _ if noun.ends_with('s') || noun.ends_with("ch") => "es",
        _ => "s",
    };
    format!("{number} {noun}{ending}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_counts_fit_five_columns() {
        for (value, text) in [
            (0, "0"),
            (1023, "1023"),
            (1024, "1.0K"),
            (10 * 1024 - 1, "9.9K"),
            (10 * 1024, "10K"),
            (1024 * 1024 - 1, "1023K"),
            (1024 * 1024, "1.0M"),
            (u64::MAX, "15E"),
        ] {
            assert_eq!(bytes(value), text);
            assert!(bytes(value).len() <= 5);
        }
    }

    #[test]
    fn counts_are_decimal() {
        assert_eq!(count(999), "999");
        assert_eq!(count(1000), "1.0k");
        assert_eq!(count(999_999), "999k");
        assert_eq!(count(u64::MAX), "18E");
    }

    #[test]
    fn nouns_follow_their_number() {
        assert_eq!(plural(1, "switch"), "1 switch");
        assert_eq!(plural(0, "process"), "0 processes");
        assert_eq!(plural(2, "lane"), "2 lanes");
    }

    #[test]
    fn time_spans_name_their_largest_parts() {
        assert_eq!(seconds(59), "59s");
        assert_eq!(seconds(185), "3m05s");
        assert_eq!(seconds(7800), "2h10m");
        assert_eq!(seconds(90_000 * 4), "4d4h");
    }
}
