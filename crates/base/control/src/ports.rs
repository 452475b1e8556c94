//! Sets of TCP ports, as users write them: `443,8000-8080`.

use core::fmt;

/// Ranges in one set.
pub const RANGES_MAX: usize = 32;

/// A set of ports; at most [`RANGES_MAX`] ranges of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ports {
    /// First and last port.
    ranges: [(u16, u16); RANGES_MAX],
    count: usize,
}

/// Why a text is not a set of ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortsError {
    /// A part is no number from 1 to 65535, and no two of them with a `-` between.
    Part,
    /// The first port of a range is above its last.
    Order,
    /// More than [`RANGES_MAX`] parts.
    Count,
}

impl fmt::Display for PortsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Part => f.write_str("ports are numbers from 1 to 65535, as in 443,8000-8080"),
            Self::Order => f.write_str("a range begins with its lower port"),
            Self::Count => write!(f, "at most {RANGES_MAX} ports and ranges"),
        }
    }
}

impl core::error::Error for PortsError {}

impl Ports {
    /// Reads a set. Spaces around its parts do not count.
    pub fn parse(text: &str) -> Result<Self, PortsError> {
        let mut ports = Self {
            ranges: [(0, 0); RANGES_MAX],
            count: 0,
        };
        for part in text.split(',') {
            let (first, last) = match part.split_once('-') {
                Some((first, last)) => (port(first)?, port(last)?),
                None => (port(part)?, port(part)?),
            };
            if first > last {
                return Err(PortsError::Order);
            }
            *ports.ranges.get_mut(ports.count).ok_or(PortsError::Count)? = (first, last);
            ports.count += 1;
        }
        Ok(ports)
    }

    /// Whether the port is one of them.
    pub fn contains(&self, port: u16) -> bool {
        self.ranges
            .iter()
            .take(self.count)
            .any(|(first, last)| (*first..=*last).contains(&port))
    }
}

/// The set as [`Ports::parse`] reads it.
impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (first, last)) in self.ranges.iter().take(self.count).enumerate() {
            let comma = if at == 0 { "" } else { "," };
            if first == last {
                write!(f, "{comma}{first}")?;
            } else {
                write!(f, "{comma}{first}-{last}")?;
            }
        }
        Ok(())
    }
}

fn port(text: &str) -> Result<u16, PortsError> {
    match text.trim().parse() {
        Ok(0) | Err(_) => Err(PortsError::Part),
        Ok(port) => Ok(port),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_and_ranges_are_read() {
        let ports = Ports::parse("443, 8000-8080,65535").unwrap();
        for (port, is_in) in [
            (442, false),
            (443, true),
            (444, false),
            (7999, false),
            (8000, true),
            (8080, true),
            (8081, false),
            (65535, true),
        ] {
            assert_eq!(ports.contains(port), is_in, "{port}");
        }
        assert_eq!(ports.to_string(), "443,8000-8080,65535");
        assert_eq!(Ports::parse(&ports.to_string()), Ok(ports));
    }

    #[test]
    fn what_is_no_port_is_refused() {
        for text in ["", "0", "http", "1,,2", "65536", "-5", "5-", "1-2-3"] {
            assert_eq!(Ports::parse(text), Err(PortsError::Part), "{text:?}");
        }
        assert_eq!(Ports::parse("9-8"), Err(PortsError::Order));
        let many = ["7"; RANGES_MAX].join(",");
        assert!(Ports::parse(&many).is_ok());
        assert_eq!(Ports::parse(&(many + ",7")), Err(PortsError::Count));
    }
}
