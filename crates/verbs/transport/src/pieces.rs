//! Pieces of the program's memory: any part of them, and how bytes come to it.
#![allow(unsafe_code)]

use sluice_shmem::verbs::copy;
use sluice_verbs::Sge;

/// The parts of `pieces` from `offset` on, `len` bytes together, or as many as there are.
pub fn parts(pieces: &[Sge], offset: u64, len: usize) -> impl Iterator<Item = Sge> + '_ {
    let (mut skip, mut left) = (offset, len);
    pieces.iter().filter_map(move |piece| {
        let bytes = u64::from(piece.length);
        let start = skip.min(bytes);
        skip -= start;
        let take = ((bytes - start) as usize).min(left);
        left -= take;
        (take > 0).then_some(Sge {
            addr: piece.addr + start,
            // At most the piece's.
            length: take as u32,
            lkey: piece.lkey,
        })
    })
}

/// The same as addresses and lengths.
pub fn gather(
    pieces: &[Sge],
    offset: u64,
    len: usize,
) -> impl Iterator<Item = (*const u8, usize)> + '_ {
    parts(pieces, offset, len).map(|part| (part.addr as *const u8, part.length as usize))
}

/// Copies `len` bytes to the places that lie `offset` bytes into `pieces`; what does not fit is
/// left out.
///
/// # Safety
/// The pieces are writable, and `source` is readable for `len` bytes.
pub unsafe fn scatter(pieces: &[Sge], offset: u64, source: *const u8, len: usize) {
    let mut source = source;
    for (target, len) in gather(pieces, offset, len) {
        // SAFETY: the caller's promise; `gather` stays within the pieces and within `len`.
        unsafe { copy::ascending(target.cast_mut(), source, len) };
        source = source.wrapping_add(len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(buffers: &[&[u8]]) -> Vec<Sge> {
        buffers
            .iter()
            .map(|buffer| Sge {
                addr: buffer.as_ptr() as u64,
                length: buffer.len() as u32,
                lkey: 0,
            })
            .collect()
    }

    #[test]
    fn gathers_any_window() {
        let list = pieces(&[b"abc", b"", b"defgh", b"i"]);
        for offset in 0..=9u64 {
            for len in 0..=(9 - offset as usize) {
                let mut got = Vec::new();
                for (start, bytes) in gather(&list, offset, len) {
                    // SAFETY: inside the literals above.
                    got.extend_from_slice(unsafe { std::slice::from_raw_parts(start, bytes) });
                }
                assert_eq!(got, b"abcdefghi"[offset as usize..offset as usize + len]);
            }
        }
    }
}
