//! A program that is asked, a line each, and answers with a line.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::suite::{Verdict, fail};

/// Its process, which ends with this.
pub struct Asked {
    child: Child,
    asks: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Asked {
    pub fn start(mut command: Command) -> Verdict<Asked> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let (Some(asks), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
            return fail("no pipes");
        };
        Ok(Asked {
            child,
            asks,
            answers: BufReader::new(answers),
        })
    }

    /// The next line that it says; empty at its end.
    pub fn line(&mut self) -> Verdict<String> {
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        Ok(line.trim_end().to_string())
    }

    pub fn ask(&mut self, text: &str) -> Verdict<String> {
        writeln!(self.asks, "{text}")?;
        self.line()
    }

    /// Fails unless it answers so.
    pub fn expect(&mut self, text: &str, answer: &str) -> Verdict {
        let got = self.ask(text)?;
        if got == answer {
            return Ok(());
        }
        fail(format!("{text}: {got:?} and not {answer:?}"))
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        // Errors say that it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
