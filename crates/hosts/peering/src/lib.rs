//! How the sluiced of one host finds those of others and talks to them.
//!
//! [`Config`] is the configuration file, [`Identity`] what its key or certificate files have, and
//! [`Peering`] all sessions with peers: authenticated and encrypted (TLS 1.3), driven by the
//! daemon's one thread, and bounded in everything that peers or strangers can make it hold.
//!
//! ```no_run
//! use std::path::Path;
//! use std::time::Instant;
//! use sluice_peering::{Config, Event, Identity, Peering};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let config = Config::load(Path::new("/etc/sluice/sluiced.toml"))?;
//! let identity = Identity::load(&config)?;
//! let mut peering = Peering::new(config, identity)?;
//! // Whenever peering.fd() is readable or peering.next_deadline() is there:
//! let mut events = Vec::new();
//! peering.advance(Instant::now(), &mut |event| events.push(event));
//! for event in events {
//!     if let Event::Message { peer, bytes } = event {
//!         // Sent by the next advance, for which next_deadline asks at once.
//!         peering.send(peer, &bytes)?;
//!     }
//! }
//! # Ok(())
//! # }
//! ```

#[cfg(feature = "authority")]
pub mod authority;
mod channel;
mod check;
pub mod config;
mod event;
pub mod frame;
pub mod hello;
mod identity;
pub mod limits;
mod peering;
mod places;
mod proof;
mod secret;
mod strangers;
mod tls;

pub use config::{Changes, Config, ConfigError, PORT_DEFAULT};
pub use event::{Event, PeerId, Why};
pub use frame::MESSAGE_BYTES_MAX;
pub use hello::{VERSIONS, Versions};
pub use identity::{Identity, IdentityError};
pub use peering::{Counters, PeerStatus, Peering, PeeringError, SendError, Sought};
pub use proof::{Binding, PROOF_BYTES};
pub use secret::{PSK_BYTES, SecretError, generate_psk};
pub use tls::Method;
