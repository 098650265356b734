//! Checks the order of the modules: each uses only the modules that the `lib.rs` of its package lists above it. The
//! compiler checks the order between the packages. A binary of its own, so that it is built in seconds.

use rstest::rstest;
use std::{fs, path::Path};

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
