//! Showing where two print-outs part.

/// None when equal; else the first lines that differ, with what came before.
pub fn first_difference(plain: &[u8], accelerated: &[u8]) -> Option<String> {
    const SHOWN: usize = 8;
    if plain == accelerated {
        return None;
    }
    let plain = String::from_utf8_lossy(plain);
    let accelerated = String::from_utf8_lossy(accelerated);
    let plain: Vec<&str> = plain.lines().collect();
    let accelerated: Vec<&str> = accelerated.lines().collect();
    let at = plain
        .iter()
        .zip(&accelerated)
        .position(|(left, right)| left != right)
        .unwrap_or(plain.len().min(accelerated.len()));
    let mut text = format!("outputs differ from line {} on\n", at + 1);
    for line in &plain[at.saturating_sub(3)..at] {
        text += &format!("          {line}\n");
    }
    for (name, lines) in [("plain", &plain), ("sluice", &accelerated)] {
        let rest = &lines[at.min(lines.len())..];
        for line in rest.iter().take(SHOWN) {
            text += &format!("{name:>7} | {line}\n");
        }
        if rest.is_empty() {
            text += &format!("{name:>7} | (ends here)\n");
        }
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::first_difference;

    #[test]
    fn equal_outputs_have_none() {
        assert_eq!(first_difference(b"a\nb\n", b"a\nb\n"), None);
    }

    #[test]
    fn the_first_differing_line_is_named() {
        let text = first_difference(b"a\nb\nc\n", b"a\nx\nc\n").expect("they differ");
        assert!(text.contains("line 2"), "{text}");
        assert!(
            text.contains("plain | b") && text.contains("sluice | x"),
            "{text}"
        );
    }

    #[test]
    fn a_missing_end_is_shown() {
        let text = first_difference(b"a\nb\n", b"a\n").expect("they differ");
        assert!(text.contains("sluice | (ends here)"), "{text}");
    }
}
