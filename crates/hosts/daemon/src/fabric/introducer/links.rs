//! Numbers of links. A number is given to another link when every carrier has forgotten the one before: what a
//! carrier reports of a link is never taken for another one's, and there are no more numbers than there were
//! links at a time.

use std::collections::HashMap;

use sluice_fabric::wire::LinkId;

/// Those that there are.
#[derive(Debug)]
pub(super) struct LinkNumbers {
    carriers: usize,
    next: u32,
    free: Vec<LinkId>,
    /// Links that were given up, and how many carriers still know of them.
    known: HashMap<LinkId, usize>,
}

impl LinkNumbers {
    pub fn new(carriers: usize) -> Self {
        Self {
            carriers,
            next: 0,
            free: Vec::new(),
            known: HashMap::new(),
        }
    }

    /// A number that no link has.
    pub fn take(&mut self) -> LinkId {
        self.free.pop().unwrap_or_else(|| {
            let link = LinkId(self.next);
            self.next += 1;
            link
        })
    }

    /// A link is given up, and every carrier was told so.
    pub fn give_up(&mut self, link: LinkId) {
        if self.carriers == 0 {
            self.free.push(link);
        } else {
            self.known.insert(link, self.carriers);
        }
    }

    /// One carrier has nothing of this link any more.
    pub fn forgotten(&mut self, link: LinkId) {
        let Some(carriers) = self.known.get_mut(&link) else {
            return;
        };
        *carriers -= 1;
        if *carriers == 0 {
            self.known.remove(&link);
            self.free.push(link);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_comes_back_when_all_carriers_have_forgotten_its_link() {
        let mut links = LinkNumbers::new(2);
        let [first, second] = [(); 2].map(|()| links.take());
        links.give_up(first);
        // Not one that was not given up.
        links.forgotten(second);
        links.forgotten(first);
        assert_eq!(links.take(), LinkId(2));
        links.forgotten(first);
        links.forgotten(first);
        assert_eq!([links.take(), links.take()], [first, LinkId(3)]);
    }
}
