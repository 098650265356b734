//! Writes the JSON Schema of the configuration and the tables of its keys in docs/configuration.md from the list of keys in
//! `src/config/keys`. Run it after a change of a key: `cargo run --example reference`.

use paceway::config::reference::{page, schema};
use std::{fs, io};

const SCHEMA: &str = "src/config/schema.json";
const PAGE: &str = "docs/configuration.md";

fn main() -> io::Result<()> {
    fs::write(SCHEMA, schema())?;
    let old = fs::read_to_string(PAGE)?;
    fs::write(PAGE, page(&old))
}
