//! In the place of `sluice top`, in a `sluice` that was built without the feature `top`.

use crate::args::TopArgs;
use crate::error::{Failure, Outcome};

pub fn run(_args: &TopArgs) -> Outcome {
    Err(failure())
}

fn failure() -> Failure {
    Failure::new(
        "this sluice was built without the feature 'top'",
        "'sluice status --watch' shows the same again and again",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn left_out_and_what_to_do() {
        let said = failure().to_string();
        assert!(
            said.contains("without the feature 'top'") && said.contains("sluice status --watch")
        );
    }
}
