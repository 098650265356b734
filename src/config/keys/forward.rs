//! The keys of `forward`.

use super::{
    CERTIFICATE,
    kind::Kind,
    spec::{Keys, choice, elsewhere, key, list, meant, section},
};
use crate::config::forward::OtherHosts;

pub(in crate::config) const FORWARD: Keys = Keys {
    name: "forward",
    meaning: "A forward proxy (CONNECT, and requests with a whole URL) for programs that cannot change the URL that they call.",
    specs: &[
        key("listen", Kind::Address).required()
            .says("the address of the proxy, which clients have in `HTTPS_PROXY`. No other listener may have it"),
        section("ca", &CERTIFICATE, "`{ cert, key }`").required()
            .says("the authority that signs the certificates for the hosts of upstreams, and that clients have to trust; \
                `paceway ca` makes one"),
        choice::<OtherHosts>("others").default("refuse")
            .says("hosts of no upstream. `tunnel` passes connections to those in `allow` on as they are"),
        list("allow", 0..=1_000, &Kind::Text).written("list of at most {most} hosts")
            .says("with `others: tunnel`: `api.example` or `api.example:8443`; `*.example` (all names below it) or `*`, which \
                without a port are for 443. This machine is reached only by an entry without `*`, and link-local \
                addresses and the gateway's own listeners by none"),
    ],
    others: &[
        meant("address bind", "listen"),
        meant("authority tls", "ca"),
        meant("hosts allowed", "allow"),
        elsewhere("cert", CA),
    ],
};

const CA: &str = "the certificate of the authority is written `ca: { cert: FILE, key: FILE }`";
