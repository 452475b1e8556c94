//! That the modules of a crate stand as its head comment says: a table under "Who knows whom", of which each
//! line names only what is in it and above it.

use std::collections::BTreeMap;
use std::fs;

use super::{metadata, modules};

/// Above the table.
const HEADING: &str = "//! # Who knows whom";

/// The modules that each line of the table has. `None` without a table.
fn layers(text: &str) -> Option<Vec<Vec<String>>> {
    let (_, behind) = text.split_once(HEADING)?;
    let lines = behind
        .lines()
        .map(|line| line.strip_prefix("//!").map(str::trim));
    let table = lines
        .skip(1)
        .map_while(|line| line.filter(|line| !line.starts_with('#')))
        .filter_map(|line| line.strip_prefix('|')?.split('|').next());
    // The first two lines are the heads of the columns and what is under them.
    let names = |cell: &str| {
        let quoted = cell.split('`').skip(1).step_by(2);
        quoted.map(str::to_owned).collect()
    };
    Some(table.skip(2).map(names).collect())
}

/// What stands otherwise than the table says, and what is missing on either side.
fn wrong(layers: &[Vec<String>], arrows: &modules::Arrows) -> Vec<String> {
    let mut layer_of = BTreeMap::new();
    let mut wrong = Vec::new();
    for (layer, names) in layers.iter().enumerate() {
        for name in names {
            if !arrows.contains_key(name) {
                wrong.push(format!("{name} is in the table and no module"));
            }
            if layer_of.insert(name.as_str(), layer).is_some() {
                wrong.push(format!("{name} is in the table twice"));
            }
        }
    }
    for (module, named) in arrows {
        let Some(layer) = layer_of.get(module.as_str()) else {
            wrong.push(format!("{module} is not in the table"));
            continue;
        };
        let is_lower = |other: &&String| layer_of.get(other.as_str()).is_some_and(|it| it > layer);
        let lower = named.iter().filter(is_lower);
        wrong.extend(lower.map(|other| format!("{module} names {other}, which stands below it")));
    }
    wrong
}

#[test]
fn modules_stand_as_their_crate_says() {
    let mut held = Vec::new();
    let mut all = Vec::new();
    for package in metadata().members() {
        let is_library = |kind: &String| kind == "lib";
        for target in &package.targets {
            if !target.kind.iter().any(is_library) {
                continue;
            }
            let text = fs::read_to_string(&target.src_path).expect("a library has a root");
            if let Some(layers) = layers(&text) {
                held.push(package.name.clone());
                let found = wrong(&layers, &modules::arrows(&target.src_path));
                all.extend(found.iter().map(|it| format!("{}: {it}", package.name)));
            }
        }
    }
    assert!(all.is_empty(), "otherwise than in lib.rs: {all:#?}");
    assert!(held.contains(&"sluice-preload-core".to_owned()), "{held:?}");
}

#[test]
fn a_module_that_names_what_stands_below_it_is_found() {
    let table = "//! # Who knows whom\n//!\n//! Words of `b`.\n//!\n//! | modules | what |\n//! |---|---|\n\
                 //! | `a`, [`b`] | of `c` |\n//! | `c` | top |\n//!\n//! # Else\n//! | `d` | |\n";
    let layers = layers(table).expect("there is a table");
    assert_eq!(layers, [vec!["a", "b"], vec!["c"]]);
    let found = |text: &str| wrong(&layers, &modules::arrows_of(text));
    let good = "mod a { use crate::b; } mod b {} mod c { use crate::a; }";
    assert_eq!(found(good), Vec::<String>::new());
    let bad = "mod a { fn f() { crate::c::g() } } mod b {} mod c { fn g() {} }";
    assert_eq!(found(bad), ["a names c, which stands below it"]);
    let more = "mod a {} mod b {} mod c {} mod d {}";
    assert_eq!(found(more), ["d is not in the table"]);
    assert_eq!(
        found("mod a {} mod c {}"),
        ["b is in the table and no module"]
    );
    assert_eq!(super::layers::layers("//! A crate.\n"), None);
}
