//! The book that `scripts/docs` makes: each chapter is there, and every link of its pages leads to something.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use sluice_tests::job::{find_program, run};
use sluice_tests::suite::{Verdict, ensure, fail, skip};

/// mdBook is fetched once.
const LIMIT: Duration = Duration::from_secs(300);
/// Pages that mdBook makes of all others, or for who is lost.
const NO_CHAPTERS: [&str; 3] = ["print.html", "404.html", "toc.html"];

/// The values of an attribute, as they are written.
fn values<'a>(page: &'a str, attribute: &str) -> Vec<&'a str> {
    let start = format!(" {attribute}=\"");
    let parts = page.split(start.as_str()).skip(1);
    parts.filter_map(|part| part.split('"').next()).collect()
}

/// A path without what it goes up again, or nothing if it leaves the folder that it begins in.
fn plain(path: &Path) -> Option<PathBuf> {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::Normal(part) => plain.push(part),
            Component::ParentDir => plain.pop().then_some(())?,
            _ => {}
        }
    }
    Some(plain)
}

/// Links that lead nowhere, of pages by their paths; `other` says whether there is such a file that is no page.
fn broken(pages: &BTreeMap<PathBuf, String>, other: impl Fn(&Path) -> bool) -> Vec<String> {
    let places: BTreeMap<&PathBuf, BTreeSet<&str>> = pages
        .iter()
        .map(|(path, page)| (path, values(page, "id").into_iter().collect()))
        .collect();
    let mut broken = Vec::new();
    for (path, page) in pages {
        let links = values(page, "href").into_iter().chain(values(page, "src"));
        let ours = |link: &&str| !link.contains("://") && !link.starts_with("mailto:");
        for link in links.filter(ours) {
            let (file, place) = link.split_once('#').unwrap_or((link, ""));
            let target = match file {
                "" => Some(path.clone()),
                file => plain(&path.parent().unwrap_or(path).join(file)),
            };
            let leads = target.is_some_and(|target| match places.get(&target) {
                Some(places) => place.is_empty() || places.contains(place),
                None => other(&target),
            });
            if !leads {
                broken.push(format!("{}: {link}", path.display()));
            }
        }
    }
    broken
}

/// All pages of chapters below a folder.
fn read(folder: &Path, below: &Path, pages: &mut BTreeMap<PathBuf, String>) -> Verdict {
    for entry in fs::read_dir(folder.join(below))? {
        let entry = entry?;
        let path = below.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            read(folder, &path, pages)?;
        } else if path.extension().is_some_and(|it| it == "html")
            && !NO_CHAPTERS.iter().any(|name| path == Path::new(name))
        {
            let page = fs::read_to_string(entry.path())?;
            pages.insert(path, page);
        }
    }
    Ok(())
}

/// That links which lead nowhere are found.
fn check_lies() -> Verdict {
    let page = |text: &str| text.to_owned();
    let pages = BTreeMap::from([
        (
            PathBuf::from("docs/a.html"),
            page(
                "<h1 id=\"top\"></h1><a href=\"#top\"></a><a href=\"../b.html#there\"></a><img src=\"c.svg\">\
                 <a href=\"#gone\"></a><a href=\"b.html\"></a><a href=\"../b.html#top\"></a><a href=\"../../b.html\"></a>",
            ),
        ),
        (PathBuf::from("b.html"), page("<p id=\"there\"></p>")),
    ]);
    let found = broken(&pages, |path| path == Path::new("docs/c.svg"));
    let expected = ["#gone", "b.html", "../b.html#top", "../../b.html"]
        .map(|link| format!("docs/a.html: {link}"));
    ensure(found == expected, || format!("{found:?}"))
}

/// Builds it from the repository at `source`.
pub fn built(source: &Path) -> Verdict {
    check_lies()?;
    if find_program("python3").is_none() {
        return skip("no python3, which fetches mdBook");
    }
    let dir = tempfile::tempdir()?;
    let command = Command::new(source.join("scripts/docs"));
    let outcome = run(command, dir.path(), "docs", LIMIT)?.success()?;
    let said = outcome.text();
    let Some(index) = said.lines().find_map(|line| line.strip_prefix("docs: ")) else {
        return fail(format!("where is the book? {said}"));
    };
    let folder = Path::new(index).parent().unwrap_or(Path::new("/"));
    let mut pages = BTreeMap::new();
    read(folder, Path::new(""), &mut pages)?;
    let summary = fs::read_to_string(source.join("docs/SUMMARY.md"))?;
    let mut chapters = 0;
    for link in summary.split("](").skip(1) {
        let link = link.split(')').next().unwrap_or_default();
        let page = plain(&Path::new("docs").join(link)).map(|it| it.with_extension("html"));
        ensure(page.is_some_and(|page| pages.contains_key(&page)), || {
            format!("there is no page of {link}")
        })?;
        chapters += 1;
    }
    ensure(chapters > 30, || format!("{chapters} chapters"))?;
    let found = broken(&pages, |path| folder.join(path).exists());
    ensure(found.is_empty(), || {
        format!("links that lead nowhere: {found:#?}")
    })
}
