//! That the other side has the same key, shown on one TLS connection and worth nothing on another.
//!
//! Both ends of a TLS 1.3 connection can derive the same secret from it (RFC 8446 7.5), and nobody
//! who stands in between, with a connection to each, has the same one on both. As in RFC 9266 it
//! stands for the connection. A proof is HMAC-SHA-256 with the pre-shared key over that secret,
//! the side that proves, and all that it says of itself.

use ring::hmac;

use crate::secret::Psk;

/// Bytes of a proof.
pub const PROOF_BYTES: usize = 32;

/// Bytes of the secret that stands for a connection.
pub const EXPORTER_BYTES: usize = 32;

/// Under this name it is derived from the connection.
pub const EXPORTER_LABEL: &[u8] = b"EXPORTER-sluice-peering-psk";

/// Who proves. One side's proof is not the other's, so it cannot be sent back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The one that connected.
    Dialer,
    /// The one that accepted.
    Acceptor,
}

impl Side {
    fn label(self) -> &'static [u8] {
        match self {
            Self::Dialer => b"sluice peering 1 dialer\0",
            Self::Acceptor => b"sluice peering 1 acceptor\0",
        }
    }

    /// The other one.
    pub fn other(self) -> Side {
        match self {
            Self::Dialer => Self::Acceptor,
            Self::Acceptor => Self::Dialer,
        }
    }
}

/// The same for what is said in a session ([`Binding`]).
pub const BINDING_LABEL: &[u8] = b"EXPORTER-sluice-session";

/// A secret that the two ends of one session have, and nobody else: a code by it, passed on in another session, is
/// worth nothing there.
#[derive(Clone, PartialEq, Eq)]
pub struct Binding([u8; EXPORTER_BYTES]);

impl Binding {
    /// Of a session of which TLS has derived this under [`BINDING_LABEL`].
    pub fn new(exporter: [u8; EXPORTER_BYTES]) -> Binding {
        Binding(exporter)
    }

    /// HMAC-SHA-256 of what is said.
    pub fn code(&self, said: &[u8]) -> [u8; PROOF_BYTES] {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &self.0);
        let mut code = [0; PROOF_BYTES];
        code.copy_from_slice(hmac::sign(&key, said).as_ref());
        code
    }

    /// Whether this is the code of what is said.
    pub fn is_code(&self, said: &[u8], code: &[u8; PROOF_BYTES]) -> bool {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &self.0);
        hmac::verify(&key, said, code).is_ok()
    }
}

impl std::fmt::Debug for Binding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Binding")
    }
}

/// What is proven: the side's label and the exporter have fixed lengths, `said` is the rest.
fn statement(side: Side, exporter: &[u8; EXPORTER_BYTES], said: &[u8]) -> Vec<u8> {
    [side.label(), exporter, said].concat()
}

/// The proof of one side that it has the key.
pub fn prove(
    key: &Psk,
    side: Side,
    exporter: &[u8; EXPORTER_BYTES],
    said: &[u8],
) -> [u8; PROOF_BYTES] {
    let key = hmac::Key::new(hmac::HMAC_SHA256, key.bytes());
    let tag = hmac::sign(&key, &statement(side, exporter, said));
    let mut proof = [0; PROOF_BYTES];
    for (to, from) in proof.iter_mut().zip(tag.as_ref()) {
        *to = *from;
    }
    proof
}

/// Whether `proof` is what that side would have made. Takes as long for any wrong one.
pub fn holds(
    key: &Psk,
    side: Side,
    exporter: &[u8; EXPORTER_BYTES],
    said: &[u8],
    proof: &[u8; PROOF_BYTES],
) -> bool {
    let key = hmac::Key::new(hmac::HMAC_SHA256, key.bytes());
    hmac::verify(&key, &statement(side, exporter, said), proof).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_is_of_one_key_one_side_one_connection_and_one_statement() {
        let (key, other) = (Psk::new([1; 32]), Psk::new([2; 32]));
        let proof = prove(&key, Side::Dialer, &[3; 32], b"alpha");
        assert!(holds(&key, Side::Dialer, &[3; 32], b"alpha", &proof));
        assert!(!holds(&other, Side::Dialer, &[3; 32], b"alpha", &proof));
        assert!(!holds(&key, Side::Acceptor, &[3; 32], b"alpha", &proof));
        assert!(!holds(&key, Side::Dialer, &[4; 32], b"alpha", &proof));
        assert!(!holds(&key, Side::Dialer, &[3; 32], b"beta", &proof));
        let mut changed = proof;
        changed[31] ^= 1;
        assert!(!holds(&key, Side::Dialer, &[3; 32], b"alpha", &changed));
    }
}
