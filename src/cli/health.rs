//! `paceway health`: asks a running gateway's `/readyz`.

use super::{
    CommandError,
    admin_client::{AdminArgs, AdminClient},
    print_json,
};
use anyhow::anyhow;
use serde_json::json;

/// With `json`, prints the page `/readyz`. It prints a page with the reason also when nothing answers.
pub(super) fn health(args: &AdminArgs) -> Result<(), CommandError> {
    let client = match AdminClient::connect(args) {
        Err(CommandError { code, message }) if args.json => {
            let reason = message.trim_start_matches("error: ");
            print_json(&json!({ "ready": false, "reasons": [reason] }))?;
            return Err(CommandError { code, message: String::new() });
        }
        client => client?,
    };
    if args.json {
        print_json(&client.ready)?;
    }
    match (client.is_ready(), args.json) {
        (true, _) => Ok(()),
        (false, true) => Err(CommandError { code: 1, message: String::new() }),
        (false, false) => Err(anyhow!("not ready: {}", client.ready).into()),
    }
}
