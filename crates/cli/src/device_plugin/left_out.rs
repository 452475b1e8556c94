//! In the place of the device plugin, in a `sluice` that was built without the feature `device-plugin`.

use crate::args::DevicePluginArgs;
use crate::error::{Failure, Outcome};

pub fn run(_args: &DevicePluginArgs) -> Outcome {
    Err(failure())
}

fn failure() -> Failure {
    Failure::new(
        "this sluice was built without the feature 'device-plugin'",
        "build it with the feature, or give pods the library by hostPath volumes: docs/kubernetes.md",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn left_out_and_what_to_do() {
        let said = failure().to_string();
        assert!(said.contains("without the feature 'device-plugin'") && said.contains("hostPath"));
    }
}
