//! Shows the calls of other proxies to the targets of `fuzz/`, which alone are built with `--cfg fuzzing`. Decides nothing.

pub use super::{
    ext_authz::fuzzing::{FuzzedCheck, read_check},
    rate_limit::fuzzing::read_rate_limit,
};

use super::original::restore;
use crate::config::{ForwardAuthConfig, OriginalRequest, ServiceListener};
use http::Request;

/// Makes a call of `forward_auth` the request that it describes; false for one that describes none.
pub fn restore_original(
    request: &mut Request<()>,
    original: OriginalRequest,
    path_prefix: &str,
) -> bool {
    let listener = ServiceListener { listen: ([127, 0, 0, 1], 0).into(), tls: None, token: None };
    let path_prefix = path_prefix.to_owned();
    let config = ForwardAuthConfig { listener, original, path_prefix, denied_status: None };
    restore(request, &config).is_ok()
}
