//! Files to send, and whether they arrived.

use std::fs::{self, File};
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::Path;

use crate::suite::{Verdict, ensure};

/// Writes a file of bytes that do not repeat and are the same every time.
pub fn make(path: &Path, bytes: usize) -> Verdict {
    let mut file = BufWriter::new(File::create(path)?);
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for _ in 0..bytes / 8 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        file.write_all(&state.to_le_bytes())?;
    }
    file.write_all(&vec![b'.'; bytes % 8])?;
    Ok(file.flush()?)
}

/// Whether all of a file came, and nothing else.
pub fn check_same(sent: &Path, got: &Path) -> Verdict {
    let same = same_bytes(sent, got)?;
    let bytes = [fs::metadata(sent)?.len(), fs::metadata(got)?.len()];
    ensure(bytes == [same; 2], || {
        format!(
            "{}: {} bytes instead of {}, the first {same} are right",
            got.display(),
            bytes[1],
            bytes[0]
        )
    })
}

/// With how many bytes both begin.
fn same_bytes(left: &Path, right: &Path) -> Verdict<u64> {
    const PIECE: u64 = 1 << 20;
    let [mut left, mut right] = [File::open(left)?, File::open(right)?].map(BufReader::new);
    let mut same = 0;
    loop {
        let (mut one, mut other) = (Vec::new(), Vec::new());
        left.by_ref().take(PIECE).read_to_end(&mut one)?;
        right.by_ref().take(PIECE).read_to_end(&mut other)?;
        let equal = one.iter().zip(&other).take_while(|(a, b)| a == b).count();
        same += equal as u64;
        if one.is_empty() || equal < one.len() || equal < other.len() {
            return Ok(same);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_differ_in_a_byte_or_in_length() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let [sent, got] = ["sent", "got"].map(|name| dir.path().join(name));
        make(&sent, 3_000_001).expect("a file");
        let bytes = fs::read(&sent).expect("what was written");
        assert_eq!(bytes.len(), 3_000_001);
        fs::write(&got, &bytes).expect("a copy");
        assert!(check_same(&sent, &got).is_ok());
        let mut other = bytes.clone();
        other[2_500_000] ^= 1;
        let longer = [&bytes[..], b"x"].concat();
        for wrong in [&other, &longer, &bytes[1..].to_vec(), &Vec::new()] {
            fs::write(&got, wrong).expect("another file");
            assert!(check_same(&sent, &got).is_err());
        }
        assert_eq!(same_bytes(&sent, &sent).expect("a file"), 3_000_001);
        fs::write(&got, &other).expect("another file");
        assert_eq!(same_bytes(&sent, &got).expect("two files"), 2_500_000);
    }
}
