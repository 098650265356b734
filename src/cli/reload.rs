//! `paceway reload`: makes a running gateway read its configuration again, and prints the result.

use super::{
    CommandError,
    admin_client::{AdminArgs, AdminClient},
    print, print_json,
};
use http::Method;

pub(super) fn reload(args: &AdminArgs) -> Result<(), CommandError> {
    let answer = AdminClient::connect(args)?.ask(&Method::POST, "/reload", None)?;
    if args.json {
        return print_json(&answer);
    }
    let hash = answer["hash"].as_str().unwrap_or("-");
    match answer["changed"] == true {
        true => print(&format!("reloaded: {hash}"))?,
        false => print(&format!("nothing has changed: {hash}"))?,
    }
    let keys = answer["needs_restart"].as_array().into_iter().flatten();
    let keys: Vec<_> = keys.filter_map(|key| key.as_str()).collect();
    match keys.is_empty() {
        true => Ok(()),
        false => print(&format!("with the next start: {}", keys.join(", "))),
    }
}
