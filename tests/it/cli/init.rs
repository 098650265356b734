//! `paceway init`: the recipes of vendors.

use super::said;
use crate::support::{paceway, paceway_fed};
use std::{fs, path::Path};

/// The names of the files in config/vendors.
fn vendors() -> Vec<String> {
    let files = fs::read_dir("config/vendors").expect("a folder").map(|entry| {
        let path = entry.expect("an entry").path();
        path.file_stem().and_then(|name| name.to_str()).expect("a name").to_owned()
    });
    let mut names: Vec<_> = files.collect();
    names.sort();
    names
}

#[test]
fn init_lists_each_recipe_with_its_purpose() {
    let (code, out, err) = said(&paceway(&["init"]));
    assert_eq!((code, err.as_str()), (Some(0), ""));
    let rows = out.lines().take_while(|line| !line.is_empty());
    let names: Vec<_> = rows.clone().filter_map(|row| row.split_whitespace().next()).collect();
    assert_eq!(names, vendors());
    assert!(
        rows.clone().any(|row| row == "github           GitHub's REST API with one token"),
        "{out}"
    );
    assert!(out.contains("paceway init NAME > paceway.yaml"), "{out}");
}

/// The pages of docs/vendors show the same text, as the test of the configuration says.
#[test]
fn init_prints_the_tested_file_of_a_vendor_which_check_accepts() {
    for name in vendors() {
        let (code, out, err) = said(&paceway(&["init", &name]));
        assert_eq!((code, err.as_str()), (Some(0), ""));
        let file = fs::read_to_string(format!("config/vendors/{name}.yaml")).expect("a file");
        let (_, text) = file.split_once('\n').expect("lines");
        assert_eq!(out, text, "{name}");
        let checked = said(&paceway_fed(Path::new("."), &["check", "--offline", "-"], &out));
        assert_eq!((checked.0, checked.2.as_str()), (Some(0), ""), "{name}");
    }
}

#[test]
fn an_unknown_recipe_is_answered_with_the_nearest_and_with_all() {
    for (name, hint) in
        [("gihub", "did you mean `github`?"), ("shopify", "did you mean `shopify-"), ("zzz", "")]
    {
        let (code, out, err) = said(&paceway(&["init", name]));
        assert_eq!((code, out.as_str()), (Some(2), ""));
        assert!(
            err.starts_with(&format!("error: `{name}` is no recipe")) && err.contains(hint),
            "{err}"
        );
        assert!(vendors().iter().all(|vendor| err.contains(vendor.as_str())), "{err}");
    }
}
