//! `sluice man`: the man pages, options from the command line's definition, the rest by hand.

mod ca;
mod capture;
mod device_plugin;
mod finding;
mod gateway;
mod page;
mod sections;
mod service;
mod statistics;
mod verbs;
mod verbs_status;
mod window;

use std::fs;
use std::io;
use std::path::Path;

use clap::{Command, CommandFactory};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use crate::args::{Cli, ManArgs};
use crate::error::Outcome;
use crate::error::{Failure, reason};
use crate::locate;

use page::{Block, Section};

/// Writes every page into the directory, which is made if it is missing.
pub fn run(args: &ManArgs) -> Outcome {
    write_pages(&args.directory).map_err(|error| {
        Failure::new(
            format!(
                "cannot write man pages to {}: {}",
                args.directory.display(),
                reason(&error)
            ),
            "name a directory that you can write",
        )
    })?;
    let daemons = daemons_page()?;
    let path = args.directory.join("sluiced.8");
    fs::write(&path, daemons).map_err(|error| {
        Failure::new(
            format!("cannot write {}: {}", path.display(), reason(&error)),
            "name a directory that you can write",
        )
    })?;
    Ok(0)
}

/// sluiced knows its own options.
fn daemons_page() -> Result<Vec<u8>, Failure> {
    let program = locate::daemon()?;
    let mut command = std::process::Command::new(&program);
    let output = command.arg("--man-page").env_remove("LD_PRELOAD").output();
    match output {
        Ok(output) if output.status.success() => Ok(output.stdout),
        Ok(output) => Err(Failure::new(
            format!(
                "{} --man-page ends with {}",
                program.display(),
                output.status
            ),
            "install both programs from one release",
        )),
        Err(error) => Err(Failure::new(
            format!("cannot run {}: {}", program.display(), reason(&error)),
            "check its permissions",
        )),
    }
}

/// The example that comes with Sluice explains every key.
const CONFIGURATION: &str = include_str!("../../../hosts/peering/sluiced.toml");

fn configuration_page() -> io::Result<Vec<u8>> {
    let mut roff = Roff::new();
    roff.control("TH", ["SLUICED.TOML", "5", "", "Sluice"]);
    roff.control("SH", ["NAME"]);
    roff.text([roman("sluiced.toml - configuration of sluiced")]);
    roff.control("SH", ["DESCRIPTION"]);
    roff.text([roman(
        "The file that 'sluice up --config FILE' and 'sluiced --config FILE' read: peers on other hosts, \
         which connections get a lane to them, capture and gateways. It is in TOML. 'sluice up --config \
         FILE --check' says what is wrong with one. This is one with every key and what it means:",
    )]);
    roff.control("PP", []);
    roff.control("nf", []);
    for line in CONFIGURATION.lines() {
        if line.is_empty() {
            roff.control("sp", []);
        } else {
            roff.text([roman(line)]);
        }
    }
    roff.control("fi", []);
    roff.control("SH", ["SEE ALSO"]);
    roff.text([roman("sluiced(8), sluice-up(1)")]);
    let mut page = Vec::new();
    roff.to_writer(&mut page)?;
    Ok(page)
}

fn write_pages(directory: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    for (name, page) in pages()? {
        fs::write(directory.join(format!("{name}.1")), page)?;
    }
    fs::write(directory.join("sluiced.toml.5"), configuration_page()?)
}

/// Every page by its name: `sluice`, `sluice-run`, …
fn pages() -> io::Result<Vec<(String, Vec<u8>)>> {
    let mut root = Cli::command();
    // Fills in the full names of the subcommands.
    root.build();
    let mut pages = vec![("sluice".to_owned(), page(&root, "sluice")?)];
    for command in root.get_subcommands() {
        if command.is_hide_set() || command.get_name() == "help" {
            continue;
        }
        let name = format!("sluice-{}", command.get_name());
        let page = page(command, &name)?;
        pages.push((name, page));
    }
    Ok(pages)
}

fn page(command: &Command, name: &str) -> io::Result<Vec<u8>> {
    let mut page = Vec::new();
    let man = Man::new(command.clone())
        .title(name.to_uppercase())
        .section("1")
        .manual("Sluice")
        .source(concat!("sluice ", env!("CARGO_PKG_VERSION")));
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    for section in sections::of(name) {
        render(section)?.to_writer(&mut page)?;
    }
    see_also(name).to_writer(&mut page)?;
    Ok(page)
}

fn render(section: &Section) -> io::Result<Roff> {
    let mut roff = Roff::new();
    roff.control("SH", [section.title]);
    for block in section.blocks {
        match block {
            Block::Text(text) => {
                roff.control("PP", []);
                roff.text([roman(*text)]);
            }
            Block::Entry(term, text) => {
                roff.control("TP", []);
                roff.text([bold(*term)]);
                roff.text([roman(*text)]);
            }
            Block::Example(text, commands) => {
                roff.control("PP", []);
                roff.text([roman(*text)]);
                roff.control("PP", []);
                roff.control("RS", ["4"]);
                roff.control("nf", []);
                for line in commands.lines() {
                    roff.text([bold(line)]);
                }
                roff.control("fi", []);
                roff.control("RE", []);
            }
        }
    }
    Ok(roff)
}

fn see_also(name: &str) -> Roff {
    let others: Vec<String> = sections::PAGES
        .iter()
        .filter(|page| page.name != name)
        .map(|page| format!("{}(1)", page.name))
        .chain(["sluiced(8)", "sluiced.toml(5)", "ld.so(8)"].map(str::to_owned))
        .collect();
    let mut roff = Roff::new();
    roff.control("SH", ["SEE ALSO"]);
    roff.text([roman(others.join(", "))]);
    roff
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(page: &[u8]) -> String {
        String::from_utf8(page.to_vec()).unwrap()
    }

    #[test]
    fn every_command_has_a_page_with_hand_written_sections() {
        let pages = pages().unwrap();
        let names: Vec<&str> = pages.iter().map(|(name, _)| name.as_str()).collect();
        let described: Vec<&str> = sections::PAGES.iter().map(|page| page.name).collect();
        assert_eq!(names.len(), described.len());
        for name in &described {
            assert!(
                names.contains(name),
                "{name} is described and does not exist"
            );
        }
        for (name, page) in &pages {
            let page = text(page);
            for title in ["NAME", "SYNOPSIS", "DESCRIPTION", "EXAMPLES", "EXIT STATUS"] {
                assert!(
                    page.contains(&format!(".SH {title}"))
                        || page.contains(&format!(".SH \"{title}\"")),
                    "{name} has no {title}"
                );
            }
        }
    }

    #[test]
    fn examples_parse() {
        use clap::Parser;
        for line in sections::example_commands() {
            let mut words = line.split_whitespace().peekable();
            while words.next_if(|word| word.contains('=')).is_some() {}
            // What follows a pipe or an ampersand is another command.
            let words: Vec<&str> = words
                .take_while(|w| !matches!(*w, "|" | "&" | ">"))
                .collect();
            if words.first() != Some(&"sluice") {
                continue;
            }
            if let Err(error) = Cli::try_parse_from(&words) {
                panic!("{line}: {error}");
            }
        }
    }
}
