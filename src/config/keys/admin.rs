//! The keys of `admin`.

use super::{
    kind::Kind,
    spec::{Keys, choice, key, meant},
};
use crate::config::admin::AdminRead;

pub(in crate::config) const ADMIN: Keys = Keys {
    name: "admin",
    meaning: "The address of the admin side, and the access to it.",
    specs: &[
        key("listen", Kind::Address).default("127.0.0.1:9090")
            .says("the address of the admin side. It may not be the `listen` of the data plane"),
        key("token", Kind::Secret)
            .says("every change needs it, as `Authorization: Bearer TOKEN`. Without a token only loopback addresses may \
                change anything, see [access](admin.md#access)"),
        choice::<AdminRead>("read").default("open")
            .says("`token`: reading needs the token, too, except for `/metrics`, `/healthz` and `/readyz`"),
    ],
    others: &[
        meant("address bind", "listen"),
        meant("password auth bearer", "token"),
    ],
};
