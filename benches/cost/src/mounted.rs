//! The cost of a request in an axum program that mounts the proxy, in user instructions beside the gateway's own.

use crate::parts::{
    Bench,
    instructions::{gateway, mounted, requests},
    missing,
};
use std::{fs, io, path::Path};

/// The fronts of `benches/mounted/server.rs`.
const FRONTS: [(&str, &str); 3] = [
    ("proxy", "hyper, `Proxy` as a tower service"),
    ("router", "hyper, `paceway::router`"),
    ("serve", "`axum::serve`, `paceway::router`"),
];

/// Prints a table of the gateway and of each front of `program`.
pub fn run(bench: &Bench<'_>, program: &Path) -> io::Result<()> {
    if let Some(why) = missing(&["valgrind", "vgdb"]) {
        return Err(io::Error::other(why));
    }
    // The servers run in the temporary directory of the stage.
    let program = fs::canonicalize(program)
        .map_err(|error| io::Error::other(format!("{}: {error}", program.display())))?;
    let own = requests(bench, &gateway(bench)?)?;
    println!("| front | user instructions per request | compared |\n|---|---|---|");
    println!("| the gateway | {own:.0} | |");
    for (front, name) in FRONTS {
        let count = requests(bench, &mounted(bench, &program, front)?)?;
        println!("| {name} | {count:.0} | {:+.1} % |", (count / own - 1.0) * 100.0);
    }
    Ok(())
}
