//! Checks the order of the modules: each uses only the modules that the `lib.rs` of its package lists above it. The
//! compiler checks the order between the packages. Checks also that the pages for developers name files that exist, and
//! that sizes and shapes keep to their budgets. A binary of its own, so that it is built in seconds.

#[path = "house/budgets.rs"]
mod budgets;
#[path = "house/source.rs"]
mod source;

use rstest::rstest;
use std::{collections::BTreeMap, fs, path::Path};

#[rstest]
#[case::the_gateway("src", 10, 50)]
#[case::the_limiters("crates/paceway-limit/src", 6, 20)]
fn modules_use_only_the_modules_above_them(
    #[case] root: &str,
    #[case] modules: usize,
    #[case] uses: usize,
) {
    let lib = fs::read_to_string(format!("{root}/lib.rs")).expect("lib.rs");
    let order: Vec<&str> =
        lib.lines().filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';')).collect();
    assert!(order.len() > modules, "the list of modules is not found: {order:?}");
    let mut checked = 0;
    for (own, module) in order.iter().enumerate() {
        for (file, text) in sources(root, module) {
            for used in used_modules(&text) {
                let Some(rank) = order.iter().position(|module| *module == used) else { continue };
                assert!(
                    rank <= own,
                    "{file} uses `{used}`, which {root}/lib.rs lists below `{module}`"
                );
                checked += 1;
            }
        }
    }
    assert!(checked > uses, "only {checked} uses found: the test no longer reads the sources");
}

/// Reads the source files of a module, without its tests.
fn sources(root: &str, module: &str) -> Vec<(String, String)> {
    let mut files = vec![format!("{root}/{module}.rs")];
    let mut folders = vec![format!("{root}/{module}")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(Path::new(&folder)).into_iter().flatten().flatten() {
            let path = entry.path().display().to_string();
            match path.as_str() {
                _ if path.ends_with("/tests") => {}
                _ if entry.path().is_dir() => folders.push(path),
                _ if path.ends_with("tests.rs") || !path.ends_with(".rs") => {}
                _ => files.push(path),
            }
        }
    }
    let read = |file: String| {
        let text = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{file}: {error}"));
        let code = text.split("#[cfg(test)]").next().unwrap_or_default().to_owned();
        (file, code)
    };
    files.into_iter().map(read).collect()
}

/// Lists the first name after each `crate::`, also within `use crate::{...}`.
fn used_modules(text: &str) -> Vec<String> {
    let name = |text: &str| -> String {
        text.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect()
    };
    let mut used = Vec::new();
    for rest in text.split("crate::").skip(1) {
        let Some(group) = rest.strip_prefix('{') else {
            used.push(name(rest));
            continue;
        };
        let (mut depth, mut start) = (1, true);
        for (i, c) in group.char_indices() {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                break;
            }
            if depth == 1 && start && c.is_ascii_alphabetic() {
                used.push(name(&group[i..]));
            }
            start = depth == 1 && (c == ',' || (start && c.is_whitespace()));
        }
    }
    used
}

/// The package, the packages that depend on it, the image and the chart are released under one version.
#[test]
fn every_package_has_one_version() {
    let read =
        |file: &str| fs::read_to_string(file).unwrap_or_else(|error| panic!("{file}: {error}"));
    let (cargo, chart) = (read("Cargo.toml"), read("deploy/helm/paceway/Chart.yaml"));
    let value = |text: &str, start: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(start)).expect(start);
        let end = line.find(',').unwrap_or(line.len());
        line[..end].trim().trim_matches('"').to_owned()
    };
    let version = value(&cargo, "version = ");
    assert_eq!(value(&cargo, "paceway-limit = { version = "), version);
    assert_eq!(value(&chart, "version:"), version);
    assert_eq!(value(&chart, "appVersion:"), version);
}

/// The directories that the pages leave out of a name: `redis/cluster` is a file of the limiters' store.
const FOLDERS: [&str; 9] = [
    "",
    "src",
    "src/config",
    "src/server",
    "src/upstream",
    "crates/paceway-limit/src",
    "crates/paceway-limit/src/store",
    "crates/paceway-limit/src/store/redis",
    "benches/cost",
];

/// A newcomer finds the code by the file names in these two pages. When a file moves, its name there has to follow.
#[rstest]
#[case::contributing("CONTRIBUTING.md", 30)]
#[case::architecture("docs/architecture.md", 80)]
fn the_files_that_a_page_names_exist(#[case] page: &str, #[case] least: usize) {
    let text = fs::read_to_string(page).expect("a page");
    let text = text.replace("LIMIT/", "crates/paceway-limit/src/");
    let mut checked = 0;
    for (number, line) in text.lines().enumerate() {
        for name in line.split('`').skip(1).step_by(2).filter(|name| is_file(name)) {
            let exists = |folder: &&str| {
                let path = Path::new(folder).join(name);
                path.exists() || path.with_extension("rs").exists()
            };
            let line = number + 1;
            assert!(FOLDERS.iter().any(exists), "{page}:{line}: no file `{name}`");
            checked += 1;
        }
    }
    assert!(checked > least, "only {checked} names found: the test no longer reads {page}");
}

/// Whether a name in a page is that of a file in the tree: in small letters, with its directory.
fn is_file(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_-./".contains(c);
    let is_outside = ["/", ".", "target/"].iter().any(|start| name.starts_with(start));
    name.contains('/') && !is_outside && name.chars().all(is_plain)
}

/// A type that shares its name with another one sends a reader to the wrong file. The rules of `algorithm` may: each has a
/// `State`. Private idioms may, too.
#[test]
fn no_two_types_share_a_name() {
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for root in ["src", "crates/paceway-limit/src"] {
        let lib = fs::read_to_string(format!("{root}/lib.rs")).expect("lib.rs");
        let modules =
            lib.lines().filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';'));
        for (file, text) in
            modules.filter(|module| *module != "algorithm").flat_map(|module| sources(root, module))
        {
            for name in text.lines().filter_map(defined_type) {
                places.entry(name.to_owned()).or_default().push(file.clone());
            }
        }
    }
    assert!(places.len() > 200, "only {} types found", places.len());
    places.retain(|name, files| files.len() > 1 && !["Inner", "Kind"].contains(&name.as_str()));
    assert!(places.is_empty(), "rename one of each: {places:#?}");
}

/// The name in a line that defines a type.
fn defined_type(line: &str) -> Option<&str> {
    let mut words = line.split_whitespace().skip_while(|word| word.starts_with("pub"));
    let is_definition = matches!(words.next()?, "struct" | "enum" | "trait");
    let name = words.next()?.split(|c: char| !c.is_ascii_alphanumeric()).next()?;
    is_definition.then_some(name)
}
