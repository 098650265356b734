//! Checks the shape of functions and the size of the packages against budgets.

use crate::source::{self, Function, SourceFile};

// These numbers may only fall. A change that makes one of them smaller writes the smaller number here.

/// Tuples in the parameters of functions: a tuple is a struct that has no name yet.
const PARAMETER_TUPLES: usize = 4;
/// Tuples in the results of functions.
const RESULT_TUPLES: usize = 142;
/// A `match` on a flag, which is an `if`.
const MATCHED_FLAGS: usize = 0;
/// Functions of more than `LONGEST` lines that are no tables.
const LONG_FUNCTIONS: usize = 1;
/// Lines of Rust in `src` and `crates` without tests.
const RUST_LINES: usize = 94_980;
/// Lines of Lua in `crates`.
const LUA_LINES: usize = 5_101;

/// The most lines of a function.
const LONGEST: usize = 60;

/// Functions that are a table: one row a case, and nothing to take apart.
const TABLES: [(&str, &str); 1] = [("src/answer.rs", "row")];

/// Lua modules without a file of the same name in Rust: the protocol of a call, and what is stored. This list may only
/// become shorter.
const WITHOUT_TWIN: [&str; 8] =
    ["call", "common", "entries", "epoch", "fair/steps", "fair/stored", "replies", "state"];

/// Fails with the places if there are more than the budget allows.
fn check(what: &str, budget: usize, found: &[String]) {
    let count = found.len();
    let list = found.join("\n");
    assert!(
        count <= budget,
        "{what}: {count} found, {budget} allowed:\n{list}\n{what}: {count} found, {budget} allowed"
    );
}

fn all_functions() -> Vec<(SourceFile, Vec<Function>)> {
    let files = source::source_files().into_iter();
    let all: Vec<_> = files
        .map(|file| {
            let functions = source::functions(&file);
            (file, functions)
        })
        .collect();
    let count: usize = all.iter().map(|(_, functions)| functions.len()).sum();
    assert!(count > 2_000, "only {count} functions found: the test no longer reads the sources");
    all
}

/// Lists each function as often as `count` says.
fn places(count: impl Fn(&SourceFile, &Function) -> usize) -> Vec<String> {
    let mut found = Vec::new();
    for (file, functions) in all_functions() {
        for function in functions {
            let place = format!("{}:{} {}", file.path, function.line, function.name);
            found.extend(vec![place; count(&file, &function)]);
        }
    }
    found
}

#[test]
fn few_parameters_are_tuples() {
    let found = places(|_, function| source::count_tuples(&function.parameters));
    check("tuples in parameters", PARAMETER_TUPLES, &found);
}

#[test]
fn few_results_are_tuples() {
    let found = places(|_, function| source::count_tuples(&function.result));
    check("tuples in results", RESULT_TUPLES, &found);
}

#[test]
fn few_matches_are_on_a_flag() {
    let mut found = Vec::new();
    for file in source::source_files() {
        found.extend(vec![file.path; source::count_matched_flags(&file.code)]);
    }
    check("`match` on a flag", MATCHED_FLAGS, &found);
}

#[test]
fn few_functions_are_long() {
    let found = places(|file, function| {
        let is_table = TABLES.contains(&(file.path.as_str(), function.name.as_str()));
        usize::from(!is_table && function.lines.is_some_and(|lines| lines > LONGEST))
    });
    check("functions above 60 lines", LONG_FUNCTIONS, &found);
}

#[test]
fn the_packages_do_not_grow() {
    let rust: usize = source::source_files().iter().map(|file| file.lines).sum();
    assert!(rust <= RUST_LINES, "lines of Rust without tests: {rust} found, {RUST_LINES} allowed");
    let lua = source::files(&["crates"], ".lua").into_iter();
    let lua: usize =
        lua.map(|path| std::fs::read_to_string(path).expect("a file").lines().count()).sum();
    assert!(lua <= LUA_LINES, "lines of Lua: {lua} found, {LUA_LINES} allowed");
}

/// A rule has two halves, which are read side by side.
#[test]
fn each_lua_module_has_a_rust_twin() {
    let root = "crates/paceway-limit/src/algorithm/";
    let modules = source::files(&["crates"], ".lua");
    assert!(modules.len() > 30, "only {} Lua modules found", modules.len());
    let mut alone = Vec::new();
    for module in modules {
        let name = module.trim_end_matches(".lua");
        if !std::path::Path::new(&format!("{name}.rs")).exists() {
            alone.push(name.trim_start_matches(root).to_owned());
        }
    }
    assert_eq!(alone, WITHOUT_TWIN, "the Lua modules without a file of the same name in Rust");
}
