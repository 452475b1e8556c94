//! Whether the other end of one that waits is at the peer at all: asked, and answered when every program there was
//! heard (decision 0006).

use super::comparing::agree;
use super::{Announced, Introducer, PeerName, Programs, Progress, Tuple};
use crate::fabric::words::{Token, Word};
use crate::namespace::Numbers;

/// Questions of one peer that wait for an answer; who gets none asks again.
pub(super) const QUESTIONS_MAX: usize = 1024;

/// A peer's question whether the other end of its one is here.
#[derive(Debug)]
pub(super) struct Question {
    from: PeerName,
    theirs: Token,
    /// As our end has the addresses.
    tuple: Tuple,
    /// As theirs has them.
    numbers: Option<Numbers>,
}

impl Introducer {
    /// Ends that wait in vain, as peers have said.
    pub fn take_alone(&mut self) -> Vec<Announced> {
        std::mem::take(&mut self.alone)
    }

    /// Questions of peers that wait for [`Introducer::answer`].
    pub fn questions(&self) -> usize {
        self.questions.len()
    }

    /// Answers the first of what peers have asked. Every program was heard since: whoever has taken part in as much as
    /// the asking end has announced its own long ago (decision 0006).
    pub fn answer(&mut self, count: usize, programs: &dyn Programs) {
        let count = count.min(self.questions.len());
        let questions: Vec<Question> = self.questions.drain(..count).collect();
        for question in questions {
            if let Some(peer) = self.peers.get_mut(&question.from) {
                peer.questions = peer.questions.saturating_sub(1);
            }
            let token = self.by_tuple.get(&question.tuple).copied();
            let end = token.and_then(|token| Some((token, self.ends.get(&token)?)));
            match end {
                // Another connection's.
                Some((_, end)) if !agree(end.numbers, question.numbers) => {}
                // The peer was told of it before.
                Some((_, end)) if programs.is_here(&end.announced, end.numbers) => continue,
                Some((token, _)) => self.forget(token),
                None => {}
            }
            let yours = question.theirs;
            self.say(&question.from, Word::Nobody { yours });
        }
    }

    pub(super) fn heard_question(
        &mut self,
        name: &PeerName,
        theirs: Token,
        (tuple, numbers): (Tuple, Option<Numbers>),
    ) {
        let Some(peer) = self.peers.get_mut(name) else {
            return;
        };
        if peer.is_at(tuple.local.ip()) && peer.questions < QUESTIONS_MAX {
            peer.questions += 1;
            self.questions.push(Question {
                from: name.clone(),
                theirs,
                tuple: tuple.mirrored(),
                numbers,
            });
        }
    }

    pub(super) fn heard_nobody(&mut self, name: &PeerName, yours: Token) {
        let Some(end) = self.ends.get_mut(&yours) else {
            return;
        };
        if end.peer.as_ref() == Some(name) && matches!(end.progress, Progress::Waiting) {
            end.is_alone = true;
            // Without a question nobody waits for it.
            let is_answer = std::mem::take(&mut end.is_asked_for);
            self.alone.extend(is_answer.then_some(end.announced));
        }
    }
}
