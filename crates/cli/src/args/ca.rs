//! The command line of `sluice ca`.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use clap::{Args, Subcommand};
use sluice_peering::PORT_DEFAULT;
use sluice_peering::limits::DAYS_MAX;

/// Makes keys and certificates, by which the daemons of several hosts know each other.
///
/// One host keeps the authority. It makes a folder for each host, with a configuration that names what
/// is in it; the folder's files go to /etc/sluice of that host. Nothing that is there is overwritten.
#[derive(Debug, Args)]
pub struct CaArgs {
    #[command(subcommand)]
    pub command: CaCommand,
}

#[derive(Debug, Subcommand)]
pub enum CaCommand {
    /// Make an authority: DIR/ca.key, which stays here, and DIR/ca.pem
    Create {
        /// A folder, which is made if it is missing
        #[arg(value_name = "DIR")]
        directory: PathBuf,
    },
    /// Make what a host is to have in /etc/sluice, in the folder DIR/NAME
    Host(CaHostArgs),
    /// Make a key that all daemons have, for psk_file in place of certificates
    Key {
        /// The file, which must not be there
        file: PathBuf,
    },
}

#[derive(Debug, Args)]
pub struct CaHostArgs {
    /// The authority's folder
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,

    /// What the host's daemon calls itself: letters a-z, digits, "-" and "_", with dots between
    pub name: String,

    /// Days that the certificate is valid
    #[arg(long, value_name = "N", default_value_t = 1_095, value_parser = clap::value_parser!(u32).range(1..=i64::from(DAYS_MAX)))]
    pub days: u32,

    /// A host to keep a connection to, and where its daemon listens; may be given several times.
    /// Without any, hosts find each other on networks that are not the internet's
    #[arg(long = "peer", value_name = "NAME=ADDRESS", value_parser = peer)]
    pub peers: Vec<(String, SocketAddr)>,
}

fn peer(text: &str) -> Result<(String, SocketAddr), String> {
    let bad =
        || format!("write a name and an address: beta=10.0.0.2 or beta=10.0.0.2:{PORT_DEFAULT}");
    let (name, address) = text.split_once('=').ok_or_else(bad)?;
    if let Ok(address) = address.parse::<SocketAddr>() {
        return Ok((name.to_owned(), address));
    }
    let address: IpAddr = address.parse().map_err(|_| bad())?;
    Ok((name.to_owned(), SocketAddr::new(address, PORT_DEFAULT)))
}
