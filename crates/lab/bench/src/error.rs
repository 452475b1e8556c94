//! What can end a measurement early.

use std::fmt;

use sluice_lab::verdict::Problem;

/// Why a measurement, or the whole run, did not come to a result.
#[derive(Debug)]
pub enum BenchError {
    /// The user asked to stop; the number is the signal's.
    Interrupted(i32),
    /// A program failed, said something that could not be understood, or took too long. The text
    /// names the program and holds what it wrote to its standard error.
    Failed(String),
}

impl BenchError {
    /// An operation of our own failed: `what` says which, in words that follow "cannot".
    pub fn io(what: impl fmt::Display, error: &std::io::Error) -> Self {
        Self::Failed(format!("cannot {what}: {error}"))
    }
}

impl fmt::Display for BenchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Interrupted(signal) => write!(f, "interrupted by signal {signal}"),
            Self::Failed(text) => f.write_str(text),
        }
    }
}

impl From<Problem> for BenchError {
    fn from(problem: Problem) -> Self {
        Self::Failed(problem.to_string())
    }
}

pub type Result<T> = std::result::Result<T, BenchError>;
