//! Tests the configuration files of vendors, and that their pages show them as they are.

use super::{parse, schema::verdicts};
use std::fs;

#[test]
fn every_vendor_has_a_valid_file_that_a_page_shows() {
    let mut files = 0;
    for entry in fs::read_dir("config/vendors").expect("a folder") {
        let path = entry.expect("an entry").path();
        let text = fs::read_to_string(&path).expect("a text");
        assert_eq!(verdicts(&text), (true, true), "{}", path.display());
        let config = parse(&text).expect("a config");
        assert!(config.warnings().is_empty(), "{}: {:?}", path.display(), config.warnings());
        let name = path.file_stem().and_then(|name| name.to_str()).expect("a name");
        let page = fs::read_to_string(format!("docs/vendors/{name}.md")).expect("a page");
        // The first line is for editors.
        let (_, shown) = text.split_once('\n').expect("lines");
        assert!(page.contains(&format!("```yaml\n{shown}```")), "docs/vendors/{name}.md");
        let index = fs::read_to_string("docs/vendors/README.md").expect("a page");
        assert!(index.contains(&format!("({name}.md)")), "docs/vendors/README.md");
        files += 1;
    }
    assert!(files >= 12, "only {files} found");
}

/// The head of an answer that is no stream comes when the model has written all of it.
#[test]
fn vendors_of_long_completions_have_a_long_response_timeout() {
    for name in ["anthropic", "bedrock", "google", "openai"] {
        let text = fs::read_to_string(format!("config/vendors/{name}.yaml")).expect("a text");
        let config = parse(&text).expect("a config");
        let patience = config.upstreams[0].timeouts.response;
        assert!(patience >= std::time::Duration::from_secs(600), "{name}: {patience:?}");
    }
}

#[test]
fn the_index_names_every_style() {
    let index = fs::read_to_string("docs/vendors/README.md").expect("a page");
    for (name, _) in crate::throttle::Style::NAMED {
        assert!(index.contains(&format!("\n| `{name}` |")), "{name}");
    }
}
