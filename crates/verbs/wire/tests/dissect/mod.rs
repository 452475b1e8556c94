//! Writes captures and has tshark read them.

// Each test uses a part of it.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

use sluice_wire::capture::{self, Direction, Format};

/// A packet's fields by name; a field that occurs twice has both values.
pub type Dissected = BTreeMap<String, Vec<String>>;

/// The first value of a field; empty if the packet does not have it.
pub fn field<'a>(packet: &'a Dissected, name: &str) -> &'a str {
    packet
        .get(name)
        .and_then(|values| values.first())
        .map_or("", String::as_str)
}

/// Has tshark read a capture of these frames. None, with the reason printed, where there is no
/// tshark.
pub fn dissect(test: &str, format: Format, frames: &[Vec<u8>]) -> Option<Vec<Dissected>> {
    let output = tshark(test, format, frames, &["-T", "json", "--no-duplicate-keys"])?;
    let packets: Vec<serde_json::Value> = serde_json::from_slice(&output).unwrap();
    assert_eq!(packets.len(), frames.len());
    Some(packets.iter().map(flatten).collect())
}

/// The same as text, for what is in no field's value.
pub fn text(test: &str, format: Format, frames: &[Vec<u8>]) -> Option<String> {
    let output = tshark(test, format, frames, &["-V"])?;
    Some(String::from_utf8_lossy(&output).into_owned())
}

fn tshark(test: &str, format: Format, frames: &[Vec<u8>], how: &[&str]) -> Option<Vec<u8>> {
    if Command::new("tshark").arg("--version").output().is_err() {
        println!("SKIP {test}: tshark is not installed; scripts/setup test");
        return None;
    }
    let mut file = vec![0; 4096];
    let used = capture::begin(format, "sluice tests", "test0", &mut file).unwrap();
    file.truncate(used);
    for (n, frame) in frames.iter().enumerate() {
        let mut bytes = vec![0; frame.len() + capture::PACKET_OVERHEAD_MAX];
        let time = 1_700_000_000_000_000_000 + n as u64;
        let used = capture::packet(format, time, Direction::Outbound, frame, &mut bytes).unwrap();
        file.extend_from_slice(&bytes[..used]);
    }
    let mut end = [0; 128];
    let used = capture::statistics(format, 0, frames.len() as u64, 0, &mut end).unwrap();
    file.extend_from_slice(&end[..used]);
    let path = path(test, format);
    std::fs::write(&path, file).unwrap();
    let output = Command::new("tshark")
        .arg("-n")
        .args(how)
        .arg("-r")
        .arg(&path)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let _ = std::fs::remove_file(&path);
    Some(output.stdout)
}

fn path(test: &str, format: Format) -> PathBuf {
    let name = format!("sluice-wire-{test}-{}-{format:?}", std::process::id());
    std::env::temp_dir().join(name)
}

/// The tree of a packet's fields as a table. A malformed packet has a field of that name.
fn flatten(packet: &serde_json::Value) -> Dissected {
    let mut fields = Dissected::new();
    let mut waiting = vec![&packet["_source"]["layers"]];
    while let Some(node) = waiting.pop() {
        let Some(object) = node.as_object() else {
            continue;
        };
        for (name, value) in object {
            let values = match value {
                serde_json::Value::Array(values) => values.iter().collect(),
                value => vec![value],
            };
            for value in values {
                let text = match value {
                    serde_json::Value::String(text) => text.clone(),
                    // Layers and subtrees: that they are there may matter.
                    _ => "present".to_owned(),
                };
                fields.entry(name.clone()).or_default().push(text);
                waiting.push(value);
            }
        }
    }
    fields
}

/// The checksum of a frame by its definition (IBTA annex A17.3), a bit at a time, from the bytes
/// alone. The four bytes as they are sent, read with the highest first.
pub fn icrc(frame: &[u8]) -> u32 {
    let start = if frame[12..14] == [0x81, 0] { 18 } else { 14 };
    let mut bytes = frame[start..frame.len() - 4].to_vec();
    let udp = if bytes[0] >> 4 == 4 {
        for at in [1, 8, 10, 11] {
            bytes[at] = 0xff;
        }
        20
    } else {
        bytes[0] |= 0x0f;
        for at in [1, 2, 3, 7] {
            bytes[at] = 0xff;
        }
        40
    };
    for at in [udp + 6, udp + 7, udp + 8 + 4] {
        bytes[at] = 0xff;
    }
    let mut crc = u32::MAX;
    for byte in [0xff; 8].iter().chain(&bytes) {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = crc >> 1 ^ if crc & 1 == 1 { 0xedb8_8320 } else { 0 };
        }
    }
    u32::from_be_bytes((!crc).to_le_bytes())
}
