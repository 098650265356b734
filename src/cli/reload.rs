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
    let names = |key: &str| {
        let names = answer[key].as_array().into_iter().flatten();
        let names: Vec<_> = names.filter_map(|name| name.as_str()).collect();
        (!names.is_empty()).then(|| names.join(", "))
    };
    let (masked, keys) = (names("masked"), names("needs_restart"));
    if answer["changed"] == true || masked.is_some() {
        print(&format!("reloaded: {hash}"))?;
    } else {
        print(&format!("nothing has changed: {hash}"))?;
    }
    if let Some(masked) = masked {
        print(&format!("no effect now, because an override or a row has another value: {masked}"))?;
    }
    for own in answer["overrides_not_applied"].as_array().into_iter().flatten() {
        let (limiter, why) = (own["limiter"].as_str().unwrap_or("limiting"), &own["why"]);
        print(&format!(
            "the override of {limiter} is not applied: {}",
            why.as_str().unwrap_or("-")
        ))?;
    }
    keys.map_or(Ok(()), |keys| print(&format!("with the next start: {keys}")))
}
