//! Publications in a file beside the control socket: what listens goes on listening when the daemon
//! ends, and nobody would tell the next one.

use std::fs;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use serde::{Deserialize, Serialize};
use sluice_control::preface::Key;

use super::PeerName;
use super::node::{Listening, Publication};
use super::words::PublicationId;

/// A longer file is nobody's.
const BYTES_MAX: u64 = 64 << 20;

#[derive(Debug, Serialize, Deserialize)]
struct File {
    /// `/proc/sys/kernel/random/boot_id`: cookies are counted anew from boot to boot.
    boot: String,
    publications: Vec<Kept>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Kept {
    id: u64,
    gateway: String,
    address: SocketAddr,
    only_v6: bool,
    /// `SO_COOKIE` of the sockets.
    cookies: Vec<u64>,
    key: [u8; 32],
    /// Whose share it counts for.
    #[serde(default)]
    user: Option<u32>,
    /// Whose key it is.
    #[serde(default)]
    key_of: Option<u32>,
}

/// What an earlier daemon has left; nothing if that cannot be read, or is another user's.
pub(super) fn read(path: &Path) -> Vec<Publication> {
    let read = || -> io::Result<Vec<Kept>> {
        let meta = fs::symlink_metadata(path)?;
        let own = sluice_sys::unix::effective_uid();
        if !meta.is_file()
            || meta.uid() != own
            || meta.mode() & 0o077 != 0
            || meta.len() > BYTES_MAX
        {
            return Err(io::Error::other("it is not a file of this user's alone"));
        }
        let file: File = serde_json::from_slice(&fs::read(path)?)?;
        let is_current = file.boot == boot()?;
        Ok(if is_current {
            file.publications
        } else {
            Vec::new()
        })
    };
    match read() {
        Ok(kept) => kept.into_iter().map(publication).collect(),
        Err(error) => {
            if error.kind() != io::ErrorKind::NotFound {
                tracing::warn!("{}: {error}", path.display());
            }
            Vec::new()
        }
    }
}

fn publication(kept: Kept) -> Publication {
    let listening = Listening {
        address: kept.address,
        only_v6: kept.only_v6,
        cookie: 0,
    };
    let mut publication = Publication::earlier(
        PublicationId(kept.id),
        PeerName::from(kept.gateway),
        listening,
        kept.cookies,
        Key(kept.key),
    );
    publication.payer = kept.user;
    // An earlier version counted for whoever it was, and for nobody where that was root or its own user.
    let earlier = kept
        .user
        .or_else(|| Some(sluice_sys::unix::effective_uid()));
    publication.user = kept.key_of.or(earlier);
    publication
}

/// Puts these in its place; without any, there is no file.
pub(super) fn write(path: &Path, all: &[Publication]) -> io::Result<()> {
    if all.is_empty() {
        return match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        };
    }
    let kept: Vec<Kept> = all
        .iter()
        .map(|it| Kept {
            id: it.id.0,
            gateway: it.gateway.to_string(),
            address: it.address,
            only_v6: it.only_v6,
            cookies: it.cookies.clone(),
            key: it.key.0,
            user: it.payer,
            key_of: it.user,
        })
        .collect();
    let fresh = path.with_extension("new");
    // Left by one that was killed here.
    let _ = fs::remove_file(&fresh);
    let mut options = fs::OpenOptions::new();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&fresh)?;
    let content = File {
        boot: boot()?,
        publications: kept,
    };
    file.write_all(&serde_json::to_vec(&content)?)?;
    drop(file);
    fs::rename(&fresh, path)
}

fn boot() -> io::Result<String> {
    fs::read_to_string("/proc/sys/kernel/random/boot_id")
}
