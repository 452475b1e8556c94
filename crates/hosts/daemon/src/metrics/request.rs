//! The part of HTTP/1.1 (RFC 9112) that a scrape needs: one GET, one answer, and the connection
//! ends.

use super::text::Format;

/// What was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// `GET /metrics`, or `HEAD`.
    Metrics { format: Format, has_body: bool },
    /// `GET /healthz`, or `HEAD`: does the daemon work?
    Health { has_body: bool },
    /// To be answered with this status.
    Wrong(&'static str),
}

/// Reads a request. `None`: it is not complete.
pub fn parse(bytes: &[u8]) -> Option<Request> {
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")?;
    let head = bytes.get(..end)?;
    let Ok(head) = std::str::from_utf8(head) else {
        return Some(Request::Wrong("400 Bad Request"));
    };
    let mut lines = head.split("\r\n");
    let words: Vec<&str> = lines.next().unwrap_or_default().split(' ').collect();
    let &[method, target, version] = words.as_slice() else {
        return Some(Request::Wrong("400 Bad Request"));
    };
    if !version.starts_with("HTTP/1.") {
        return Some(Request::Wrong("505 HTTP Version Not Supported"));
    }
    let has_body = match method {
        "GET" => true,
        "HEAD" => false,
        _ => return Some(Request::Wrong("405 Method Not Allowed")),
    };
    match target.split('?').next() {
        Some("/metrics") => {}
        Some("/healthz") => return Some(Request::Health { has_body }),
        _ => return Some(Request::Wrong("404 Not Found")),
    }
    let accept = lines.filter_map(|line| line.split_once(':'));
    let accept = accept.filter(|(name, _)| name.eq_ignore_ascii_case("accept"));
    let ranges = accept.flat_map(|(_, value)| value.split(','));
    let (mut plain, mut open) = (0.0, 0.0);
    for range in ranges {
        let mut parts = range.split(';').map(str::trim);
        let kind = parts.next().unwrap_or_default().to_ascii_lowercase();
        let quality = parts.find_map(|part| part.strip_prefix("q="));
        let quality: f64 = quality.map_or(1.0, |q| q.parse().unwrap_or(0.0));
        match kind.as_str() {
            "application/openmetrics-text" => open = quality.max(open),
            "text/plain" | "text/*" | "*/*" => plain = quality.max(plain),
            _ => {}
        }
    }
    let format = if open > 0.0 && open >= plain {
        Format::OpenMetrics
    } else {
        Format::Prometheus
    };
    Some(Request::Metrics { format, has_body })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get(accept: &str) -> Option<Request> {
        parse(format!("GET /metrics HTTP/1.1\r\nHost: a\r\n{accept}\r\n").as_bytes())
    }

    #[test]
    fn the_format_is_what_the_scraper_likes_best() {
        let format = |accept: &str| match get(accept) {
            Some(Request::Metrics { format, .. }) => format,
            other => panic!("{other:?}"),
        };
        assert_eq!(format(""), Format::Prometheus);
        assert_eq!(format("Accept: */*\r\n"), Format::Prometheus);
        // Prometheus 2.42.
        let of_prometheus = "Accept: application/openmetrics-text;version=1.0.0,\
                             application/openmetrics-text;version=0.0.1;q=0.75,\
                             text/plain;version=0.0.4;q=0.5,*/*;q=0.1\r\n";
        assert_eq!(format(of_prometheus), Format::OpenMetrics);
        let plain = "accept: application/openmetrics-text;q=0.1,text/plain\r\n";
        assert_eq!(format(plain), Format::Prometheus);
        let never = "Accept: application/openmetrics-text;q=x\r\n";
        assert_eq!(format(never), Format::Prometheus);
    }

    #[test]
    fn health_is_asked_for_by_its_path() {
        let asked = |line: &str| parse(format!("{line} HTTP/1.1\r\n\r\n").as_bytes());
        let health = |has_body| Some(Request::Health { has_body });
        assert_eq!(asked("GET /healthz"), health(true));
        assert_eq!(asked("GET /healthz?verbose"), health(true));
        assert_eq!(asked("HEAD /healthz"), health(false));
        let other = Some(Request::Wrong("404 Not Found"));
        assert_eq!(asked("GET /healthz/x"), other);
    }

    #[test]
    fn what_is_no_scrape_is_told_so() {
        assert_eq!(parse(b"GET /metrics HTTP/1.1\r\nHost"), None);
        for (text, status) in [
            ("POST /metrics HTTP/1.1", "405"),
            ("GET / HTTP/1.1", "404"),
            ("GET /metrics HTTP/2.0", "505"),
            ("GET  /metrics HTTP/1.1", "400"),
            ("\u{fffd}", "400"),
        ] {
            let parsed = parse(format!("{text}\r\n\r\n").as_bytes());
            match parsed {
                Some(Request::Wrong(answer)) => assert!(answer.starts_with(status), "{text}"),
                other => panic!("{text}: {other:?}"),
            }
        }
        assert_eq!(
            parse(b"\xff\xfe\r\n\r\n"),
            Some(Request::Wrong("400 Bad Request"))
        );
    }
}
