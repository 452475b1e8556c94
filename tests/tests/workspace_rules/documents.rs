//! Where the documents' links lead, and what the book holds.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

use super::{root, tracked_files};

/// Pages of the repository that are no chapters: forms, which GitHub fills in.
const NO_CHAPTERS: &str = ".github";

/// The lines of a document that are not between fences.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut is_fenced = false;
    text.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        is_fenced ^= is_fence;
        !is_fenced && !is_fence
    })
}

/// Targets of the links and pictures `[text](target)`.
fn links(text: &str) -> Vec<String> {
    let lines: Vec<&str> = prose(text).collect();
    // A link may begin on one line and end on the next, code too; neither goes past a paragraph's end.
    let mut found = Vec::new();
    for paragraph in lines.split(|line| line.trim().is_empty()) {
        let paragraph = paragraph.join("\n");
        let code_at = |at: usize| paragraph[..at].matches('`').count() % 2 == 1;
        for (at, _) in paragraph.match_indices("](") {
            let rest = &paragraph[at + 2..];
            if let Some((target, _)) = rest.split_once(')')
                && !code_at(at)
            {
                found.push(target.to_owned());
            }
        }
    }
    found
}

/// The anchors of a document's headings, as GitHub and mdBook make them.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for line in prose(text) {
        let title = line.trim_start_matches('#');
        let level = line.len() - title.len();
        if !(1..=6).contains(&level) || !title.starts_with(' ') {
            continue;
        }
        // Of a link in a heading, its text.
        let title = title.split("](").enumerate().map(|(number, part)| {
            if number == 0 {
                part
            } else {
                part.split_once(')').map_or(part, |(_, rest)| rest)
            }
        });
        let title = title.collect::<String>().to_lowercase();
        let slug: String = title
            .trim()
            .chars()
            .filter_map(|letter| match letter {
                ' ' => Some('-'),
                '-' | '_' => Some(letter),
                _ => letter.is_alphanumeric().then_some(letter),
            })
            .collect();
        let names = (0_u32..).map(|number| match number {
            0 => slug.clone(),
            _ => format!("{slug}-{number}"),
        });
        for name in names {
            if found.insert(name) {
                break;
            }
        }
    }
    found
}

/// A path without `.` and `..`; None: it leads out of the repository.
fn normal(path: &Path) -> Option<PathBuf> {
    let mut parts = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                if !parts.pop() {
                    return None;
                }
            }
            Component::Normal(name) => parts.push(name),
            Component::CurDir => {}
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(parts)
}

/// The files of the repository, and of the documents among them what they say.
struct Documents {
    files: BTreeSet<PathBuf>,
    texts: BTreeMap<PathBuf, String>,
}

impl Documents {
    fn read() -> Documents {
        let files = tracked_files().into_iter().filter(|path| path.exists());
        let files: BTreeSet<PathBuf> = files
            .filter_map(|path| Some(path.strip_prefix(root()).ok()?.to_owned()))
            .collect();
        let is_document =
            |path: &&PathBuf| path.extension().is_some_and(|extension| extension == "md");
        let texts = files.iter().filter(is_document).map(|path| {
            let text = fs::read_to_string(root().join(path)).expect("a document is text");
            (path.clone(), text)
        });
        let texts = texts.collect();
        Documents { files, texts }
    }

    /// What is wrong with a link of the document at `from`.
    fn wrong(&self, from: &Path, link: &str) -> Option<&'static str> {
        let is_elsewhere = ["https://", "http://", "mailto:"];
        if is_elsewhere.iter().any(|scheme| link.starts_with(scheme)) {
            return None;
        }
        let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
        let folder = from.parent().unwrap_or(Path::new(""));
        let to = if path.is_empty() {
            Some(from.to_owned())
        } else {
            normal(&folder.join(path))
        };
        let Some(to) = to.filter(|to| self.files.contains(to)) else {
            return Some("no file of the repository");
        };
        match self.texts.get(&to) {
            _ if anchor.is_empty() => None,
            Some(text) if anchors(text).contains(anchor) => None,
            Some(_) => Some("no such heading"),
            None => Some("an anchor in what is no document"),
        }
    }
}

#[test]
fn links_of_documents_lead_to_files_and_headings() {
    let documents = Documents::read();
    let mut wrong = Vec::new();
    let mut seen = 0;
    for (path, text) in &documents.texts {
        for link in links(text) {
            seen += 1;
            if let Some(why) = documents.wrong(path, &link) {
                wrong.push(format!("{}: {link}: {why}", path.display()));
            }
        }
    }
    assert!(seen > 100, "only {seen} links are seen");
    assert!(wrong.is_empty(), "links that lead nowhere: {wrong:#?}");
}

/// `docs/SUMMARY.md` is the book's contents: mdBook leaves out what it does not name.
#[test]
fn the_book_holds_each_document_once() {
    let documents = Documents::read();
    let summary = Path::new("docs/SUMMARY.md");
    let mut chapters = links(&documents.texts[summary]);
    chapters.sort();
    let twice = chapters.windows(2).filter(|two| two[0] == two[1]);
    let twice: Vec<_> = twice.map(|two| &two[0]).collect();
    assert!(twice.is_empty(), "chapters that come twice: {twice:#?}");
    let chapters: BTreeSet<PathBuf> = chapters
        .iter()
        .map(|chapter| normal(&Path::new("docs").join(chapter)).expect("a chapter is a file"))
        .collect();
    let expected: BTreeSet<PathBuf> = documents
        .texts
        .keys()
        .filter(|path| *path != summary && !path.starts_with(NO_CHAPTERS))
        .cloned()
        .collect();
    let missing: Vec<_> = expected.difference(&chapters).collect();
    assert!(missing.is_empty(), "not in the book: {missing:#?}");
    let strange: Vec<_> = chapters.difference(&expected).collect();
    assert!(strange.is_empty(), "chapters that are none: {strange:#?}");
}

#[test]
fn links_are_found_where_they_are_links() {
    let text = "A [one](a.md), `[none](b.md)` and\n[a\nlong `one`](c.md#d), ![picture](e.svg)\n\
                ```\n[none](f.md)\n```\n\n`a lone one\n\n[g](#h)\n";
    assert_eq!(links(text), ["a.md", "c.md#d", "e.svg", "#h"]);
}

#[test]
fn anchors_are_made_as_github_makes_them() {
    let text = "# What `sluice status --json` prints\n## EPERM, seccomp\n### A_b: 0.95×\n## EPERM, seccomp\n\
                ```\n# none\n```\n#!none\n## [Link](to.md), so\n";
    let expected = [
        "a_b-095",
        "eperm-seccomp",
        "eperm-seccomp-1",
        "link-so",
        "what-sluice-status---json-prints",
    ];
    let found: Vec<String> = anchors(text).into_iter().collect();
    assert_eq!(found, expected);
}

#[test]
fn a_link_that_leads_nowhere_is_found() {
    let documents = Documents {
        files: ["a.md", "docs/b.md", "c.rs"].map(PathBuf::from).into(),
        texts: [("a.md", "# One"), ("docs/b.md", "# Two")]
            .map(|(path, text)| (PathBuf::from(path), text.to_owned()))
            .into(),
    };
    let b = Path::new("docs/b.md");
    for good in ["../a.md#one", "#two", "../c.rs", "https://example.org/x"] {
        assert_eq!(documents.wrong(b, good), None, "{good}");
    }
    for bad in ["a.md", "../a.md#two", "#one", "../../a.md", "../c.rs#L1"] {
        assert!(documents.wrong(b, bad).is_some(), "{bad}");
    }
}
