//! In the place of what makes certificates, in a `sluice` that was built without the feature `ca`.

use std::path::Path;

use crate::args::CaHostArgs;
use crate::error::{Failure, Outcome};

pub fn create(_directory: &Path) -> Outcome {
    Err(failure())
}

pub fn host(_args: &CaHostArgs) -> Outcome {
    Err(failure())
}

fn failure() -> Failure {
    Failure::new(
        "this sluice was built without the feature 'ca' and makes no certificates",
        "make them with a sluice that has it, on any machine, or use a key: 'sluice ca key FILE'",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn left_out_and_what_to_do() {
        let said = create(Path::new("here"))
            .expect_err("nothing is made")
            .to_string();
        assert!(said.contains("without the feature 'ca'") && said.contains("sluice ca key FILE"));
    }
}
