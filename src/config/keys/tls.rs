//! The keys of certificates: for clients, and for the servers of the store.

use super::{
    kind::Kind,
    spec::{ALWAYS_CHECKED, Keys, elsewhere, key, list, meant},
};

pub(in crate::config) const TLS: Keys = Keys {
    name: "tls",
    meaning: "Certificates for clients. The gateway then speaks TLS 1.2 and 1.3 only.",
    specs: &[
        key("cert", Kind::File).required()
            .says("PEM: the certificate, then its chain. Shown to callers that name no host (SNI), or none of \
                `certificates`"),
        key("key", Kind::File).required()
            .says("PEM: its private key as PKCS #8, PKCS #1 or SEC 1, not encrypted. It may be the same file as `cert`"),
        key("client_ca", Kind::File).otherwise("callers show none")
            .says("PEM: certificates of authorities. Callers must show a certificate of one of them; a handshake without \
                fails"),
        list("certificates", 0..=1_000, &Kind::Section(&CERTIFICATE)).written("list of `{ cert, key }`")
            .says("at most 1000 more. The gateway reads the names from the certificates; where none fits, it uses the \
                first pair"),
    ],
    others: &[
        meant("certificate ssl_certificate crt chain", "cert"),
        meant("private_key ssl_certificate_key", "key"),
        meant("ca ca_file verify_client ssl_client_certificate", "client_ca"),
        meant("certs", "certificates"),
        elsewhere("min_version protocols alpn", VERSIONS),
    ],
};

pub(in crate::config) const CERTIFICATE: Keys = Keys {
    name: "certificate",
    meaning: "A certificate and its private key.",
    specs: &[
        key("cert", Kind::File).required().says("PEM: the certificate, then its chain"),
        key("key", Kind::File)
            .required()
            .says("PEM: its private key, not encrypted. It may be the same file as `cert`"),
    ],
    others: &[
        meant("certificate crt", "cert"),
        meant("private_key", "key"),
        elsewhere("host server_name", "the names are in the certificate"),
    ],
};

pub(in crate::config) const STORE_TLS: Keys = Keys {
    name: "store_tls",
    meaning: "How the servers of a `rediss://` URL are checked, and the certificate that they are shown.",
    specs: &[
        key("ca", Kind::File).otherwise("the system's")
            .says("PEM certificates of the authorities that certificates of the servers are checked with"),
        key("cert", Kind::File)
            .says("the certificate that the gateway presents to servers that ask for one; it needs `key`"),
        key("key", Kind::File)
            .says("PEM: the private key of `cert`"),
        key("server_name", Kind::Text).otherwise("the host")
            .says("the name that certificates of the servers must have. By default it is the host of the URL, or the one \
                that Sentinels or the Cluster name, which is usually an address"),
    ],
    others: &[
        meant("ca_file ca_cert", "ca"),
        meant("certificate client_cert crt", "cert"),
        meant("private_key client_key", "key"),
        meant("sni", "server_name"),
        elsewhere("insecure insecure_skip_verify verify", ALWAYS_CHECKED),
    ],
};

const VERSIONS: &str = "TLS 1.2 and 1.3 and HTTP/1.1 and 2 are always offered";
