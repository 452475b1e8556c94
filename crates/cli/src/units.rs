//! Numbers as a person reads them.

/// Bytes in at most five columns: `0`, `999`, `1.0K`, `12M`, `3.4G`. A K is 1,024.
pub fn bytes(count: u64) -> String {
    scaled(count, 1024, &["", "K", "M", "G", "T", "P", "E"])
}

/// A count in at most five columns: `999`, `1.0k`, `12M`. A k is 1,000.
pub fn count(count: u64) -> String {
    scaled(count, 1000, &["", "k", "M", "G", "T", "P", "E"])
}

/// Bytes as a person writes them: `4096`, `64K`, `16M`, `1G`. A K is 1,024.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let factor = match text[digits.len()..].to_ascii_uppercase().as_str() {
        "" | "B" => 1,
        "K" | "KIB" => 1 << 10,
        "M" | "MIB" => 1 << 20,
        "G" | "GIB" => 1 << 30,
        "T" | "TIB" => 1_u64 << 40,
        unit => return Err(format!("{unit} is no unit of bytes: use K, M, G or T")),
    };
    let number: u64 = digits
        .parse()
        .map_err(|_| "give a number of bytes, such as 64M".to_owned())?;
    number
        .checked_mul(factor)
        .ok_or_else(|| "that is more than there is".to_owned())
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

/// Nanoseconds, as microseconds: `0.42 µs`.
pub fn micros(nanoseconds: u64) -> String {
    format!("{:.2} µs", nanoseconds as f64 / 1000.0)
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
    fn sizes_are_read_as_they_are_written() {
        for (text, value) in [
            ("0", 0),
            ("4096", 4096),
            ("64k", 64 << 10),
            ("16M", 16 << 20),
            ("1GiB", 1 << 30),
        ] {
            assert_eq!(parse_bytes(text), Ok(value));
        }
        for text in ["", "M", "-1", "1.5M", "16X", "99999999T", "1 M"] {
            assert!(parse_bytes(text).is_err(), "{text}");
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
